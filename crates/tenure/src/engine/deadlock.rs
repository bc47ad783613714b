//! Looking for deadlocks on behalf of acquires that wait, and are to be refused rather than to wait in one.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::client::Tenure;
use super::core::Core;
use super::live::LiveClaim;
use crate::backend::{ReleaseRequest, Released};
use crate::clock::Moment;
use crate::deadlocks::{Deadlock, Wait};

/// How long a claim waits before the first look.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long the look of another task is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// When a claim that waits is looked for in deadlocks.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    next: Option<Moment>,
    pause: Duration,
}

impl Schedule {
    /// When to look next; the first time a second from now.
    pub(super) fn next(&mut self, now: Moment) -> Moment {
        *self.next.get_or_insert_with(|| {
            self.pause = FIRST;
            now + FIRST
        })
    }

    /// A look has ended.
    pub(super) fn looked(&mut self, now: Moment) {
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.next = Some(now + self.pause);
    }
}

/// The last look of a client, and when it began. Held while somebody looks: one look serves all who wait for it.
#[derive(Debug, Default)]
pub(crate) struct LastLook(tokio::sync::Mutex<Option<(Moment, Arc<Vec<Deadlock>>)>>);

/// What a look finds that begins at `due` or later.
async fn look(core: &Arc<Core>, due: Moment) -> Arc<Vec<Deadlock>> {
    let limit = || Some(core.clock.now() + PATIENCE);
    let Some(mut last) = core.within(limit, pin!(core.last_look.0.lock())).await else {
        // Whoever looks is not polled any more.
        return Arc::new(look_now(core).await);
    };
    if let Some((_, found)) = last.as_ref().filter(|(began, _)| *began >= due) {
        return found.clone();
    }
    let began = core.clock.now();
    let found = Arc::new(look_now(core).await);
    *last = Some((began, found.clone()));
    found
}

/// What a look finds; nothing if the store cannot be looked at, for the next look comes.
async fn look_now(core: &Arc<Core>) -> Vec<Deadlock> {
    Tenure { core: core.clone() }.deadlocks().await.unwrap_or_else(|error| {
        tracing::debug!(%error, "no look for deadlocks");
        Vec::new()
    })
}

/// The deadlock in which this claim is the one to be refused, by a look that begins at `due` or later.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(super) async fn to_be_refused(core: &Arc<Core>, claim: &LiveClaim, due: Moment) -> Option<Deadlock> {
    let name = &claim.plan.name;
    let (_, id) = core.backend.shown(&claim.owner, name, claim.id);
    let is_own = |wait: &Wait| wait.claim == id && wait.name == *name;
    let found = look(core, due).await;
    found.iter().find(|deadlock| deadlock.youngest_refusable(is_own).is_some_and(is_own)).cloned()
}

/// Ends a claim if it still waits; whether it did.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: whoever cancels ends the claim.
pub(super) async fn give_up(core: &Arc<Core>, claim: &LiveClaim) -> bool {
    let Some(number) = claim.number() else { return false };
    let request = ReleaseRequest { waiting_only: true, ..ReleaseRequest::new(claim.owner.clone(), claim.id) };
    let call = core.backend.release(&claim.plan.name, request.with_number(number));
    let limit = || Some(core.clock.now() + super::core::RELEASE_TIMEOUT);
    matches!(core.within(limit, call).await, Some(Ok(Released::Yes)))
}
