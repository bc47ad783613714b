//! What is counted of claims now and told to the recorder later. A recorder takes longer for each value than all that
//! is counted of a claim here; told in one go, its code and data stay in the cache.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// The most values of one kind that are kept until they are told. Of more, so many are drawn.
const VALUES_MAX: usize = 512;
/// The most values of one kind that a client tells at a time, those that were not kept included. Each kept value stands
/// for the others too, so that a busy second weighs more than a quiet one. A recorder may take 50 ns and 16 bytes for
/// each, and the watchdog, which tells them, has deadlines to keep: these take it less than a millisecond.
const TOLD_MAX: u64 = 8_192;

/// Whether there is something to tell.
pub(super) struct Due {
    due: AtomicBool,
    /// Rung when there was nothing before: the watchdog tells it.
    bell: Arc<Notify>,
}

impl Due {
    pub(super) fn new(bell: Arc<Notify>) -> Self {
        Self { due: AtomicBool::new(false), bell }
    }

    // `due` and `Tally::wished` are in one order (SeqCst): whoever counts and then finds it due comes before the one
    // who takes it next, and is told of by that one.
    pub(super) fn set(&self) {
        if !self.due.load(Ordering::SeqCst) && !self.due.swap(true, Ordering::SeqCst) {
            self.bell.notify_one();
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.due.load(Ordering::SeqCst)
    }

    pub(super) fn take(&self) -> bool {
        self.is_set() && self.due.swap(false, Ordering::SeqCst)
    }
}

/// What happened to claims since it was last told.
#[derive(Default)]
pub(super) struct Tally {
    wished: AtomicU64,
    counts: Mutex<Counts>,
}

/// What was counted.
#[derive(Default)]
pub(super) struct Counts {
    /// Acquires that began.
    pub(super) wished: u64,
    /// Acquires that came to their end, by result.
    pub(super) results: [u64; 7],
    /// Guards that are gone.
    pub(super) gone: u64,
    /// How long grants were waited for, in seconds, and whether others were in the way.
    pub(super) waits: Sample<(f64, bool)>,
    /// How long leases were held, in seconds.
    pub(super) holds: Sample<f64>,
}

/// Values, or so many of them that were drawn with the same chance each.
#[derive(Default)]
pub(super) struct Sample<T> {
    values: Vec<T>,
    /// How many there were.
    seen: u64,
    random: u64,
}

impl<T> Sample<T> {
    fn add(&mut self, value: T) {
        self.seen += 1;
        if self.values.len() < VALUES_MAX {
            return self.values.push(value);
        }
        // Which one a value replaces, if any, decides no more than what is shown: a weak generator is good enough.
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let place = usize::try_from((self.random >> 16) % self.seen).unwrap_or(usize::MAX);
        if let Some(kept) = self.values.get_mut(place) {
            *kept = value;
        }
    }

    /// How many there were.
    pub(super) fn seen(&self) -> u64 {
        self.seen
    }

    /// Each value, and how many it stands for: together as many as there were, or their share of what is told if there
    /// were too many in all groups of the client.
    pub(super) fn weighted(self, in_all: u64) -> impl Iterator<Item = (T, usize)> {
        let kept = u64::try_from(self.values.len()).unwrap_or(u64::MAX).max(1);
        let told = if in_all <= TOLD_MAX { self.seen } else { (self.seen * TOLD_MAX).div_ceil(in_all) };
        // What does not divide evenly is spread over all of them.
        let before = move |place: u64| place * told / kept;
        let weight = move |place| usize::try_from(before(place + 1) - before(place)).unwrap_or(usize::MAX);
        self.values.into_iter().zip(0..).map(move |(value, place)| (value, weight(place)))
    }

    /// Leaves room for as much again.
    fn take(&mut self) -> Self {
        let next = Self { values: Vec::with_capacity(self.values.len()), seen: 0, random: self.random };
        std::mem::replace(self, next)
    }
}

impl Tally {
    pub(super) fn wished(&self) {
        self.wished.fetch_add(1, Ordering::SeqCst);
    }

    /// An acquire came to its end; one that was granted after it was waited for so long, perhaps contended.
    pub(super) fn ended(&self, result: usize, wait: Option<(Duration, bool)>) {
        let mut counts = self.counts();
        if let Some(count) = counts.results.get_mut(result) {
            *count += 1;
        }
        if let Some((waited, contended)) = wait {
            counts.waits.add((waited.as_secs_f64(), contended));
        }
    }

    /// A guard is gone.
    pub(super) fn gone(&self, held: Duration) {
        let mut counts = self.counts();
        counts.gone += 1;
        counts.holds.add(held.as_secs_f64());
    }

    /// All there is to tell.
    pub(super) fn take(&self) -> Counts {
        let mut counts = self.counts().take();
        // Last, so that nothing ends that was not begun.
        counts.wished = self.wished.swap(0, Ordering::SeqCst);
        counts
    }

    fn counts(&self) -> std::sync::MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn take(&mut self) -> Self {
        let taken = Self { waits: self.waits.take(), holds: self.holds.take(), ..*self };
        (self.wished, self.results, self.gone) = (0, [0; 7], 0);
        taken
    }

    /// By how many more acquires are under way than before.
    pub(super) fn waiting(&self) -> f64 {
        difference(self.wished, self.results.iter().sum())
    }

    /// By how many more guards are out than before.
    pub(super) fn held(&self) -> f64 {
        difference(self.results[0], self.gone)
    }
}

/// Exact as long as there are fewer than 2^53.
#[allow(clippy::cast_precision_loss)]
fn difference(more: u64, less: u64) -> f64 {
    more as f64 - less as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_values_each_is_as_likely_to_be_told() {
        let mut sample = Sample::default();
        let all = 100_000_u32;
        (0..all).for_each(|value| sample.add(f64::from(value)));
        assert_eq!(sample.values.len(), VALUES_MAX);
        let mean = sample.values.iter().sum::<f64>() / f64::from(u32::try_from(VALUES_MAX).unwrap());
        // Six times the deviation that a mean of so many has.
        let off = (mean - f64::from(all) / 2.0).abs();
        assert!(off < f64::from(all) / 12.0_f64.sqrt() / 512.0_f64.sqrt() * 6.0, "{mean}");
        assert_eq!(sample.take().values.len(), VALUES_MAX);
        assert_eq!((sample.values.len(), sample.seen), (0, 0));
    }

    #[test]
    fn each_kept_value_stands_for_as_many_as_any_other() {
        for (seen, in_all, told) in [
            (0, 0, 0),
            (1, 1, 1),
            (512, 512, 512),
            (513, 8_192, 513),
            (2_001, 8_192, 2_001),
            (8_192, 8_192, 8_192),
            (100_000, 100_000, 8_192),
            (1, 100_000, 1),
            (50_000, 100_000, 4_096),
        ] {
            let mut sample = Sample::default();
            (0..seen).for_each(|value| sample.add(value));
            let weights: Vec<usize> = sample.weighted(in_all).map(|(_, weight)| weight).collect();
            assert_eq!(weights.iter().sum::<usize>(), told, "{seen} of {in_all}");
            let (least, most) = (weights.iter().min().copied(), weights.iter().max().copied());
            assert!(most <= least.map(|least| least + 1), "{seen} of {in_all}: {least:?} to {most:?}");
        }
    }
}
