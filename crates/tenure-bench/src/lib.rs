//! What the benchmarks share: samples, clocks and the report.
#![allow(clippy::unwrap_used, clippy::expect_used)] // a benchmark that cannot run says so and stops

use std::io::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::clock::{Clock as _, SystemClock};

/// Microseconds since boot: the same clock in every process of the machine.
pub fn now_micros() -> u64 {
    SystemClock.now().as_micros()
}

/// The CPU time this process has used.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Measurements of one thing.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one.
    pub fn push(&mut self, sample: f64) {
        self.0.push(sample);
    }

    /// The sample that `percent` of all do not exceed.
    pub fn percentile(&self, percent: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (percent / 100.0 * (sorted.len().max(1) - 1) as f64).round() as usize;
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }

    /// Adds those of another.
    pub fn append(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
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

/// Prints rows for people on standard output, and appends raw runs as JSON lines to `$TENURE_BENCH_RUNS`.
#[derive(Debug)]
pub struct Report {
    runs: Option<std::fs::File>,
}

impl Report {
    /// Opens the file of raw runs, if one is named.
    pub fn open() -> Self {
        let runs = std::env::var_os("TENURE_BENCH_RUNS").map(|path| {
            std::fs::OpenOptions::new().create(true).append(true).open(path).expect("the file of raw runs")
        });
        Self { runs }
    }

    /// One figure and what it must reach.
    pub fn row(&mut self, what: &str, figure: &str, goal: &str, met: bool, raw: &Value) {
        let verdict = if met { "reached" } else { "NOT reached" };
        println!("{what:<62} {figure:>24}   goal {goal:<18} {verdict}");
        if let Some(runs) = &mut self.runs {
            let line = json!({ "what": what, "figure": figure, "goal": goal, "reached": met, "raw": raw });
            writeln!(runs, "{line}").expect("a line of raw runs");
        }
    }
}
