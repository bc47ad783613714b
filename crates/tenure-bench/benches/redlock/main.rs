//! Redlock over five servers, against one server in the same run.
//!
//! `cargo bench -p tenure-bench --bench redlock [-- NAME]`; `TENURE_BENCH_RUNS=FILE` keeps the raw runs. Starts servers
//! of its own without persistence.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod acquire;
mod contend;
mod pairs;

use tenure_bench::Report;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|role| role == "--contend") {
        return contend::process(&arguments[1..]);
    }
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    let mut report = Report::open();
    if chosen("acquire") {
        acquire::latency(&mut report);
    }
    if chosen("pairs") {
        pairs::throughput(&mut report);
    }
    if chosen("contend") {
        contend::fairness(&mut report);
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
