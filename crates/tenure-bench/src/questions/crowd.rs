//! A thousand tasks of one process on one name.

use std::time::Duration;

use serde_json::json;
use tenure_testkit::servers::Redis;

use super::{each, seconds};
use crate::bench::Bench;
use crate::contest::{Contest, lead};
use crate::server::Looker;

const NAME: &str = "crowd";
const TASKS: usize = 1_000;

fn span(bench: &Bench) -> f64 {
    bench.plan.choose(1.5, 0.5)
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let all = bench.over("redis");
    let leads = all.iter().map(lead).sum::<f64>() * bench.plan.rounds as f64;
    each(bench, &all, span(bench) + 0.8) + seconds(leads)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let mut looker = Looker::new(&server)?;
    let urls = [server.url().to_owned()];
    let (all, seconds) = (bench.over("redis"), span(bench));
    let rounds = bench.plan.rounds;
    bench.rounds(
        NAME,
        &[(json!({ "tasks": TASKS }), rounds)],
        |_, _| all.clone(),
        |contestant, _, _| {
            let contest = Contest {
                contestant,
                urls: &urls,
                prefix: "bench/crowd",
                processes: 1,
                tasks: TASKS,
                seconds,
                patience: Duration::from_secs(30),
            };
            let outcome = contest.hold(Some(&server));
            looker.flush()?;
            outcome
        },
    )
}
