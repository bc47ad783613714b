//! What a lock's options come to.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Capabilities, MAJORITY_OF_WHAT, Replicas};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{ClaimRequest, Shape};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// The default ttl.
pub const TTL_DEFAULT: Duration = Duration::from_secs(10);
/// The shortest ttl.
pub const TTL_MIN: Duration = Duration::from_millis(100);
/// The longest ttl.
pub const TTL_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// How a claim waits where the store keeps no queue. Where it does, claims wait in the store and this
/// does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WaitStrategy {
    /// Ask again after a random, exponentially growing pause: 10 ms to 1 s; where the store says when it is worth it
    /// (Redlock), every one to four seconds besides.
    #[default]
    Backoff,
    /// Ask again every few milliseconds: the shortest wait, at the store's cost.
    Spin,
}

impl WaitStrategy {
    /// The pause before try number `tries`, of a name that is held for so long unless its holder renews. `told`:
    /// whether the store says when to ask again.
    pub(crate) fn pause(self, tries: u32, held_for: Duration, told: bool) -> Duration {
        let jitter = 0.5 + rand::random::<f64>();
        match self {
            Self::Spin => Duration::from_millis(2).mul_f64(jitter),
            // Only in case it was not heard: thousands who ask all the time keep the store from whoever has its turn.
            // A holder that has died is told of by nobody.
            Self::Backoff if told && !held_for.is_zero() => Duration::from_millis(640 << tries.min(2))
                .mul_f64(jitter)
                .min(held_for + Duration::from_millis(80).mul_f64(jitter)),
            // A holder that has died is not waited for any longer; those who wait for it come one after the other.
            Self::Backoff => Duration::from_millis(10 << tries.min(6))
                .mul_f64(jitter)
                .min(held_for + Duration::from_millis(10 << tries.min(3)).mul_f64(jitter)),
        }
    }
}

/// Everything about a claim but its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) name: Name,
    pub(crate) shape: Shape,
    pub(crate) ttl: Duration,
    /// Whether somebody chose the ttl. One that nobody chose is brought within what the store can keep.
    pub(crate) ttl_chosen: bool,
    pub(crate) label: Arc<str>,
    /// The owner, if the caller or its session has one; else each claim gets its own.
    pub(crate) owner: Option<Owner>,
    /// Whether the claim id follows from owner and name, so that a repeated command is a retry.
    pub(crate) repeatable: bool,
    pub(crate) renewed: bool,
    pub(crate) strict: bool,
    pub(crate) within: Vec<Owner>,
    /// Whether it is refused rather than to wait in a deadlock.
    pub(crate) refuse_deadlock: bool,
    pub(crate) reenter: Option<Token>,
    pub(crate) strategy: WaitStrategy,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) warn_after: Option<Duration>,
    /// How many replicas must have a grant or renewal before it counts.
    pub(crate) replicas: Option<Replicas>,
}

/// Checks a ttl against what the store can keep.
pub(crate) fn check_ttl(ttl: Duration, store: &Capabilities) -> Result<()> {
    let (min, max) = store.ttl_limits();
    if (min..=max).contains(&ttl) {
        return Ok(());
    }
    let whose = if (min, max) == (TTL_MIN, TTL_MAX) { "" } else { " in this store" };
    let max = match max.as_secs() {
        hours if hours > 0 && hours.is_multiple_of(3600) => format!("{}h", hours / 3600),
        _ => format!("{max:?}"),
    };
    Err(Error::new(ErrorKind::Invalid, format!("a ttl of {ttl:?} is out of range: {min:?} to {max}{whose}")))
}

impl Plan {
    /// Checks it against what the store can do.
    pub(crate) fn check(&self, store: &Capabilities) -> Result<()> {
        check_ttl(self.ttl, store)?;
        if let Shape::Permits { units, of } = self.shape
            && (units == 0 || units > of)
        {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("{units} of {of} permits cannot be taken: it must be 1 to the number there are"),
            ));
        }
        if self.max_hold == Some(Duration::ZERO) {
            let problem = "max_hold: zero would end every lease at once; leave it out for no limit";
            return Err(Error::new(ErrorKind::Invalid, problem));
        }
        if self.replicas.is_some() && !store.replicas {
            return Err(Error::new(ErrorKind::Invalid, "min_replicas: this store has no replicas to wait for"));
        }
        if self.replicas == Some(Replicas::Majority) && !store.majority {
            return Err(Error::new(ErrorKind::Invalid, MAJORITY_OF_WHAT));
        }
        let missing = match self.shape {
            Shape::Shared if !store.shared => Some("shared locks"),
            Shape::Permits { .. } if !store.permits => Some("semaphores"),
            _ if self.strict && !store.queue => Some("queue, so no strict order"),
            _ if self.owner.is_some() && !self.repeatable && !store.sessions => Some("sessions"),
            _ => None,
        };
        missing.map_or(Ok(()), |what| Err(Error::new(ErrorKind::Conflict, format!("this store has no {what}"))))
    }

    /// The plan, with a ttl that the store can keep if nobody chose another.
    pub(crate) fn within_limits(self: &Arc<Self>, store: &Capabilities) -> Arc<Self> {
        let ttl = store.nearest_ttl(self.ttl);
        if self.ttl_chosen || ttl == self.ttl {
            return self.clone();
        }
        Arc::new(Self { ttl, ..Self::clone(self) })
    }

    /// Whether tasks of this process that want the same may hand it over among themselves.
    pub(crate) fn may_join_cohort(&self) -> bool {
        self.is_solo() && !self.strict && self.replicas.is_none()
    }

    /// Whether nobody may re-enter it, and its life hangs on its client alone.
    fn is_solo(&self) -> bool {
        self.shape == Shape::Exclusive && self.owner.is_none() && self.renewed
    }

    /// Whether a task with `other` may stand in the same cohort: `max_hold` and `warn_after` are a guard's own.
    pub(crate) fn same_cohort(&self, other: &Self) -> bool {
        self.ttl == other.ttl && self.label == other.label && self.within == other.within
    }

    pub(crate) fn new_id(&self) -> (ClaimId, Owner) {
        match &self.owner {
            Some(owner) if self.repeatable => (ClaimId::of(owner, &self.name), owner.clone()),
            Some(owner) => (ClaimId::random(), owner.clone()),
            None => (ClaimId::random(), Owner::random()),
        }
    }

    pub(crate) fn request(&self, id: ClaimId, owner: Owner, queue: bool, block: u32) -> ClaimRequest {
        let refusing = self.refuse_deadlock.then(Owner::refusing_deadlocks);
        ClaimRequest {
            id,
            owner,
            label: self.label.clone(),
            shape: self.shape,
            ttl: self.ttl,
            queue,
            block,
            strict: self.strict,
            inbox: no_inbox(),
            within: self.within.iter().cloned().chain(refusing).collect(),
            reenter: self.reenter,
            solo: self.is_solo(),
            attempt: 0,
            presumed: Duration::ZERO,
        }
    }
}

/// The backend fills in where its client listens.
fn no_inbox() -> Arc<str> {
    static NONE: std::sync::OnceLock<Arc<str>> = std::sync::OnceLock::new();
    NONE.get_or_init(|| Arc::from("")).clone()
}
