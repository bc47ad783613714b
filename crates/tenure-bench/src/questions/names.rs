//! What a pair costs while many other names are held, and what a name costs the server.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tenure::Name;
use tenure::backend::{Backend as _, ReleaseRequest};
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::Redis;

use super::{seconds, waiters};
use crate::bench::{Bench, Cell};
use crate::questions::pairs;
use crate::server::Looker;

const NAME: &str = "names";
/// Longer than the question takes: nothing is renewed meanwhile.
const TTL: Duration = Duration::from_secs(3_600);
const AT_A_TIME: usize = 512;

fn sizes(bench: &Bench) -> Vec<usize> {
    bench.plan.choose(vec![1, 10, 100, 1_000, 10_000, 100_000, 1_000_000], vec![1, 10, 100, 1_000])
}

fn spans(bench: &Bench) -> (f64, f64) {
    bench.plan.choose((0.1, 0.4), (0.1, 0.2))
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let (warmup, counted) = spans(bench);
    let cells = sizes(bench).len() * bench.plan.rounds;
    let most = sizes(bench).last().copied().unwrap_or(0) as f64;
    seconds(cells as f64 * (warmup + counted + 0.2) + most / 20_000.0)
}

/// The names grow once; at each size, pairs are measured in all rounds.
///
/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let mut looker = Looker::new(&server)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let opened = runtime.block_on(RedisBackend::open(server.url(), Arc::new(SystemClock)));
    let backend = opened.map_err(|error| error.to_string())?;
    let tenure = bench.tenure_over("redis");
    let tenure = tenure.first().ok_or("tenure has no Redis")?;
    let (urls, spans, sizes) = ([server.url().to_owned()], spans(bench), sizes(bench));
    // Once, so that scripts and connections are not counted as names.
    let mut first = Vec::new();
    runtime.block_on(hold(&backend, &mut first, 1))?;
    runtime.block_on(release(&backend, &first))?;
    let empty = looker.look()?.memory;
    let mut held: Vec<ReleaseRequest> = Vec::new();
    for (index, names) in sizes.iter().enumerate() {
        bench.progress(NAME, index, sizes.len(), &format!("{names} names held"));
        runtime.block_on(hold(&backend, &mut held, *names))?;
        let bytes = (looker.look()?.memory - empty) / *names as f64;
        for round in 1..=bench.plan.rounds {
            let outcome = pairs::measure(tenure, &urls, &json!(1), spans, Some(&mut looker));
            let outcome = outcome.map(|result| with(result, "server_bytes_per_name", bytes));
            let params = json!({ "names": names });
            let cell = Cell { question: NAME, contestant: "tenure", store: "redis", params: &params };
            bench.note(&cell, round, outcome)?;
        }
    }
    runtime.block_on(release(&backend, &held))?;
    // What is left once all are released again.
    let idle = (looker.look()?.memory - empty) / held.len().max(1) as f64;
    let params = json!({ "part": "released", "names": held.len() });
    let cell = Cell { question: NAME, contestant: "tenure", store: "redis", params: &params };
    bench.note(&cell, 1, Ok(json!({ "server_bytes_per_name": idle })))
}

fn with(mut result: Value, field: &str, value: f64) -> Value {
    result[field] = json!(value);
    result
}

fn name(number: usize) -> Result<Name, String> {
    Name::new(format!("bench/held/{number}")).map_err(|error| error.to_string())
}

/// Claims names until this many are held.
async fn hold(backend: &RedisBackend, held: &mut Vec<ReleaseRequest>, names: usize) -> Result<(), String> {
    while held.len() < names {
        let mut claims = Vec::new();
        for number in (held.len()..names).take(AT_A_TIME) {
            let request = waiters::claim(TTL);
            held.push(ReleaseRequest::of(&request));
            claims.push(backend.claim(&name(number)?, request));
        }
        try_join_all(claims).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn release(backend: &RedisBackend, held: &[ReleaseRequest]) -> Result<(), String> {
    for (chunk, requests) in held.chunks(AT_A_TIME).enumerate() {
        let mut releases = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            releases.push(backend.release(&name(chunk * AT_A_TIME + index)?, request.clone()));
        }
        try_join_all(releases).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}
