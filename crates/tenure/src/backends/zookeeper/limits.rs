//! What sessions may be like, by what each server says.
//!
//! A session's timeout is agreed on anew whenever it connects, with the server it then connects to. So a ttl has to
//! be one that every server allows, and after a reconnection nothing counts until that is known to be so still.

use std::collections::HashMap;
use std::time::Duration;

/// The tickTime of most servers.
const TICK_USUAL: Duration = Duration::from_secs(2);

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

    /// The shortest ttl: a lease counts from a tick ago, so that of less than two nothing is left to rely on.
    pub(super) fn floor(self) -> Duration {
        self.min.max(self.tick * 2)
    }
}

/// A server's host and port.
pub(super) type Host = (String, u16);

/// What one server said of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) min: Duration,
    pub(super) max: Duration,
    /// Not every server tells, and an answer may be lost.
    pub(super) tick: Option<Duration>,
}

impl Heard {
    /// What both say, where one name stands for several servers.
    pub(super) fn and(self, other: Self) -> Self {
        let tick = self.tick.max(other.tick);
        Self { min: self.min.max(other.min), max: self.max.min(other.max), tick }
    }

    /// With what the tick is said to be, where no server tells.
    fn limits(self, said: Option<Duration>) -> Limits {
        Limits { min: self.min, max: self.max, tick: tick_of(self.tick.or(said), self.min) }
    }
}

/// The tickTime, if it may not have been told. The shortest timeout is two ticks unless it was set otherwise, and
/// nobody tells whether it was: so it is no less than what most servers have.
fn tick_of(told: Option<Duration>, min: Duration) -> Duration {
    told.unwrap_or_else(|| (min / 2).max(TICK_USUAL)).max(Duration::from_millis(1))
}

/// What each server said when it was last asked.
#[derive(Clone, Debug)]
pub(super) struct Told {
    by_host: HashMap<Host, Heard>,
    /// The tick of those that do not tell, as the URL says.
    said: Option<Duration>,
    joint: Limits,
}

impl Told {
    /// None if nobody said anything.
    pub(super) fn new(told: Vec<(Host, Heard)>, said: Option<Duration>) -> Option<Self> {
        let by_host: HashMap<Host, Heard> = told.into_iter().collect();
        let joint = by_host.values().map(|heard| heard.limits(said)).reduce(Limits::and)?;
        Some(Self { by_host, said, joint })
    }

    /// Some were asked again. Of those that do not answer now, what they said before holds; and so does a tick that was
    /// told once.
    pub(super) fn update(&mut self, told: Vec<(Host, Heard)>) {
        for (host, mut heard) in told {
            let before = self.by_host.get(&host).and_then(|before| before.tick);
            heard.tick = heard.tick.or(before);
            self.by_host.insert(host, heard);
        }
        self.join();
    }

    /// Servers told their ticks, and nothing else.
    pub(super) fn update_ticks(&mut self, told: &[(Host, Duration)]) {
        for (host, tick) in told {
            if let Some(heard) = self.by_host.get_mut(host) {
                heard.tick = Some(*tick);
            }
        }
        self.join();
    }

    fn join(&mut self) {
        let each = self.by_host.values().map(|heard| heard.limits(self.said));
        self.joint = each.reduce(Limits::and).unwrap_or(self.joint);
    }

    /// The servers whose limits are known, of these.
    pub(super) fn heard_of(&self, hosts: &[Host]) -> Vec<Host> {
        hosts.iter().filter(|host| self.by_host.contains_key(host)).cloned().collect()
    }

    pub(super) fn ticks_are_told(&self) -> bool {
        self.said.is_some() || self.by_host.values().all(|heard| heard.tick.is_some())
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

    fn heard(min: u64, max: u64, tick: u64) -> Heard {
        let Limits { min, max, tick } = seconds(min, max, tick);
        Heard { min, max, tick: Some(tick) }
    }

    fn host(name: &str) -> Host {
        (name.to_owned(), 2181)
    }

    #[test]
    fn a_ttl_is_one_that_every_server_allows() {
        let mut told = Told::new(vec![(host("a"), heard(4, 40, 2)), (host("b"), heard(6, 20, 3))], None).unwrap();
        assert_eq!(told.joint(), seconds(6, 20, 3));
        assert!(told.differ());
        told.update(vec![(host("b"), heard(4, 40, 2))]);
        assert_eq!(told.joint(), seconds(4, 40, 2));
        assert!(!told.differ());
        told.update(vec![(host("c"), heard(4, 9, 2))]);
        assert_eq!(told.joint(), seconds(4, 9, 2));
        assert!(Told::new(Vec::new(), None).is_none());
    }

    #[test]
    fn a_server_that_was_not_heard_of_is_not_gone_to() {
        let told = Told::new(vec![(host("c"), heard(4, 40, 2)), (host("a"), heard(4, 40, 2))], None).unwrap();
        assert_eq!(told.heard_of(&[host("a"), host("b"), host("c")]), [host("a"), host("c")]);
    }

    #[test]
    fn a_tick_that_was_told_is_not_forgotten_for_a_guess() {
        let silent = |min, max| Heard { tick: None, ..heard(min, max, 1) };
        let mut told = Told::new(vec![(host("a"), heard(10, 40, 1)), (host("b"), heard(10, 40, 7))], None).unwrap();
        told.update(vec![(host("a"), silent(10, 40)), (host("b"), silent(10, 40))]);
        assert_eq!(told.joint(), seconds(10, 40, 7), "neither lower nor higher");
        told.update(vec![(host("b"), heard(10, 40, 3))]);
        assert_eq!(told.joint().tick, Duration::from_secs(3), "it was set anew");
        told.update_ticks(&[(host("a"), Duration::from_secs(4)), (host("z"), Duration::from_secs(9))]);
        assert_eq!(told.joint().tick, Duration::from_secs(4));
        told.update(vec![(host("c"), silent(12, 40))]);
        assert_eq!(told.joint().tick, Duration::from_secs(6), "nobody has told this one's");
        assert_eq!(heard(4, 40, 3).and(silent(6, 30)), heard(6, 30, 3));
    }

    #[test]
    fn what_the_url_says_of_the_tick_counts_only_where_servers_do_not_tell() {
        let (silent, said) = (Heard { tick: None, ..heard(4, 40, 1) }, Some(Duration::from_millis(100)));
        let told = Told::new(vec![(host("a"), heard(4, 40, 2)), (host("b"), silent)], said).unwrap();
        assert_eq!(told.joint().tick, Duration::from_secs(2));
        let told = Told::new(vec![(host("b"), silent)], said).unwrap();
        assert_eq!((told.joint().tick, told.ticks_are_told()), (Duration::from_millis(100), true));
    }

    #[test]
    fn a_tick_that_is_not_told_is_not_taken_for_a_short_one() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        assert_eq!(tick_of(Some(ms(100)), ms(200)), ms(100));
        assert_eq!(tick_of(None, ms(200)), s(2), "minSessionTimeout was set below two ticks, maybe");
        assert_eq!(tick_of(None, s(4)), s(2));
        assert_eq!(tick_of(None, s(10)), s(5));
    }

    #[test]
    fn a_ttl_has_room_for_two_ticks() {
        assert_eq!(seconds(1, 40, 2).floor(), Duration::from_secs(4));
        assert_eq!(seconds(6, 40, 2).floor(), Duration::from_secs(6));
    }
}
