//! What an operation costs the server as the queue of a name grows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tenure::Name;
use tenure::backend::{Backend as _, ClaimRequest, RenewRequest};
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure_testkit::plain_request;
use tenure_testkit::servers::Redis;

use super::seconds;
use crate::bench::{Bench, Cell};
use crate::server::Looker;

const NAME: &str = "waiters";
const OPS: usize = 200;
const TTL: Duration = Duration::from_secs(600);

fn sizes(bench: &Bench) -> Vec<usize> {
    bench.plan.choose(vec![1, 10, 100, 1_000, 10_000], vec![1, 10, 100])
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let waiters: usize = sizes(bench).iter().sum();
    seconds((0.5 * sizes(bench).len() as f64 + waiters as f64 / 8_000.0) * bench.plan.rounds as f64)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let mut looker = Looker::new(&server)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let sizes = sizes(bench);
    for round in 1..=bench.plan.rounds {
        for (index, waiters) in sizes.iter().enumerate() {
            let done = (round - 1) * sizes.len() + index;
            bench.progress(NAME, done, sizes.len() * bench.plan.rounds, &format!("{waiters} waiters, round {round}"));
            let outcome = runtime.block_on(measure(&server, &mut looker, *waiters));
            let params = json!({ "waiters": waiters });
            let cell = Cell { question: NAME, contestant: "tenure", store: "redis", params: &params };
            bench.note(&cell, round, outcome)?;
            looker.flush()?;
        }
    }
    Ok(())
}

/// A claim as the engine makes it.
pub(super) fn claim(ttl: Duration) -> ClaimRequest {
    ClaimRequest { ttl, label: "bench".into(), solo: true, ..plain_request() }
}

/// In a queue of this length: a claim that joins it, a renewal anywhere in it, a release that hands the name on.
async fn measure(server: &Redis, looker: &mut Looker, waiters: usize) -> Result<Value, String> {
    let wrong = |error: tenure::Error| error.to_string();
    let backend = RedisBackend::open(server.url(), Arc::new(SystemClock)).await.map_err(wrong)?;
    let name = Name::new(format!("bench/queue/{waiters}")).map_err(|error| error.to_string())?;
    let mut queue = VecDeque::new();
    while queue.len() <= waiters {
        let some: Vec<ClaimRequest> = (queue.len()..=waiters).take(256).map(|_| claim(TTL)).collect();
        queue.extend(some.iter().map(|request| request.id));
        try_join_all(some.into_iter().map(|request| backend.claim(&name, request))).await.map_err(wrong)?;
    }
    // One after the other, so that the queue stays as long as it is.
    let ops = ["claim", "renew", "release"];
    let mut sums = [(0.0, 0.0); 3];
    for turn in 0..OPS {
        for (op, sum) in ops.iter().zip(&mut sums) {
            let before = looker.look()?;
            match *op {
                "claim" => {
                    let request = claim(TTL);
                    queue.push_back(request.id);
                    backend.claim(&name, request).await.map_err(wrong)?;
                }
                "renew" => {
                    let id = queue[(queue.len() - 1) * turn / OPS];
                    backend
                        .renew(vec![RenewRequest { name: name.clone(), id, ttl: TTL }], false)
                        .await
                        .map_err(wrong)?;
                }
                _ => {
                    let Some(head) = queue.pop_front() else { break };
                    backend.release(&name, head, None).await.map_err(wrong)?;
                }
            }
            let after = looker.look()?;
            sum.0 += after.script_us - before.script_us;
            sum.1 += (after.commands - before.commands) - (after.scripts - before.scripts);
        }
    }
    let mut result = json!({});
    for (op, (micros, calls)) in ops.iter().zip(sums) {
        result[op] = json!({ "server_us": micros / OPS as f64, "calls": calls / OPS as f64 });
    }
    Ok(result)
}
