//! What the watchdog does while the store does not answer: it asks for a few claims, and for all once that succeeds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::live::LiveClaim;
use super::registry::{Key, Table};
use crate::clock::{Moment, NEVER};
use crate::lease;

/// The pause before the store is asked again: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(250);
/// How many claims that have ended may be remembered, beside as many again as live.
const ENDED_MAX: usize = 1024;

/// Whether the store answers, and the claims that are not asked for until it does.
///
/// A renewal that failed, or went unanswered, as a whole says that the store is out of reach: more of them would fail
/// too. So claims that become due are set aside, and a probe, one batch of them, is sent again and again.
#[derive(Debug)]
pub(super) struct Outage {
    /// Whether there is one.
    pub(super) on: bool,
    /// When the store last answered for a claim.
    answered_at: Moment,
    /// Why it did not, the last time.
    failure: Option<Arc<str>>,
    /// Claims that were set aside, those that were in a probe last. Some may have ended since.
    aside: VecDeque<Key>,
    probe_at: Moment,
    /// When the last probe was sent.
    probed_at: Moment,
    pause: Duration,
    /// How long a probe may go unanswered before the next, for each claim set aside.
    repeat_after: Duration,
}

impl Default for Outage {
    fn default() -> Self {
        Self {
            on: false,
            answered_at: Moment(0),
            failure: None,
            aside: VecDeque::new(),
            probe_at: NEVER,
            probed_at: NEVER,
            pause: PAUSE_MIN,
            repeat_after: Duration::MAX,
        }
    }
}

impl Outage {
    /// The store did not answer. `jitter`, from 0 to 1, keeps clients apart that lost it together.
    pub(super) fn failed(&mut self, now: Moment, failure: &Arc<str>, jitter: f64) {
        self.failure = Some(failure.clone());
        let probe_at = now + self.pause.mul_f64(0.5 + jitter / 2.0);
        self.probe_at = if self.on { self.probe_at.min(probe_at) } else { probe_at };
        self.on = true;
    }

    /// The store has been silent for so long that it is asked again at once.
    pub(super) fn silent(&mut self, now: Moment, failure: &Arc<str>) {
        if !self.on {
            self.on = true;
            self.failure = Some(failure.clone());
            self.probe_at = now;
        }
    }

    /// Whether nothing was answered since `asked_at`.
    pub(super) fn is_silent_since(&self, asked_at: Moment) -> bool {
        self.answered_at < asked_at
    }

    /// The store has answered. If there was an outage it is over; the claims that were set aside are to be asked for.
    pub(super) fn answered(&mut self, now: Moment) -> VecDeque<Key> {
        self.answered_at = now;
        if !self.on {
            return VecDeque::new();
        }
        let over = std::mem::take(self);
        self.answered_at = now;
        over.aside
    }

    /// Sets a claim aside. Answers why the store is out of reach, as far as that is known.
    pub(super) fn set_aside(&mut self, key: Key, ttl: Duration) -> Option<&Arc<str>> {
        self.aside.push_back(key);
        self.repeat_after = self.repeat_after.min(lease::repeat_after(ttl));
        self.failure.as_ref()
    }

    /// Whether a probe is due, of claims that were set aside.
    pub(super) fn is_probe_due(&self, now: Moment) -> bool {
        self.on && now >= self.next_probe()
    }

    /// When the next probe is due.
    pub(super) fn next_probe(&self) -> Moment {
        if self.aside.is_empty() { NEVER } else { self.probe_at.min(self.probed_at + self.repeat_after) }
    }

    /// A probe of claims with this ttl or a longer one is under way: the next one is due when this one has gone
    /// unanswered for too long for any claim that was set aside, or a pause after this one has failed.
    pub(super) fn probed(&mut self, now: Moment, ttl: Duration) {
        self.probed_at = now;
        self.probe_at = now + lease::repeat_after(ttl);
        self.pause = (self.pause * 2).min(PAUSE_MAX).min(self.repeat_after);
    }
}

impl Table {
    /// The store has answered for a claim. True if that ends an outage: the claims that were set aside are due then,
    /// those that failed a moment later: if they do so for reasons of their own, they must not be asked for with each
    /// answer.
    pub(crate) fn store_answered(&mut self, now: Moment) -> bool {
        let over = self.outage.on;
        for key in self.outage.answered(now) {
            let Some(beat) = self.beat(key).filter(|beat| beat.aside) else { continue };
            beat.aside = false;
            let (failures, ttl) = (std::mem::take(&mut beat.unanswered), beat.claim.plan.ttl);
            let due = if failures == 0 { now } else { lease::retry_at(now, ttl, 1, self.jitter) };
            self.set_due(key, due);
        }
        over
    }

    /// Asks for a claim again soon that the store failed, though it answered for others.
    pub(crate) fn retry(&mut self, key: Key, now: Moment) {
        let Some(beat) = self.beat(key) else { return };
        let (failures, ttl) = (beat.unanswered, beat.claim.plan.ttl);
        let due = self.due(key).min(lease::retry_at(now, ttl, failures, self.jitter));
        self.set_due(key, due);
        self.watch_loss(key);
    }

    /// Whether the store has answered nothing since this request, which was to be repeated at `repeat_at`, was made.
    pub(crate) fn is_silent(&self, repeat_at: Moment, ttl: Duration) -> bool {
        self.outage.is_silent_since(repeat_at - lease::repeat_after(ttl))
    }

    /// A claim is not asked for until the store answers again.
    pub(crate) fn set_aside(&mut self, key: Key) {
        let Some(beat) = self.beat(key) else { return };
        let (claim, was_aside) = (beat.claim.clone(), std::mem::replace(&mut beat.aside, true));
        self.set_due(key, NEVER);
        self.watch_loss(key);
        if was_aside {
            return;
        }
        let failure = self.outage.set_aside(key, claim.plan.ttl);
        // What the store said of this claim tells more than that it is silent now.
        if let Some(failure) = failure.filter(|_| claim.renewal_failure().is_none()) {
            claim.renewal_failed(failure);
        }
        if self.outage.aside.len() > 2 * self.claims() + ENDED_MAX {
            let mut aside = std::mem::take(&mut self.outage.aside);
            aside.retain(|key| self.beat(*key).is_some());
            self.outage.aside = aside;
        }
    }

    /// Up to `most` claims for a probe, if one is due.
    pub(crate) fn probe(&mut self, now: Moment, most: usize) -> Vec<(Key, Arc<LiveClaim>)> {
        let mut probe = Vec::new();
        while self.outage.is_probe_due(now) && probe.len() < most {
            let Some(key) = self.outage.aside.pop_front() else { break };
            if let Some(beat) = self.beat(key).filter(|beat| beat.aside) {
                beat.aside = false;
                probe.push((key, beat.claim.clone()));
            }
        }
        if let Some(ttl) = probe.iter().map(|(_, claim)| claim.plan.ttl).min() {
            self.outage.probed(now, ttl);
        }
        probe
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(1_000_000_000);

    fn pauses(outage: &mut Outage, count: usize) -> Vec<u128> {
        let mut now = START;
        let mut pauses = Vec::new();
        for _ in 0..count {
            outage.failed(now, &"down".into(), 1.0);
            let at = outage.next_probe();
            pauses.push(at.since(now).as_millis());
            now = at;
            outage.probed(now, Duration::from_secs(9));
        }
        pauses
    }

    #[test]
    fn probes_come_less_and_less_often_but_as_often_as_the_shortest_ttl_needs() {
        let mut outage = Outage::default();
        outage.set_aside(Key::default(), Duration::from_secs(10));
        assert_eq!(pauses(&mut outage, 6), [20, 40, 80, 160, 250, 250]);
        let mut outage = Outage::default();
        outage.set_aside(Key::default(), Duration::from_millis(100));
        assert_eq!(pauses(&mut outage, 4), [20, 40, 50, 50]);
    }

    #[test]
    fn batches_that_fail_together_are_one_failure() {
        let mut outage = Outage::default();
        outage.set_aside(Key::default(), Duration::from_secs(10));
        for after in 0..10 {
            outage.failed(START + Duration::from_millis(after), &"down".into(), 1.0);
        }
        assert_eq!(outage.next_probe(), START + Duration::from_millis(20));
        assert!(!outage.is_probe_due(START) && outage.is_probe_due(START + Duration::from_millis(20)));
    }

    #[test]
    fn an_answer_ends_it_and_gives_back_what_was_set_aside() {
        let mut outage = Outage::default();
        outage.silent(START, &"silent".into());
        assert_eq!(outage.set_aside(Key::default(), Duration::from_secs(10)).unwrap().as_ref(), "silent");
        assert!(outage.is_probe_due(START), "one that hangs was waited for already");
        assert_eq!(outage.answered(START).len(), 1);
        assert!(!outage.on && outage.next_probe() == NEVER);
        assert!(!outage.is_silent_since(START) && outage.is_silent_since(START + Duration::from_micros(1)));
    }
}
