//! The flight recorder: the claims that ended last, with what made them slow. It answers "why was that slow" after
//! the fact.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Loss};
use crate::name::Name;
use crate::token::Token;

/// How many are kept. Each takes 184 bytes, so 184 KiB in all, and keeps its name and labels alive.
const RECENT_MAX: usize = 1_024;

/// A claim that has ended, or an acquire that was not granted. See [`Tenure::recent`](crate::Tenure::recent).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recent {
    /// The name.
    pub name: Name,
    /// The label of who asked for it.
    pub label: Arc<str>,
    /// How long it was waited for.
    pub waited: Duration,
    /// Whom it was waited for: the label of the holder that was heard of last. None if nothing had to be waited for.
    pub behind: Option<Arc<str>>,
    /// How long it was held; none if it was not granted.
    pub held: Option<Duration>,
    /// The fencing token; none if it was not granted, or the store has none.
    pub token: Option<Token>,
    /// How it ended.
    pub ended: Ended,
    /// How long ago it ended.
    pub ago: Duration,
}

/// How a claim ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ended {
    /// It was released.
    Released,
    /// It was left to live on without its guard ([`Guard::leave`](crate::Guard::leave)).
    Left,
    /// It was lost while it was held.
    Lost(Loss),
    /// Not granted: somebody else held it, and the caller did not wait.
    Busy,
    /// Not granted in the time there was.
    TimedOut,
    /// Not granted: the store did not answer, or cannot be used.
    Unreachable,
    /// Not granted, and never would have been.
    Refused,
    /// Not granted: it waited in a deadlock, and was refused.
    Deadlock,
    /// Given up by the caller.
    Cancelled,
}

impl Ended {
    /// Why an acquire that answered this was not granted.
    pub(super) fn by(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Timeout => Self::TimedOut,
            ErrorKind::Deadlock => Self::Deadlock,
            ErrorKind::Invalid | ErrorKind::Conflict | ErrorKind::NotHeld | ErrorKind::NotBuilt | ErrorKind::Denied => {
                Self::Refused
            }
            _ => Self::Unreachable,
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Released => f.write_str("released"),
            Self::Left => f.write_str("left"),
            Self::Lost(loss) => write!(f, "lost: {loss}"),
            Self::Busy => f.write_str("busy"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unreachable => f.write_str("store out of reach"),
            Self::Refused => f.write_str("refused"),
            Self::Deadlock => f.write_str("refused: deadlock"),
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl fmt::Display for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: waited {:?}", self.name, self.waited)?;
        if let Some(behind) = &self.behind {
            write!(f, " behind {behind}")?;
        }
        if let Some(held) = self.held {
            write!(f, ", held {held:?}")?;
        }
        if let Some(token) = self.token {
            write!(f, " with token {token}")?;
        }
        write!(f, ", {}", self.ended)
    }
}

/// One that ended, and when.
type Slot = Mutex<Option<(Moment, Recent)>>;

/// The last ones. Who ends a claim takes the next slot, and waits only for one who has the very same a whole round
/// later.
pub(super) struct Ring {
    next: AtomicUsize,
    slots: Box<[Slot]>,
}

impl Default for Ring {
    fn default() -> Self {
        Self { next: AtomicUsize::new(0), slots: (0..RECENT_MAX).map(|_| Mutex::new(None)).collect() }
    }
}

impl Ring {
    pub(super) fn add(&self, at: Moment, recent: Recent) {
        let place = self.next.fetch_add(1, Ordering::Relaxed) % self.slots.len();
        let Some(slot) = self.slots.get(place) else { return };
        let before = slot.lock().unwrap_or_else(PoisonError::into_inner).replace((at, recent));
        // Freed outside the lock.
        drop(before);
    }

    /// The latest first.
    pub(super) fn recent(&self, now: Moment) -> Vec<Recent> {
        let copy = |slot: &Slot| slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut all: Vec<(Moment, Recent)> = self.slots.iter().filter_map(copy).collect();
        all.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        all.into_iter().map(|(at, recent)| Recent { ago: now.since(at), ..recent }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_keeps_the_last_ones_and_takes_the_memory_it_says() {
        let ring = Ring::default();
        for n in 0..3_000 {
            let name = Name::new(format!("n{n}")).unwrap();
            let (waited, ended, label) = (Duration::ZERO, Ended::Busy, Arc::from("me"));
            let recent =
                Recent { name, label, waited, behind: None, held: None, token: None, ended, ago: Duration::ZERO };
            ring.add(Moment(n), recent);
        }
        let recent = ring.recent(Moment(3_000));
        assert_eq!(recent.len(), RECENT_MAX);
        assert_eq!((recent[0].name.as_str(), recent[0].ago), ("n2999", Duration::from_micros(1)));
        assert_eq!(recent[RECENT_MAX - 1].name.as_str(), "n1976");
        assert_eq!(size_of::<Slot>(), 184);
    }
}
