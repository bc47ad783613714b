//! From when on a session surely lives for another timeout.
//!
//! The leader alone ends sessions. Whoever is connected to a follower is answered pings and reads by the follower
//! itself, which tells the leader of its sessions every half tick: an answer to a read proves nothing, for the leader
//! may be another one by now. An answered write proves that the follower followed the leader then, and so that the
//! leader had heard by then of everything that had reached the follower a tick before the write was sent. What was
//! answered by then had reached it. A new session needs no such proof: the leader begins to count when it hears of
//! it, which is after the client has asked for it.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// Some so many requests are kept for each tick: more would change little.
const KEPT_PER_TICK: u32 = 64;
/// The most that are kept: more than any timeout has room for.
const KEPT_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Pulse {
    tick: Duration,
    /// When requests were sent, and answered, in order; a few for each tick.
    answered: VecDeque<(Moment, Moment)>,
    /// When the latest write was sent that has been answered.
    written: Moment,
    counted: Moment,
}

impl Pulse {
    /// The pulse of a session that was asked for at this moment. Its making is a write, by which the leader hears of
    /// it.
    pub(super) fn new(asked: Moment, tick: Duration) -> Self {
        Self { tick, answered: VecDeque::new(), written: asked, counted: asked }
    }

    /// A request that was sent at one moment was answered by the other.
    pub(super) fn answered(&mut self, sent: Moment, answered: Moment, is_write: bool) {
        if self.answered.back().is_none_or(|(last, _)| *last < sent) {
            self.keep(sent, answered);
        }
        if is_write && sent > self.written {
            self.written = sent;
        }
        while let Some((sent, answered)) = self.answered.front().copied() {
            if answered + self.tick > self.written {
                break;
            }
            self.counted = self.counted.max(sent);
            self.answered.pop_front();
        }
    }

    /// Takes note of a request later than all others. The latest is always kept, for whoever sent it may be about to
    /// prove something by it; those before it are thinned out.
    fn keep(&mut self, sent: Moment, answered: Moment) {
        let apart = self.tick / KEPT_PER_TICK;
        let last_but_one = self.answered.len().checked_sub(2).and_then(|index| self.answered.get(index));
        if last_but_one.is_some_and(|(kept, _)| sent < *kept + apart) {
            self.answered.pop_back();
        }
        if self.answered.len() >= KEPT_MAX {
            self.answered.pop_front();
        }
        self.answered.push_back((sent, answered));
    }

    /// The moment from which the session's timeout surely counts.
    pub(super) fn counted(&self) -> Moment {
        self.counted
    }

    pub(super) fn tick(&self) -> Duration {
        self.tick
    }

    /// A server turned out to have a longer tick: what is counted from now on counts by that.
    pub(super) fn lengthen_tick(&mut self, tick: Duration) {
        self.tick = self.tick.max(tick);
    }

    /// When the latest answered write was sent.
    pub(super) fn written(&self) -> Moment {
        self.written
    }

    /// When the latest answered request was sent.
    pub(super) fn heard(&self) -> Moment {
        self.answered.back().map_or(self.written, |(sent, _)| (*sent).max(self.written))
    }
}

/// A claim in a session of somebody else, who may rely on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trusted {
    /// When that session was known to be there.
    pub(super) seen: Moment,
    /// Its timeout.
    pub(super) ttl: Duration,
}

impl Trusted {
    /// Until when somebody may rely on the claim, if it is renewed there until now and never again. That session
    /// counts from its making, which was before it was seen, or from a tick before its latest write; and a lease ends
    /// a margin sooner.
    pub(super) fn until(self, now: Moment, tick: Duration) -> Moment {
        let margin = self.ttl / 100 + Duration::from_millis(2);
        self.seen.max(now - tick) + self.ttl.saturating_sub(margin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Moment {
        Moment(1_000_000 + ms * 1000)
    }

    fn answered(pulse: &mut Pulse, ms: u64, is_write: bool) {
        pulse.answered(at(ms), at(ms), is_write);
    }

    #[test]
    fn reads_alone_prove_nothing() {
        let mut pulse = Pulse::new(at(0), TICK);
        for ms in (0..1000).step_by(10) {
            answered(&mut pulse, ms, false);
        }
        assert_eq!(pulse.counted(), at(0));
    }

    #[test]
    fn a_write_proves_what_was_answered_a_tick_before_it_and_not_itself() {
        let mut pulse = Pulse::new(at(0), TICK);
        answered(&mut pulse, 50, false);
        answered(&mut pulse, 120, false);
        answered(&mut pulse, 149, true);
        assert_eq!(pulse.counted(), at(0), "nothing is a tick older");
        answered(&mut pulse, 220, true);
        assert_eq!(pulse.counted(), at(120));
        answered(&mut pulse, 249, true);
        assert_eq!(pulse.counted(), at(149), "an earlier write is a request as well");
    }

    #[test]
    fn what_was_under_way_for_long_counts_from_its_answer_on() {
        let mut pulse = Pulse::new(at(0), TICK);
        pulse.answered(at(10), at(190), false);
        answered(&mut pulse, 200, true);
        assert_eq!(pulse.counted(), at(0), "it may have reached the server together with the write");
        answered(&mut pulse, 290, true);
        assert_eq!(pulse.counted(), at(10));
    }

    #[test]
    fn answers_that_come_late_never_take_anything_back() {
        let mut pulse = Pulse::new(at(0), TICK);
        answered(&mut pulse, 300, false);
        answered(&mut pulse, 500, true);
        assert_eq!(pulse.counted(), at(300));
        answered(&mut pulse, 200, true);
        assert_eq!((pulse.counted(), pulse.written()), (at(300), at(500)));
    }

    #[test]
    fn a_flood_of_requests_is_not_kept_whole() {
        let mut pulse = Pulse::new(at(0), TICK);
        for micros in 0..1_000_000 {
            let sent = Moment(1_000_000 + micros);
            pulse.answered(sent, sent, false);
        }
        assert!(pulse.answered.len() <= 1300, "{}", pulse.answered.len());
        answered(&mut pulse, 2000, true);
        assert!(pulse.counted() > at(990));
    }

    #[test]
    fn the_latest_request_is_kept_however_close_it_comes_to_the_one_before() {
        let mut pulse = Pulse::new(at(0), TICK);
        for micros in [50_000, 50_001, 50_002, 50_300, 50_301] {
            let sent = Moment(at(0).0 + micros);
            pulse.answered(sent, sent, false);
            let mut later = Pulse { answered: pulse.answered.clone(), ..Pulse::new(at(0), TICK) };
            answered(&mut later, 151, true);
            assert_eq!(later.counted(), sent, "a ping that was sent to prove something proves it a tick later");
        }
    }

    #[test]
    fn a_claim_is_relied_on_from_when_its_session_was_seen_or_a_tick_ago() {
        let (ttl, tick) = (Duration::from_secs(10), Duration::from_secs(2));
        let trusted = Trusted { seen: at(5_000), ttl };
        let lease = Duration::from_millis(9_898);
        assert_eq!(trusted.until(at(5_010), tick), at(5_000) + lease, "it may have been made just then");
        assert_eq!(trusted.until(at(7_000), tick), at(5_000) + lease);
        assert_eq!(trusted.until(at(9_000), tick), at(7_000) + lease, "it may have been renewed since");
    }
}
