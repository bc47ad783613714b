//! Several processes, one task each, all on one name.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::servers::Redis;

use super::seconds;
use crate::bench::{Bench, Cell};
use crate::contest::{Contest, lead, warmup_pairs};
use crate::contestant::Contestant;
use crate::server::Looker;
use crate::stores::{self, OTHERS, Other};

const NAME: &str = "hot";
/// With how many processes commands are counted.
const COUNTED_AT: usize = 8;
/// About how many pairs of the warm-up take as long as the start of a contestant.
const PAIRS_LIKE_A_START: f64 = 1_500.0;
/// Thirty-two Java machines start slowly on few cores, and warm up slowly.
const PATIENCE: Duration = Duration::from_secs(180);

fn processes(bench: &Bench) -> Vec<usize> {
    bench.plan.choose(vec![2, 8, 32], vec![2, 8])
}

/// Those who start slowly are asked once with thirty-two processes: else most of the run would be their starts.
fn asked(contestant: &Contestant, params: &Value, round: usize) -> bool {
    round == 1 || params["processes"].as_u64() <= Some(8) || !contestant.starts_slowly()
}

fn span(bench: &Bench) -> f64 {
    bench.plan.choose(1.0, 0.5)
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| usize::from(cores) as f64);
    let all = bench.over("redis");
    let cell = |contestant: &Contestant, processes: usize| {
        let warms_up = warmup_pairs(contestant, processes) as f64 / PAIRS_LIKE_A_START;
        lead(contestant)
            + span(bench)
            + 0.3
            + contestant.starts_s() * (1.0 + warms_up) * (processes as f64 / cores).max(1.0)
    };
    let in_round = |count: usize, round: usize| {
        let params = json!({ "processes": count });
        all.iter().filter(|one| asked(one, &params, round)).map(|one| cell(one, count)).sum::<f64>()
    };
    let in_rounds = |count: usize| (1..=bench.plan.rounds).map(|round| in_round(count, round)).sum::<f64>();
    let contests: f64 = processes(bench).into_iter().map(in_rounds).sum();
    let others = OTHERS.iter().flat_map(|store| bench.over(store.name));
    let others: f64 = others.map(|one| cell(&one, stores::PROCESSES)).sum();
    seconds(contests + in_round(COUNTED_AT, 1) + others * bench.plan.rounds as f64)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let mut looker = Looker::new(&server)?;
    let urls = [server.url().to_owned()];
    let (all, span) = (bench.over("redis"), span(bench));
    let params: Vec<(Value, usize)> =
        processes(bench).iter().map(|count| (json!({ "processes": count }), bench.plan.rounds)).collect();
    bench.rounds(
        NAME,
        &params,
        |params, round| all.iter().filter(|one| asked(one, params, round)).cloned().collect(),
        |contestant, params, _| {
            let processes = params["processes"].as_u64().unwrap_or(1) as usize;
            let outcome = contest(contestant, &urls, processes, span).hold(Some(&server));
            looker.flush()?;
            outcome
        },
    )?;
    let params = json!({ "part": "commands", "processes": COUNTED_AT });
    for (index, contestant) in all.iter().enumerate() {
        bench.progress(NAME, index, all.len(), &format!("commands of {}", contestant.peer));
        let outcome = contest(contestant, &urls, COUNTED_AT, span).count(&server);
        looker.flush()?;
        let cell = Cell { question: NAME, contestant: &contestant.peer, store: "redis", params: &params };
        bench.note(&cell, 1, outcome)?;
    }
    OTHERS.iter().try_for_each(|store| ask_over(bench, store))
}

fn ask_over(bench: &mut Bench, store: &Other) -> Result<(), String> {
    let (all, span) = (bench.over(store.name), span(bench));
    if all.is_empty() {
        return Ok(());
    }
    let server = (store.start)();
    let (urls, params) = (server.urls(), [(json!({ "processes": stores::PROCESSES }), bench.plan.rounds)]);
    bench.rounds(
        NAME,
        &params,
        |_, _| all.clone(),
        |contestant, _, _| contest(contestant, &urls, stores::PROCESSES, span).hold(None),
    )
}

fn contest<'a>(contestant: &'a Contestant, urls: &'a [String], processes: usize, seconds: f64) -> Contest<'a> {
    Contest { contestant, urls, prefix: "bench/hot", processes, tasks: 1, seconds, patience: PATIENCE }
}
