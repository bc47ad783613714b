//! The store dies under many leases: how late losses are told, and what the outage costs the client.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::servers::Redis;

use super::seconds;
use crate::bench::Bench;
use crate::contestant::Contestant;

const NAME: &str = "outage";
/// Of so many leases the losses are waited for.
const WATCHED: usize = 200;

fn ttl(bench: &Bench) -> Duration {
    bench.plan.choose(Duration::from_secs(10), Duration::from_secs(2))
}

/// Leases, and how many of them have a task that waits for the loss.
fn sizes(bench: &Bench) -> Vec<(usize, usize)> {
    bench.plan.choose(vec![(10_000, WATCHED), (100_000, WATCHED), (100_000, 100_000)], vec![(1_000, 1_000)])
}

/// Twice the ttl and a little from the first lease to the last clean-up.
fn span(ttl: Duration, leases: usize) -> Duration {
    ttl * 5 / 2 + Duration::from_secs(1) + seconds(leases as f64 / 30_000.0)
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let round: Duration = sizes(bench).iter().map(|(leases, _)| span(ttl(bench), *leases)).sum();
    round * u32::try_from(bench.plan.rounds).unwrap_or(u32::MAX)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let (ttl, contestants) = (ttl(bench), bench.tenure_over("redis"));
    let cell = |(leases, watched): &(usize, usize)| json!({ "leases": leases, "watched": watched });
    let params: Vec<(Value, usize)> = sizes(bench).iter().map(|size| (cell(size), bench.plan.rounds)).collect();
    bench.rounds(NAME, &params, |_, _| contestants.clone(), |contestant, params, _| measure(contestant, params, ttl))
}

fn measure(contestant: &Contestant, params: &Value, ttl: Duration) -> Result<Value, String> {
    let server = Redis::start();
    let leases = usize::try_from(params["leases"].as_u64().unwrap_or(0)).unwrap_or(0);
    let order = json!({
        "urls": [server.url()],
        "ttl_ms": ttl.as_millis() as u64,
        "leases": leases,
        "watched": params["watched"],
        "prefix": "bench/outage",
    });
    let mut holder = contestant.start(NAME, order, span(ttl, leases))?;
    holder.expect("held")?;
    // Each is renewed once, so that the server dies in the midst of an ordinary day.
    thread::sleep(ttl / 3);
    server.kill();
    holder.tell("dead")?;
    holder.result()
}
