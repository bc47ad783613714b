//! What sessions may be like, by what each server says.
//!
//! A session's timeout is agreed on anew whenever it connects, with the server it then connects to. So a ttl has to be one that
//! every server allows, and after a reconnection nothing counts until that is known to be so still.

use std::collections::HashMap;
use std::time::Duration;

/// Between these a session's timeout has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) min: Duration,
    pub(super) max: Duration,
    pub(super) tick: Duration,
}

impl Limits {
    /// What both allow.
    fn and(self, other: Self) -> Self {
        Self { min: self.min.max(other.min), max: self.max.min(other.max), tick: self.tick.max(other.tick) }
    }

    /// Whether a session that asks for this timeout is given it.
    pub(super) fn fit(self, timeout: Duration) -> bool {
        self.min <= timeout && timeout <= self.max
    }

    /// The shortest ttl: a lease counts from a tick ago, so that of less than two nothing is left to rely on.
    pub(super) fn floor(self) -> Duration {
        self.min.max(self.tick * 2)
    }
}

/// A server's host and port.
pub(super) type Host = (String, u16);

/// What each server said when it was last asked.
#[derive(Clone, Debug)]
pub(super) struct Told {
    by_host: HashMap<Host, Limits>,
    joint: Limits,
}

impl Told {
    /// None if nobody said anything.
    pub(super) fn new(told: Vec<(Host, Limits)>) -> Option<Self> {
        let by_host: HashMap<Host, Limits> = told.into_iter().collect();
        let joint = by_host.values().copied().reduce(Limits::and)?;
        Some(Self { by_host, joint })
    }

    /// Some were asked again. Of those that do not answer now, what they said before holds.
    pub(super) fn update(&mut self, told: Vec<(Host, Limits)>) {
        self.by_host.extend(told);
        self.joint = self.by_host.values().copied().reduce(Limits::and).unwrap_or(self.joint);
    }

    /// What all servers allow.
    pub(super) fn joint(&self) -> Limits {
        self.joint
    }

    /// Whether some servers allow what others do not.
    pub(super) fn differ(&self) -> bool {
        self.by_host.values().any(|limits| (limits.min, limits.max) != (self.joint.min, self.joint.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(min: u64, max: u64, tick: u64) -> Limits {
        Limits { min: Duration::from_secs(min), max: Duration::from_secs(max), tick: Duration::from_secs(tick) }
    }

    fn host(name: &str) -> Host {
        (name.to_owned(), 2181)
    }

    #[test]
    fn a_ttl_is_one_that_every_server_allows() {
        let mut told = Told::new(vec![(host("a"), seconds(4, 40, 2)), (host("b"), seconds(6, 20, 3))]).unwrap();
        assert_eq!(told.joint(), seconds(6, 20, 3));
        assert!(told.differ());
        told.update(vec![(host("b"), seconds(4, 40, 2))]);
        assert_eq!(told.joint(), seconds(4, 40, 2));
        assert!(!told.differ());
        told.update(vec![(host("c"), seconds(4, 9, 2))]);
        assert!(!told.joint().fit(Duration::from_secs(10)) && told.joint().fit(Duration::from_secs(9)));
        assert!(Told::new(Vec::new()).is_none());
    }

    #[test]
    fn a_ttl_has_room_for_two_ticks() {
        assert_eq!(seconds(1, 40, 2).floor(), Duration::from_secs(4));
        assert_eq!(seconds(6, 40, 2).floor(), Duration::from_secs(6));
    }
}
