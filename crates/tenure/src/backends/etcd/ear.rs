//! One stream of watches for each client: claims that wait are told of their turn, and those that ended that they have.

use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc::unbounded_channel;
use tokio::time::timeout;
use tonic::Streaming;

use super::desk::Desk;
use super::entry::{Line, Note};
use super::link::{ANSWER_MAX, Link};
use super::watches::{NOTES, Subject, Watches};
use super::wire::WatchResponse;
use crate::backend::{Event, Listener};
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::ClaimId;

/// The pause before the stream is opened again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How often it is looked whether the client is still there, whose key is to be watched, and which watch nobody needs
/// any more.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After how many looks at which nothing was told the stream has to answer; and after how many it is left.
const SILENT: (u32, u32) = (4, 4 + (ANSWER_MAX.as_millis() / LOOK_EVERY.as_millis()) as u32);

#[derive(Default)]
pub(super) struct Ear {
    listener: OnceLock<Listener>,
    watches: Mutex<Watches>,
}

impl Ear {
    pub(super) fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }

    pub(super) fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim is over.
    pub(super) fn forget(&self, id: ClaimId) {
        self.watches().forget(id);
    }

    /// The front of a queue as it is known without asking.
    pub(super) fn front(&self, name: &Name) -> Option<Line> {
        self.watches().name(name)?.front()
    }

    /// Whether a queue is so long, as far as is known, that reading it takes its time.
    pub(super) fn is_long(&self, name: &Name) -> bool {
        self.watches().is_long(name)
    }

    /// As much of the front of a queue as it takes to see who holds, if it is known without asking and long.
    pub(super) fn long_front(&self, name: &Name, now: Moment) -> Option<Line> {
        let mut watches = self.watches();
        if watches.is_long(name) { watches.name(name)?.holders(now) } else { None }
    }

    /// The same, once all is known that was done up to a revision; none if that is not told soon.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only waits.
    pub(super) async fn front_at(&self, name: &Name, revision: i64, now: Moment) -> Option<Line> {
        const SOON: Duration = Duration::from_secs(1);
        let told = {
            let mut watches = self.watches();
            let watched = watches.name(name)?;
            if watched.knows(revision) {
                return watched.holders(now);
            }
            watched.when_known(revision)
        };
        // It ends without an answer when the watch does.
        timeout(SOON, told).await.ok()?.ok()?;
        self.watches().name(name).filter(|watched| watched.knows(revision))?.holders(now)
    }
}

/// Listens until the client is gone.
///
/// # Cancel safety
///
/// Cancel safe: whoever waits is told by its next renewal.
pub(super) async fn hear(desk: Weak<Desk>) {
    let mut pause = PAUSE.0;
    let mut again = false;
    loop {
        let Some(client) = desk.upgrade() else { return };
        if let Some((link, stream)) = open(&client).await {
            pause = PAUSE.0;
            client.ear.tell(Event::Resubscribed);
            if again {
                // Members may have been replaced by newer ones, or by older ones.
                let client = client.clone();
                client.runtime.clone().spawn(async move { client.learn_versions().await });
            }
            again = true;
            drop(client);
            follow(&desk, &link, stream).await;
        } else {
            drop(client);
        }
        let Some(client) = desk.upgrade() else { return };
        client.ear.watches().closed();
        drop(client);
        let _ = timeout(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0), pending::<()>()).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn open(desk: &Desk) -> Option<(Arc<Link>, Streaming<WatchResponse>)> {
    let link = desk.road.link().await.ok()?;
    let (commands, wanted) = unbounded_channel();
    desk.ear.watches().opened(commands, desk.keys.notes());
    let commands = futures_util::stream::unfold(wanted, |mut wanted| async move {
        let command = wanted.recv().await?;
        Some((command, wanted))
    });
    let stream = link.watch(commands).await;
    Some((link.clone(), desk.road.judged(&link, stream).ok()?))
}

/// Hands on what the stream tells, until it ends or its link is left.
async fn follow(desk: &Weak<Desk>, link: &Link, mut stream: Streaming<WatchResponse>) {
    let look = || Box::pin(timeout(LOOK_EVERY, pending::<()>()));
    let mut next: Pin<Box<_>> = look();
    let mut silent = 0;
    loop {
        let told = tokio::select! {
            told = stream.message() => Some(told),
            _ = &mut next => None,
            () = link.leaving() => return,
        };
        let Some(desk) = desk.upgrade() else { return };
        let goes_on = match told {
            Some(Ok(Some(told))) => {
                silent = 0;
                take(&desk, told)
            }
            Some(_) => false,
            None => {
                next = look();
                silent += 1;
                desk.look_at_held();
                desk.check_watches();
                // One that is silent may be dead, and nothing else would show it.
                silent < SILENT.0 || !desk.ear.watches().ask_for_answer() || silent < SILENT.1
            }
        };
        if !goes_on {
            desk.road.leave(link);
            return;
        }
    }
}

/// False if the stream is of no use any more.
fn take(desk: &Arc<Desk>, told: WatchResponse) -> bool {
    if told.watch_id == NOTES {
        if told.canceled {
            tracing::debug!(reason = told.cancel_reason, "the watch on notes has ended");
            return false;
        }
        for kv in told.events.into_iter().filter(super::wire::KeyEvent::is_put).filter_map(|event| event.kv) {
            if let (Some(id), Ok(note)) = (desk.keys.noted(&kv.key), serde_json::from_slice::<Note>(&kv.value)) {
                desk.broken(id, &note);
            }
        }
        return true;
    }
    let Some(subject) = desk.ear.watches().subject(told.watch_id) else {
        // One that was cancelled by us, or the whole stream by etcd.
        return !told.canceled || told.watch_id >= 0;
    };
    if told.canceled {
        tracing::debug!(reason = told.cancel_reason, "a watch has ended");
        desk.ear.watches().cancelled(told.watch_id, told.compact_revision != 0);
        return true;
    }
    match subject {
        Subject::Name(name) if told.created => desk.list(name, told.watch_id),
        Subject::Name(name) => desk.told(&name, |watched| watched.take(told.events)),
        Subject::Held(id) if told.created => desk.ear.watches().held_from_now_on(id),
        Subject::Held(id) => desk.key_is_gone(id),
    }
    true
}
