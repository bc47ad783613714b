//! Many measurements of one thing, and what they come to.

use serde_json::{Value, json};

/// Measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, f64> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The sample that `percent` of all do not exceed; no number if there are none.
    pub fn percentile(&self, percent: f64) -> f64 {
        let [percentile] = self.percentiles([percent]);
        percentile
    }

    /// Several percentiles, sorted for once.
    pub fn percentiles<const N: usize>(&self, percents: [f64; N]) -> [f64; N] {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        percents.map(|percent| {
            // The nearest rank, as the contestants of other languages count.
            let rank = (percent / 100.0 * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
        })
    }

    /// The mean of all.
    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    /// The middle sample.
    pub fn median(&self) -> f64 {
        self.percentile(50.0)
    }

    /// As raw data.
    pub fn raw(&self) -> Value {
        json!(self.0)
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(samples: I) -> Self {
        Self(samples.into_iter().collect())
    }
}

/// Jain's index of fairness: 1 if all shares are equal, 1/n if one has everything; no number if there is nothing.
pub fn jain(shares: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
    sum * sum / (shares.len() as f64 * squares)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples: Samples = (1..=101).rev().map(f64::from).collect();
        assert_eq!(samples.percentiles([0.0, 50.0, 99.0, 100.0]), [1.0, 51.0, 100.0, 101.0]);
        assert_eq!((samples.median(), samples.mean()), (51.0, 51.0));
        assert!(Samples::default().median().is_nan());
    }

    #[test]
    fn equal_shares_are_fair_and_one_for_all_is_not() {
        assert_eq!(jain(&[5.0, 5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
        assert!(jain(&[0.0, 0.0]).is_nan());
    }
}
