//! Redis, against what the server itself can do.
//!
//! `cargo bench -p tenure-bench --bench redis [-- NAME]`; `TENURE_BENCH_RUNS=FILE` keeps the raw runs. Starts a server
//! of its own without persistence. Each figure is taken side by side with its limit, in rounds, and told as a ratio.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod crowd;
mod hot;
mod leases;
mod limit;
mod pairs;
mod waiters;

use tenure_bench::Report;
use tenure_testkit::servers::Redis;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if arguments.first().is_some_and(|role| role == "--contend") {
        return hot::contend(&arguments[1..]);
    }
    let chosen = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    let mut report = Report::open();
    let server = Redis::start();
    if chosen("pairs") {
        pairs::throughput(&server, &mut report);
    }
    if chosen("latency") {
        pairs::latency(&server, &mut report);
    }
    if chosen("hot") {
        hot::processes(&server, &mut report);
    }
    if chosen("crowd") {
        crowd::one_process(&server, &mut report);
    }
    if chosen("waiters") {
        waiters::growing(&server, &mut report);
    }
    if chosen("leases") {
        leases::held(&server, &mut report);
    }
}
