//! The claims of this client: their numbers, and who polls for them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::backend::{ClaimRequest, Standing};
use crate::name::Name;
use crate::owner::ClaimId;

/// With this many claims, those that nobody asked for lately are removed.
const SWEEP_FROM: usize = 4_096;

/// With this many requests, those that were answered are removed.
const UNDER_WAY_FROM: usize = 256;
/// How long a release waits for the claim before it.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// All of them.
#[derive(Default)]
pub(super) struct Table(Mutex<Claims>);

/// A request for a claim under way; answered when it is dropped.
pub(super) struct UnderWay {
    _told: watch::Sender<()>,
}

/// A request that another one waits for.
pub(super) struct Before(watch::Receiver<()>);

impl Before {
    /// Waits until it was answered.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn answered(mut self) {
        // Whoever is under way ends by dropping its half.
        let _ = tokio::time::timeout(ANSWER_MAX, self.0.changed()).await;
    }
}

#[derive(Default)]
struct Claims {
    known: HashMap<ClaimId, Known>,
    /// Counts what is asked, so that the oldest can be told.
    tick: u64,
    sweep_at: usize,
    closed: bool,
    /// Requests for claims that were not answered yet.
    under_way: HashMap<ClaimId, watch::Receiver<()>>,
    answered_from: usize,
    /// Those of them whose claims are to be ended.
    unwanted: HashMap<ClaimId, watch::Receiver<()>>,
}

/// One claim.
struct Known {
    name: Name,
    request: Box<ClaimRequest>,
    /// The number that the engine knows it by.
    first: u64,
    /// The number that the store gave it last, as far as was heard.
    latest: u64,
    poll: Option<AbortHandle>,
    used: u64,
}

/// The claim is not the one that was meant.
pub(super) struct AnotherNumber;

impl Table {
    /// A request for a claim begins. Answers the one before it, if that is under way.
    pub(super) fn begin(&self, id: ClaimId) -> (UnderWay, Option<Before>) {
        let (told, answered) = watch::channel(());
        let mut claims = self.lock();
        claims.forget_answered();
        // Asked for again, it is wanted again.
        claims.unwanted.remove(&id);
        let before = claims.under_way.insert(id, answered);
        (UnderWay { _told: told }, before.map(Before))
    }

    /// The request for a claim that is under way, if there is one: a release that overtook it would leave the claim
    /// behind.
    pub(super) fn under_way(&self, id: ClaimId) -> Option<Before> {
        self.lock().under_way.get(&id).cloned().map(Before)
    }

    /// A claim stands; answers the number that the engine knows it by.
    pub(super) fn stands(&self, name: &Name, request: &ClaimRequest, standing: &Standing) -> u64 {
        let mut claims = self.lock();
        claims.sweep();
        let used = claims.tick();
        let same = claims.known.get(&request.id).filter(|known| known.request.attempt == request.attempt);
        let first = same.map_or(standing.number, |known| known.first);
        // Answers to copies of one request may come in any order.
        let latest = same.map_or(standing.number, |known| known.latest.max(standing.number));
        let known = Known { name: name.clone(), request: Box::new(request.clone()), first, latest, poll: None, used };
        let before = claims.known.insert(request.id, known);
        drop(claims);
        stop(before.and_then(|known| known.poll));
        first
    }

    /// A claim was renewed; answers the number that the engine knows it by. While it is polled for, its number changes
    /// before we hear of it.
    pub(super) fn renewed(&self, id: ClaimId, standing: &Standing) -> u64 {
        let mut claims = self.lock();
        let used = claims.tick();
        let Some(known) = claims.known.get_mut(&id) else { return standing.number };
        known.used = used;
        let ours = standing.number == known.latest || known.poll.is_some() && standing.number > known.latest;
        if !ours {
            return standing.number;
        }
        // The answer to a poll that told of it may have been lost.
        known.latest = standing.number;
        known.first
    }

    /// The number to end a claim by, if the engine means the one that we know.
    pub(super) fn number(&self, id: ClaimId, meant: Option<u64>) -> Result<Option<u64>, AnotherNumber> {
        match (self.lock().known.get(&id), meant) {
            (Some(known), Some(meant)) if meant != known.first => Err(AnotherNumber),
            // The number changes while it is polled for; the claim's own id is enough.
            (Some(_), _) | (None, None) => Ok(None),
            (None, meant) => Ok(meant),
        }
    }

    /// The number that the store gave a claim last, if the engine asks for one and means the claim that we know.
    pub(super) fn latest(&self, id: ClaimId, meant: Option<u64>) -> Result<Option<u64>, AnotherNumber> {
        match (self.lock().known.get(&id), meant) {
            (Some(known), Some(meant)) if meant != known.first => Err(AnotherNumber),
            (Some(known), Some(_)) => Ok(Some(known.latest)),
            (_, meant) => Ok(meant),
        }
    }

    /// Whether a poll may have given the claim a number that was not heard of.
    pub(super) fn was_polled(&self, id: ClaimId) -> bool {
        self.lock().known.get(&id).is_some_and(|known| known.poll.is_some())
    }

    /// A claim has ended.
    pub(super) fn ended(&self, id: ClaimId) {
        let known = self.lock().known.remove(&id);
        stop(known.and_then(|known| known.poll));
    }

    /// Nobody polls for it any more.
    pub(super) fn silence(&self, id: ClaimId) {
        let poll = self.lock().known.get_mut(&id).and_then(|known| known.poll.take());
        stop(poll);
    }

    /// It is to be ended, whatever the request for it that is under way brings.
    pub(super) fn unwanted(&self, id: ClaimId) {
        let mut claims = self.lock();
        if let Some(answered) = claims.under_way.get(&id).filter(|answered| answered.has_changed().is_ok()).cloned() {
            claims.unwanted.insert(id, answered);
        }
    }

    /// Whether a claim that was just answered is to be ended.
    pub(super) fn is_unwanted(&self, id: ClaimId) -> bool {
        self.lock().unwanted.remove(&id).is_some()
    }

    /// Nobody polls for anything any more.
    pub(super) fn close(&self) {
        let mut claims = self.lock();
        claims.closed = true;
        let known = std::mem::take(&mut claims.known);
        drop(claims);
        known.into_values().for_each(|known| stop(known.poll));
    }

    /// Begins to poll for a claim, unless somebody does.
    pub(super) fn poll(&self, id: ClaimId, begin: impl FnOnce() -> AbortHandle) {
        let mut claims = self.lock();
        if claims.closed {
            return;
        }
        let Some(known) = claims.known.get_mut(&id) else { return };
        if known.poll.as_ref().is_none_or(AbortHandle::is_finished) {
            known.poll = Some(begin());
        }
    }

    /// What to ask for a claim with.
    pub(super) fn asked(&self, id: ClaimId) -> Option<(Name, ClaimRequest, u64)> {
        let claims = self.lock();
        let known = claims.known.get(&id)?;
        Some((known.name.clone(), (*known.request).clone(), known.latest))
    }

    /// A poll was answered with this number; answers the one that the engine knows.
    pub(super) fn polled(&self, id: ClaimId, number: u64, ends: bool) -> Option<u64> {
        let mut claims = self.lock();
        let known = claims.known.get_mut(&id)?;
        known.latest = known.latest.max(number);
        if ends {
            known.poll = None;
        }
        Some(known.first)
    }

    /// The number that the engine knows a claim by.
    pub(super) fn first(&self, id: ClaimId) -> Option<u64> {
        self.lock().known.get(&id).map(|known| known.first)
    }

    fn lock(&self) -> MutexGuard<'_, Claims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claims {
    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Forgets requests that were answered, once there are twice as many as there were.
    fn forget_answered(&mut self) {
        if self.under_way.len() >= self.answered_from.max(UNDER_WAY_FROM) {
            self.under_way.retain(|_, answered| answered.has_changed().is_ok());
            self.unwanted.retain(|_, answered| answered.has_changed().is_ok());
            self.answered_from = self.under_way.len() * 2;
        }
    }

    /// Forgets the half that nobody has asked for lately, if there are many: claims that were left to their ttls.
    fn sweep(&mut self) {
        if self.known.len() < self.sweep_at.max(SWEEP_FROM) {
            return;
        }
        let horizon = self.tick.saturating_sub(8 * self.known.len() as u64);
        self.known.retain(|_, known| known.used >= horizon || known.poll.is_some());
        self.sweep_at = self.known.len() * 2;
    }
}

fn stop(poll: Option<AbortHandle>) {
    if let Some(poll) = poll {
        poll.abort();
    }
}
