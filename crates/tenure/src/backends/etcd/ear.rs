//! One stream of watches for each client: claims that wait are told when it is worth looking again, broken ones that they are.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;
use tonic::Streaming;

use super::desk::Desk;
use super::entry::{Note, Target};
use super::link::Link;
use super::wire::{WatchCancel, WatchCommand, WatchCreate, WatchRequest, WatchResponse, end_of};
use crate::backend::{Event, Listener};
use crate::owner::ClaimId;

/// The watch on notes of breaks. Those of claims have higher numbers.
const NOTES: i64 = 1;
/// The pause before the stream is opened again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

#[derive(Default)]
pub(super) struct Ear {
    listener: OnceLock<Listener>,
    watches: Mutex<Watches>,
    /// Claims that are about to be looked at.
    due: Mutex<HashSet<ClaimId>>,
}

#[derive(Default)]
struct Watches {
    /// To the stream that is open; each watch sends two commands in its life.
    commands: Option<UnboundedSender<WatchRequest>>,
    by_claim: HashMap<ClaimId, (i64, Target)>,
    by_number: HashMap<i64, ClaimId>,
    last: i64,
}

impl Watches {
    fn send(&self, command: WatchCommand) {
        if let Some(commands) = &self.commands {
            // The other end closes with the stream, and then every claim is looked at again.
            let _ = commands.send(WatchRequest { command: Some(command) });
        }
    }

    fn cancel(&mut self, id: ClaimId) {
        if let Some((watch_id, _)) = self.by_claim.remove(&id) {
            self.by_number.remove(&watch_id);
            self.send(WatchCommand::Cancel(WatchCancel { watch_id }));
        }
    }
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

    fn watches(&self) -> MutexGuard<'_, Watches> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> MutexGuard<'_, HashSet<ClaimId>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A claim waits for `target` to change after `revision`.
    pub(super) fn watch(&self, id: ClaimId, target: Target, under: &[u8], revision: i64) {
        let mut watches = self.watches();
        if watches.by_claim.get(&id).is_some_and(|(_, watched)| *watched == target) {
            return;
        }
        watches.cancel(id);
        watches.last = watches.last.max(NOTES) + 1;
        let watch_id = watches.last;
        let (key, range_end) = match &target {
            Target::Key(key) => (key.clone(), Vec::new()),
            Target::Everything => (under.to_vec(), end_of(under)),
        };
        let start_revision = revision.saturating_add(1);
        watches.send(WatchCommand::Create(WatchCreate { key, range_end, start_revision, watch_id }));
        watches.by_claim.insert(id, (watch_id, target));
        watches.by_number.insert(watch_id, id);
    }

    /// A claim no longer waits.
    pub(super) fn forget(&self, id: ClaimId) {
        self.watches().cancel(id);
    }

    /// A look at this claim begins: what changes from now on needs another one.
    pub(super) fn looks(&self, id: ClaimId) {
        self.due().remove(&id);
    }

    fn opened(&self, notes: Vec<u8>) -> UnboundedReceiver<WatchRequest> {
        let (commands, wanted) = unbounded_channel();
        let mut watches = self.watches();
        watches.commands = Some(commands);
        watches.by_claim.clear();
        watches.by_number.clear();
        let range_end = end_of(&notes);
        watches.send(WatchCommand::Create(WatchCreate { key: notes, range_end, start_revision: 0, watch_id: NOTES }));
        wanted
    }
}

/// Listens until the client is gone.
///
/// # Cancel safety
///
/// Cancel safe: whoever waits is told by its next renewal.
pub(super) async fn hear(desk: Weak<Desk>) {
    let mut pause = PAUSE.0;
    loop {
        let Some(client) = desk.upgrade() else { return };
        if let Some((link, stream)) = open(&client).await {
            pause = PAUSE.0;
            client.ear.tell(Event::Resubscribed);
            drop(client);
            follow(&desk, &link, stream).await;
        } else {
            drop(client);
        }
        let _ = timeout(pause.mul_f64(0.5 + rand::random::<f64>() / 2.0), pending::<()>()).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

async fn open(desk: &Desk) -> Option<(Arc<Link>, Streaming<WatchResponse>)> {
    let link = desk.road.link().await.ok()?;
    let wanted = desk.ear.opened(desk.keys.notes());
    let commands = futures_util::stream::unfold(wanted, |mut wanted| async move {
        let command = wanted.recv().await?;
        Some((command, wanted))
    });
    let stream = link.watch(commands).await;
    Some((link.clone(), desk.road.judged(&link, stream).ok()?))
}

/// How often it is looked whether the client is still there.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Hands on what the stream tells, until it ends or its link is left.
async fn follow(desk: &Weak<Desk>, link: &Link, mut stream: Streaming<WatchResponse>) {
    loop {
        let told = tokio::select! {
            told = timeout(LOOK_EVERY, stream.message()) => told,
            () = link.leaving() => return,
        };
        if desk.strong_count() == 0 {
            return;
        }
        let Ok(told) = told else { continue };
        let Some(desk) = desk.upgrade() else { return };
        let Ok(Some(told)) = told else {
            desk.road.leave(link);
            return;
        };
        if !take(&desk, told) {
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
        for kv in told.events.into_iter().filter(|event| event.kind == 0).filter_map(|event| event.kv) {
            if let (Some(id), Ok(note)) = (desk.keys.noted(&kv.key), serde_json::from_slice::<Note>(&kv.value)) {
                desk.broken(id, &note);
            }
        }
        return true;
    }
    let claim = desk.ear.watches().by_number.get(&told.watch_id).copied();
    let Some(id) = claim else {
        // One that was cancelled by us, or the whole stream by etcd.
        return !told.canceled || told.watch_id >= 0;
    };
    if told.canceled {
        // It looked too far back: what it would have told was compacted away.
        let mut watches = desk.ear.watches();
        watches.by_number.remove(&told.watch_id);
        watches.by_claim.remove(&id);
    }
    if (told.canceled || !told.events.is_empty()) && desk.ear.due().insert(id) {
        let looking = desk.clone();
        desk.runtime.spawn(async move { looking.look_again(id).await });
    }
    true
}
