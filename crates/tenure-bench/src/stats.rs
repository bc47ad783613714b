//! Arithmetic on measurements.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tenure_load::{Samples, jain};

/// The sample that `percent` of all do not exceed; not a number if there is none.
pub fn percentile(samples: &[f64], percent: f64) -> f64 {
    let mut all = Samples::default();
    samples.iter().for_each(|sample| all.push(*sample));
    all.percentile(percent)
}

/// What is told of a measurement that was repeated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The middle of all rounds; between the two in the middle, if they are even in number.
    pub median: f64,
    /// The least of all rounds.
    pub min: f64,
    /// The greatest of all rounds.
    pub max: f64,
    /// How many rounds there were.
    pub rounds: usize,
}

impl Figure {
    /// The figure of these rounds, if there were any.
    pub fn of(rounds: &[f64]) -> Option<Self> {
        let mut sorted = rounds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, min, max, rounds: rounds.len() })
    }
}

/// How often a lock went to another owner than the one before, given who got it when.
pub fn transfers<Owner: PartialEq>(turns: &mut [(f64, Owner)]) -> usize {
    turns.sort_by(|one, other| one.0.total_cmp(&other.0));
    turns.windows(2).filter(|pair| pair[0].1 != pair[1].1).count()
}

/// What the processes of a contest for one name said, as one result.
///
/// # Errors
///
/// If an answer is not what the protocol has for `hot`.
pub fn contest(answers: &[Value], tasks: usize, seconds: f64) -> Result<Value, String> {
    let mut turns = Vec::new();
    let (mut waits, mut cpu) = (Vec::new(), 0.0);
    let mut shares: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (process, answer) in answers.iter().enumerate() {
        shares.extend((0..tasks).map(|task| ((process, task), 0.0)));
        let listed = |field: &str| {
            answer[field].as_array().ok_or_else(|| format!("an answer without {field}: {}", shortened(answer)))
        };
        let number = |value: &Value| value.as_f64().ok_or_else(|| format!("{value} is not a number"));
        for turn in listed("turns")? {
            let (got, wait, task) = (number(&turn[0])?, number(&turn[1])?, number(&turn[2])? as usize);
            if got <= seconds * 1e6 {
                turns.push((got, (process, task)));
                waits.push(wait);
                *shares.entry((process, task)).or_default() += 1.0;
            }
        }
        // A wait that is not over is at least as long as it has lasted; without it those who starve would be left out.
        for wait in listed("waiting")? {
            waits.push(number(&wait[1])?);
        }
        cpu += answer["cpu_s"].as_f64().unwrap_or(f64::NAN);
    }
    if turns.is_empty() {
        return Err(format!("nobody got the lock in {seconds} s"));
    }
    let shares: Vec<f64> = shares.into_values().collect();
    Ok(json!({
        "acquisitions_per_s": turns.len() as f64 / seconds,
        "transfers_per_s": transfers(&mut turns) as f64 / seconds,
        "wait_p50_us": percentile(&waits, 50.0),
        "wait_p99_us": percentile(&waits, 99.0),
        "wait_max_us": percentile(&waits, 100.0),
        "jain": jain(&shares),
        "without_a_turn": shares.iter().filter(|share| **share == 0.0).count(),
        "acquisitions": turns.len(),
        "cpu_s": cpu,
        "client_us_per_acquisition": cpu * 1e6 / turns.len() as f64,
    }))
}

/// The beginning of a value, for a message.
pub fn shortened(value: &Value) -> String {
    value.to_string().chars().take(200).collect()
}
