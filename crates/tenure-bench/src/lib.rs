//! What the benchmarks share: clocks and the report. Samples are those of [`tenure_load`].
#![allow(clippy::unwrap_used, clippy::expect_used)] // a benchmark that cannot run says so and stops

use std::io::Write as _;

use serde_json::{Value, json};
use tenure::clock::{Clock as _, SystemClock};
pub use tenure_load::{Samples, cpu_time};

/// Microseconds since boot: the same clock in every process of the machine.
pub fn now_micros() -> u64 {
    SystemClock.now().as_micros()
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
