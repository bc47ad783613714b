//! The engine on memory and the embedded store, against the figures they have to reach.
//!
//! `cargo bench -p tenure-bench --bench embedded [-- NAME]`; `TENURE_BENCH_RUNS=FILE` keeps the raw runs.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod command;
mod leases;
mod pairs;
mod wake;

use tenure_bench::{Report, now_micros};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.first().map(String::as_str) {
        // Roles this program plays for its own measurements.
        Some("--stamp") => return println!("{}", now_micros()),
        Some("--wait-in-line") => return wake::wait_in_line(&arguments[1]),
        _ => {}
    }
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    let mut report = Report::open();
    if chosen("pairs") {
        pairs::uncontended(&mut report);
    }
    if chosen("handover") {
        pairs::hand_over(&mut report);
    }
    if chosen("leases") {
        leases::held(&mut report);
    }
    if chosen("wake") {
        wake::across_processes(&mut report);
    }
    if chosen("command") {
        command::start(&mut report);
    }
}
