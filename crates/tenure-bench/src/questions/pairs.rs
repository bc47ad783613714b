//! Acquire and release of names that nobody else wants: one task for the latency, many for the throughput.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::servers::Redis;

use super::seconds;
use crate::bench::Bench;
use crate::contestant::Contestant;
use crate::limit;
use crate::plan::Plan;
use crate::server::Looker;
use crate::stores::{self, OTHERS, Other};

const NAME: &str = "pairs";
const TASKS: [usize; 4] = [1, 16, 256, 1_024];
/// At how many tasks `redis-benchmark` takes its turn; the others of the round are held against the same.
const LIMIT_AT: usize = 256;
/// Names of each task, in turn.
const NAMES: usize = 100;

/// What `redis-benchmark` is called among the contestants.
pub const LIMIT: &str = "redis-benchmark";

/// Seconds to warm up and to count: with many tasks a pair of a slow contestant takes more than one.
fn spans(plan: &Plan, contestant: &Contestant, tasks: usize) -> (f64, f64) {
    // Long enough for every task to have ended a pair: the first opens a connection with some.
    let warmup = match tasks {
        _ if contestant.starts_slowly() => 3.0,
        ..=256 => 0.5,
        _ => 2.0,
    };
    let counted = if tasks > 256 { 1.5 } else { 0.6 };
    plan.choose((warmup, counted), (0.1, 0.3))
}

/// Those over another store, and its limit.
fn over(bench: &Bench, store: &Other) -> Vec<Contestant> {
    let mut all = bench.over(store.name);
    if !all.is_empty() {
        all.extend(store.limit.map(|limit| limit()));
    }
    all
}

fn contestants(bench: &Bench, tasks: usize) -> Vec<Contestant> {
    let mut all = bench.over("redis");
    if all.is_empty() {
        return all;
    }
    if tasks == 1 {
        all.push(Contestant::classic());
    }
    if tasks == LIMIT_AT {
        all.push(Contestant { peer: LIMIT.into(), ..Contestant::classic() });
        all.push(Contestant::recorded());
    }
    all
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let cell = |contestant: &Contestant, tasks| {
        let (warmup, counted) = spans(&bench.plan, contestant, tasks);
        contestant.starts_s() + warmup + counted + 0.1
    };
    let cells = |tasks| contestants(bench, tasks).iter().map(|one| cell(one, tasks)).sum::<f64>();
    let others: Vec<Contestant> = OTHERS.iter().flat_map(|store| over(bench, store)).collect();
    let others = |tasks| others.iter().map(|one| cell(one, tasks)).sum::<f64>();
    let round = TASKS.map(cells).iter().sum::<f64>() + stores::TASKS.map(others).iter().sum::<f64>() + 2.0;
    seconds(round * bench.plan.rounds as f64)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let mut looker = Looker::new(&server)?;
    let plan = bench.plan.clone();
    let requests = bench.plan.choose(200_000, 20_000);
    let who: Vec<Vec<Contestant>> = TASKS.iter().map(|tasks| contestants(bench, *tasks)).collect();
    let params = TASKS.map(|tasks| (json!({ "tasks": tasks }), bench.plan.rounds));
    let index = |params: &Value| TASKS.iter().position(|tasks| params["tasks"] == *tasks).unwrap_or(0);
    let of = |params: &Value, _| who[index(params)].clone();
    bench.rounds(NAME, &params, of, |contestant, params, _| {
        let outcome = if contestant.peer == LIMIT {
            limit::pairs(&server, requests)
        } else {
            let urls = [server.url().to_owned()];
            let spans = spans(&plan, contestant, TASKS[index(params)]);
            measure(contestant, &urls, &params["tasks"], spans, Some(&mut looker))
        };
        looker.flush()?;
        outcome
    })?;
    OTHERS.iter().try_for_each(|store| ask_over(bench, store))
}

fn ask_over(bench: &mut Bench, store: &Other) -> Result<(), String> {
    let who = over(bench, store);
    if who.is_empty() {
        return Ok(());
    }
    let (server, plan) = ((store.start)(), bench.plan.clone());
    let urls = server.urls();
    let params = stores::TASKS.map(|tasks| (json!({ "tasks": tasks }), bench.plan.rounds));
    bench.rounds(
        NAME,
        &params,
        |_, _| who.clone(),
        |contestant, params, _| {
            let tasks = params["tasks"].as_u64().unwrap_or(1) as usize;
            measure(contestant, &urls, &params["tasks"], spans(&plan, contestant, tasks), None)
        },
    )
}

/// Pairs of one contestant, with the rate and what a pair costs client and server.
///
/// # Errors
///
/// If it fails or takes too long.
pub fn measure(
    contestant: &Contestant,
    urls: &[String],
    tasks: &Value,
    (warmup, counted): (f64, f64),
    mut looker: Option<&mut Looker>,
) -> Result<Value, String> {
    let mut look = || looker.as_mut().map(|looker| looker.look()).transpose();
    let before = look()?;
    let order = json!({ "urls": urls, "tasks": tasks, "names": NAMES, "prefix": format!("bench/{NAME}"),
        "warmup_s": warmup, "seconds": counted });
    let mut result = contestant.ask("pairs", order, seconds(warmup + counted))?;
    let after = look()?;
    let number = |field: &str| result[field].as_f64().ok_or_else(|| format!("no {field} in {result}"));
    let (pairs, all, span) = (number("pairs")?, number("all")?, number("seconds")?);
    let client = number("cpu_s")? * 1e6 / pairs;
    if pairs == 0.0 {
        return Err(format!("not one pair in {span} s"));
    }
    result["pairs_per_s"] = json!(pairs / span);
    result["client_us_per_pair"] = json!(client);
    if let (Some(before), Some(after)) = (before, after) {
        let used = after.cpu_s - before.cpu_s;
        result["server_cpu_s"] = json!(used);
        // The server is looked at from before the warm-up on.
        result["server_us_per_pair"] = json!(used * 1e6 / all);
    }
    Ok(result)
}
