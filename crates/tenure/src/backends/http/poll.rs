//! Waiting at the service for a claim that stands in the queue. Should a poll fail for good, the engine's next
//! renewal of the claim tells how it stands, and begins another.

use std::sync::Arc;
use std::time::Duration;

use super::request::Acquire;
use super::{Client, answer};
use crate::backend::{ClaimRequest, Event};
use crate::clock;
use crate::error::Loss;
use crate::owner::ClaimId;

/// How long one request waits. Proxies in between may have less patience than for the service's own limit.
const WAIT: Duration = Duration::from_secs(20);
/// The pause after a failure; it doubles with each.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Begins to wait, unless somebody does.
pub(super) fn begin(client: &Arc<Client>, id: ClaimId) {
    let task = || client.runtime.spawn(run(client.clone(), id)).abort_handle();
    client.table.poll(id, task);
}

async fn run(client: Arc<Client>, id: ClaimId) {
    let (mut pause, mut superseded) = (PAUSE_MIN, 0);
    while let Some((name, request, number)) = client.table.asked(id) {
        let ask = ClaimRequest { queue: true, ..request };
        let ask = Acquire::of(&name, &ask, WAIT, Some(number));
        let Ok(_one_of_few) = client.polls.acquire().await else { return };
        let asked = client.link.poll("/v1/acquire", &ask).await;
        let reply = asked.and_then(|(status, body)| Ok((status, answer::read_reply(status, &body)?)));
        let Ok((status, reply)) = reply else {
            rest(&client, &mut pause).await;
            continue;
        };
        let number = client.table.first(id).unwrap_or_default();
        match (status, reply.kind.as_deref()) {
            (200 | 202, _) => {
                let Ok(standing) = reply.standing(status == 200) else { return };
                let Some(number) = client.table.polled(id, standing.number, status == 200) else { return };
                (pause, superseded) = (PAUSE_MIN, 0);
                if let Ok(grant) = standing.state {
                    return tell(&client, Event::Granted { id, grant, number });
                }
            }
            (410, Some("broken")) => {
                let (by, reason) = reply.broken();
                let loss = Loss::Broken { by: by.to_string(), reason: reason.to_string() };
                return tell(&client, Event::Ended { id, number, loss });
            }
            (410, _) => return tell(&client, Event::Ended { id, number, loss: Loss::Gone }),
            // A late copy of our own request, or a renewal that we have not heard of, may have come between; twice is
            // somebody else, and the next renewal tells.
            (409, Some("superseded")) if superseded > 0 => return,
            (409, Some("superseded")) => {
                superseded += 1;
                rest(&client, &mut pause).await;
            }
            // None of these gets better by itself.
            (status, _) if status != 429 && (400..500).contains(&status) => return,
            _ => rest(&client, &mut pause).await,
        }
    }
}

async fn rest(client: &Client, pause: &mut Duration) {
    clock::sleep(&*client.clock, *pause).await;
    *pause = (*pause * 2).min(PAUSE_MAX);
}

fn tell(client: &Client, event: Event) {
    if let Some(listener) = client.listener.get() {
        listener(event);
    }
}
