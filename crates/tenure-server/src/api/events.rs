//! Events as they happen.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Extension, Request, State};
use axum::response::IntoResponse;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use futures_util::stream;
use serde::Deserialize;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use utoipa::IntoParams;

use super::described::{Asked, TooMany};
use super::fields;
use crate::auth::{Caller, Right};
use crate::connection::{Peer, WaitsOn};
use crate::events::{Event, Reader, STOPPING};
use crate::problem::Answer;
use crate::service::Service;

/// How often a comment is sent, so that nobody takes the stream for dead.
const COMMENT_EVERY: Duration = Duration::from_secs(15);

/// Of which names.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Listen {
    /// What they begin with.
    #[serde(default)]
    prefix: String,
}

/// One stream.
struct Stream {
    reader: Reader,
    caller: Caller,
    /// Whether it was let in by its certificate.
    is_certified: bool,
    prefix: String,
    missed: VecDeque<Arc<Event>>,
    ended: bool,
    service: Arc<Service>,
    reloads: watch::Receiver<u64>,
    stopped: watch::Receiver<bool>,
    _open: WaitsOn,
}

#[utoipa::path(get, path = "/v1/events", tag = "views", params(Listen),
    responses((status = 200, description = "server-sent events: granted, waiting, released, expired, lost, broken, left; \
        away and back for the store; stopping for the instance; gap where events were missed", content_type = "text/event-stream", body = String),
        Asked, TooMany))]
/// What happens, as it happens. A reader that is too slow is told (`gap`) and dropped.
pub(crate) async fn events(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<impl IntoResponse> {
    let Listen { prefix } = fields::query(&request)?;
    caller.needs_any(Right::Read)?;
    let last = request.headers().get("last-event-id").map(|last| last.to_str().unwrap_or_default());
    // Streams leave room for renewals on a connection, as waits do.
    let open = peer.begin_to_wait()?;
    let mut reader = service.feed.listen(last)?;
    let missed = std::mem::take(&mut reader.missed);
    let (reloads, stopped) = (service.gate.reloads.subscribe(), service.feed.stopped.subscribe());
    let is_certified = peer.certified.is_some();
    let start = Stream {
        reader,
        caller,
        is_certified,
        prefix,
        missed,
        ended: false,
        service: service.clone(),
        reloads,
        stopped,
        _open: open,
    };
    let instance = service.feed.instance.clone();
    let events = stream::unfold(start, move |mut stream| {
        let instance = instance.clone();
        async move {
            let sent = stream.next(&instance).await?;
            Some((Ok::<_, Infallible>(sent), stream))
        }
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::new().interval(COMMENT_EVERY)))
}

impl Stream {
    async fn next(&mut self, instance: &str) -> Option<Sent> {
        if self.ended {
            return None;
        }
        if std::mem::take(&mut self.reader.gap) {
            return Some(gap("events were missed: look at the names anew"));
        }
        loop {
            let event = match self.missed.pop_front() {
                Some(event) => event,
                None => {
                    let received = tokio::select! {
                        biased;
                        received = self.reader.events.recv() => received,
                        _ = self.stopped.wait_for(|stopped| *stopped) => return None,
                        _ = self.reloads.changed() => {
                            // The authority of its certificate may be another.
                            if self.is_certified {
                                return None;
                            }
                            // Whoever has lost the right hears nothing more.
                            self.caller = self.service.gate.again(&self.caller)?;
                            self.caller.needs_any(Right::Read).ok()?;
                            continue;
                        }
                    };
                    match received {
                        Ok(event) => event,
                        Err(RecvError::Lagged(_)) => {
                            self.ended = true;
                            return Some(gap("read too slowly: this stream ends"));
                        }
                        Err(RecvError::Closed) => return None,
                    }
                }
            };
            let is_for_it = |name: &str| name.starts_with(&self.prefix) && self.caller.may(Right::Read, name);
            if event.name.as_ref().is_none_or(|name| is_for_it(name.as_str())) {
                // The last event of an instance ends its streams.
                self.ended = event.kind == STOPPING;
                let id = format!("{instance}-{:016x}", event.id);
                return Some(Sent::default().id(id).event(event.kind).data(&event.json));
            }
        }
    }
}

fn gap(message: &str) -> Sent {
    let json = serde_json::json!({ "event": "gap", "message": message });
    Sent::default().event("gap").data(json.to_string())
}
