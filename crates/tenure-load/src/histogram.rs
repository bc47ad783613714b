//! Any number of times in memory that does not grow.

use std::time::Duration;

/// Bits of a time that are kept exactly: each bucket is a 256th as wide as its times are long.
const KEPT: u32 = 8;
const BUCKETS: usize = (64 - KEPT as usize + 1) << KEPT;

/// How often times came that are nearly the same.
#[derive(Clone, Debug)]
pub(crate) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    longest: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], count: 0, longest: Duration::ZERO }
    }
}

impl Histogram {
    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
        self.longest = self.longest.max(time);
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// What `percent` of all do not exceed, in microseconds, to a 500th; the longest exactly. `None` if there are none.
    pub(crate) fn percentile_us(&self, percent: f64) -> Option<f64> {
        // The nearest rank, as the contestants of other languages count.
        let rank = (percent / 100.0 * self.count as f64).ceil().max(1.0) as u64;
        let longest = self.longest.as_nanos() as f64;
        let mut below = 0;
        let found = self.buckets.iter().position(|count| {
            below += count;
            below >= rank
        });
        let nanos = if rank >= self.count { longest } else { middle(found?).min(longest) };
        (self.count > 0).then_some(nanos / 1e3)
    }
}

/// Where a time belongs: its highest bits, and how many are below them.
fn bucket(nanos: u64) -> usize {
    let dropped = (u64::BITS - nanos.leading_zeros()).saturating_sub(KEPT + 1);
    ((dropped as usize) << KEPT) + (nanos >> dropped) as usize
}

/// The time in the middle of a bucket.
fn middle(bucket: usize) -> f64 {
    let dropped = (bucket >> KEPT).saturating_sub(1);
    let kept = bucket - (dropped << KEPT);
    let width = 2_f64.powi(i32::try_from(dropped).unwrap_or(0));
    kept as f64 * width + (width - 1.0) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_time_has_a_bucket_whose_middle_is_near() {
        let times =
            (0..2_000).chain((0..55).flat_map(|shift| [(1 << shift) * 300, (1 << shift) * 511, (1 << shift) - 1]));
        for nanos in times.chain([u64::MAX]) {
            let near = middle(bucket(nanos));
            assert!((near - nanos as f64).abs() <= nanos as f64 / 500.0, "{nanos}: {near}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let mut times = Histogram::default();
        assert_eq!(times.percentile_us(50.0), None);
        (1..=101).rev().for_each(|micros| times.add(Duration::from_micros(micros)));
        assert_eq!(times.count(), 101);
        for (percent, micros) in [(0.0, 1.0), (50.0, 51.0), (99.0, 100.0)] {
            let told = times.percentile_us(percent).unwrap();
            assert!((told - micros).abs() <= micros / 500.0, "{told}");
        }
        assert_eq!(times.percentile_us(100.0), Some(101.0));
    }
}
