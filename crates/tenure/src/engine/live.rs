//! A claim of this client that the store has, or may have.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::Notify;

use super::plan::Plan;
use crate::backend::{ReleaseRequest, RenewRequest};
use crate::clock::Moment;
use crate::error::Loss;
use crate::lease;
use crate::machine::{Grant, Place, Standing};
use crate::owner::{ClaimId, Owner};

/// One claim, shared by the task that waits for it, its guard and the watchdog.
#[derive(Debug)]
pub(crate) struct LiveClaim {
    /// What was asked for. Shared with the claim's cohort: there may be very many claims.
    pub(crate) plan: Arc<Plan>,
    pub(crate) id: ClaimId,
    pub(crate) owner: Owner,
    /// The term of the cohort's leader that asked for it; zero if none did.
    pub(crate) term: u64,
    /// Whether the phase is granted: asked for each claim at each renewal.
    granted: AtomicBool,
    /// Whether a task has taken the grant.
    taken: AtomicU8,
    turn: AtomicU64,
    /// The local deadline in microseconds: zero before the first answer and after a loss.
    deadline: AtomicU64,
    state: Mutex<State>,
    changed: Notify,
    /// Rung when it is worth asking again.
    nudged: Notify,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// The number the store gave it, once known.
    number: Option<u64>,
    /// For how long whoever it waits behind trusts a lease, from its last renewal on.
    holder_ttl: Option<Duration>,
    /// A grant that was heard of before the claim itself was answered.
    early: Option<Box<(Grant, u64)>>,
    /// Why the last renewal failed.
    failure: Option<Arc<str>>,
}

const UNTAKEN: u8 = 0;
const TAKEN: u8 = 1;
const LEFT_ALONE: u8 = 2;

/// How a claim stands, as far as this client knows.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Not answered yet.
    Asking,
    /// In the queue.
    Waiting(Place),
    /// Granted; trusted until the deadline.
    Granted(Grant),
    /// The store does not have it, or it can no longer be trusted.
    Lost(Loss),
}

/// A claim that was granted.
pub(crate) struct Won {
    pub(crate) claim: Arc<LiveClaim>,
    pub(crate) grant: Grant,
    /// When its task took it.
    pub(crate) at: Moment,
    /// Whom it was waited for.
    pub(crate) behind: Option<Arc<str>>,
    /// Whether the process held it all along.
    pub(crate) continued: bool,
}

impl LiveClaim {
    pub(crate) fn new(id: ClaimId, owner: Owner, plan: Arc<Plan>, term: u64) -> Self {
        let state = State { phase: Phase::Asking, number: None, holder_ttl: None, early: None, failure: None };
        Self {
            plan,
            id,
            owner,
            term,
            granted: AtomicBool::new(false),
            taken: AtomicU8::new(UNTAKEN),
            turn: AtomicU64::new(0),
            deadline: AtomicU64::new(0),
            state: Mutex::new(state),
            changed: Notify::new(),
            nudged: Notify::new(),
        }
    }

    /// What renews it.
    pub(crate) fn renewal(&self) -> RenewRequest {
        let (name, owner) = (self.plan.name.clone(), self.owner.clone());
        RenewRequest { name, id: self.id, owner, ttl: self.plan.ttl, number: None }
    }

    /// What ends it, if the store gave it this number.
    pub(crate) fn ending(&self, number: Option<u64>) -> ReleaseRequest {
        ReleaseRequest { number, ..ReleaseRequest::new(self.owner.clone(), self.id) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        super::unpoisoned(self.state.lock())
    }

    pub(crate) fn phase(&self) -> Phase {
        self.state().phase.clone()
    }

    /// A task takes the grant. True if the watchdog had left it alone until now.
    pub(crate) fn take(&self) -> bool {
        self.taken.swap(TAKEN, Ordering::AcqRel) == LEFT_ALONE
    }

    /// Whether a task has it in hand, or has seen that it is lost.
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Acquire) == TAKEN
    }

    /// Whether it was granted to a task that never looked.
    pub(crate) fn was_left_alone(&self) -> bool {
        self.taken.load(Ordering::Acquire) == LEFT_ALONE
    }

    /// Which guard of it is out: what is a guard's own names its turn.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Acquire)
    }

    /// Why the last renewal failed, if it did.
    pub(crate) fn renewal_failure(&self) -> Option<Arc<str>> {
        self.state().failure.clone()
    }

    pub(crate) fn renewal_failed(&self, failure: &Arc<str>) {
        self.state().failure = Some(failure.clone());
    }

    /// The grant is on its way to another task.
    pub(crate) fn offer(&self) {
        self.turn.fetch_add(1, Ordering::AcqRel);
        // One that was left alone stays so: whoever takes it has to have it renewed.
        let _ = self.taken.compare_exchange(TAKEN, UNTAKEN, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Whether the watchdog has to leave it alone: granted, but not taken. A future that nobody polls must
    /// not keep a lock for longer than one ttl.
    pub(crate) fn leave_alone(&self) -> bool {
        self.is_granted()
            && self.taken.compare_exchange(UNTAKEN, LEFT_ALONE, Ordering::AcqRel, Ordering::Acquire) != Err(TAKEN)
    }

    pub(crate) fn is_granted(&self) -> bool {
        self.granted.load(Ordering::Acquire)
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        match &self.state().phase {
            Phase::Lost(loss) => Some(loss.clone()),
            _ => None,
        }
    }

    /// How long the holder it waited behind may trust its lease from now on, if the store no longer has this claim:
    /// it may have renewed until the store lost it.
    pub(crate) fn holder_ttl(&self) -> Option<Duration> {
        let state = self.state();
        state.holder_ttl.filter(|_| matches!(state.phase, Phase::Lost(Loss::Gone)))
    }

    /// Whoever it waited behind is presumed to live on for no longer than this.
    pub(crate) fn limit_holder(&self, ttl: Duration) {
        let mut state = self.state();
        state.holder_ttl = state.holder_ttl.map(|holder| holder.min(ttl));
    }

    pub(crate) fn number(&self) -> Option<u64> {
        self.state().number
    }

    /// Until when the lease may be trusted.
    pub(crate) fn deadline(&self) -> Moment {
        Moment(self.deadline.load(Ordering::Acquire))
    }

    /// Takes note of an answer of the store that the claim is in the queue. False if the answer is about
    /// another claim: the same id, used again after this one had ended.
    pub(crate) fn answered(&self, standing: &Standing, counted_from: Moment) -> bool {
        let mut state = self.state();
        if state.number.is_some_and(|number| number != standing.number) {
            return false;
        }
        state.number = Some(standing.number);
        state.failure = None;
        if matches!(state.phase, Phase::Lost(_)) {
            return true;
        }
        // A late answer must not shorten what a later one allowed.
        let deadline = lease::deadline(counted_from, standing.ttl).as_micros();
        self.deadline.fetch_max(deadline, Ordering::AcqRel);
        // A grant is never taken back: an answer that says otherwise was overtaken by the news of it.
        if !self.is_granted() {
            match (&standing.state, state.early.take()) {
                (Ok(grant), _) => self.grant(state, *grant),
                (Err(_), Some(early)) if early.1 == standing.number => self.grant(state, early.0),
                (Err(place), _) => {
                    state.holder_ttl = Some(place.holder_ttl.max(place.holder_expires_in));
                    state.phase = Phase::Waiting(place.clone());
                }
            }
        }
        true
    }

    fn grant(&self, mut state: MutexGuard<'_, State>, grant: Grant) {
        state.phase = Phase::Granted(grant);
        self.granted.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Takes note of the news that it was granted.
    pub(crate) fn granted(&self, grant: Grant, number: u64) {
        let mut state = self.state();
        match state.phase {
            // The deadline counts from an answered request: wait for that answer.
            Phase::Asking => state.early = Some(Box::new((grant, number))),
            Phase::Waiting(_) if state.number.is_none_or(|known| known == number) => self.grant(state, grant),
            _ => {}
        }
    }

    /// A holding goes on with another block of tokens. False if it was lost meanwhile.
    pub(crate) fn extended(&self, grant: Grant, counted_from: Moment) -> bool {
        let mut state = self.state();
        let granted = matches!(state.phase, Phase::Granted(_));
        if granted {
            state.phase = Phase::Granted(grant);
            self.deadline.fetch_max(lease::deadline(counted_from, self.plan.ttl).as_micros(), Ordering::AcqRel);
        }
        granted
    }

    /// The lease can no longer be trusted. If that is news, whether it was granted.
    pub(crate) fn lose(&self, loss: Loss) -> Option<bool> {
        let mut state = self.state();
        if matches!(state.phase, Phase::Lost(_)) {
            return None;
        }
        let was_granted = self.is_granted();
        self.deadline.store(0, Ordering::Release);
        self.granted.store(false, Ordering::Release);
        state.phase = Phase::Lost(loss);
        drop(state);
        self.changed.notify_waiters();
        Some(was_granted)
    }

    /// The store says that it is worth asking again.
    pub(crate) fn nudge(&self) {
        self.nudged.notify_one();
    }

    /// Resolves when the store has said, or says, that it is worth asking again.
    pub(crate) fn nudged(&self) -> tokio::sync::futures::Notified<'_> {
        self.nudged.notified()
    }

    /// Resolves at the next change of the phase to granted or lost.
    pub(crate) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }
}
