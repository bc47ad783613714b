//! The engine on memory, the embedded store, and the command against `flock`.

mod command;
mod engine;
mod wake;

use std::time::Duration;

use serde_json::{Value, json};

use super::seconds;
use crate::bench::{Bench, Cell};
use crate::contest::Contest;
use crate::contestant::Contestant;
use crate::questions::pairs;

pub use command::stamp;
pub use wake::wait_in_line;

const NAME: &str = "embedded";
/// In which each lease is renewed once.
const HELD_SPAN: f64 = 3.4;

/// How much of everything, in one round.
#[derive(Clone, Copy)]
struct Amounts {
    pairs: u32,
    turns: u32,
    leases: usize,
    wakes: usize,
    starts: usize,
    span: f64,
}

fn amounts(bench: &Bench) -> Amounts {
    let full = Amounts { pairs: 200_000, turns: 500, leases: 100_000, wakes: 400, starts: 40, span: 0.8 };
    let quick = Amounts { pairs: 20_000, turns: 50, leases: 1_000, wakes: 50, starts: 5, span: 0.3 };
    bench.plan.choose(full, quick)
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    seconds(bench.plan.rounds as f64 * bench.plan.choose(16.0, 9.0))
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let amounts = amounts(bench);
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let memory = bench.tenure_over("memory").into_iter().next();
    let embedded = bench.tenure_over("embedded").into_iter().next();
    let missing = || "tenure is not listed over it".to_owned();
    let of = bench.plan.rounds * PARTS.len();
    for round in 1..=bench.plan.rounds {
        for (index, (part, store, more)) in PARTS.iter().enumerate() {
            bench.progress(NAME, (round - 1) * PARTS.len() + index, of, &format!("{part}, {store}, round {round}"));
            let mut params = json!({ "part": part });
            more.iter().for_each(|(key, value)| params[*key] = json!(value));
            if *part == "held" {
                params["leases"] = json!(amounts.leases);
            }
            let outcome: Vec<(&str, Result<Value, String>)> = match *part {
                "pair" => vec![("tenure", engine::pair(amounts.pairs))],
                "hand-over" => vec![("tenure", engine::hand_over(amounts.turns, more[0].1))],
                "held" => {
                    let held = memory.as_ref().ok_or_else(missing).and_then(|memory| held(memory, amounts.leases));
                    vec![("tenure", held)]
                }
                "pairs" => {
                    let urls = [file.clone()];
                    let (tasks, spans) = (json!(more[0].1), (0.2, amounts.span));
                    let measured = embedded.as_ref().ok_or_else(missing);
                    let measured = measured.and_then(|tenure| pairs::measure(tenure, &urls, &tasks, spans, None));
                    vec![("tenure", measured)]
                }
                "hot" => {
                    let contest = embedded.as_ref().ok_or_else(missing);
                    let contest = contest.and_then(|tenure| hot(tenure, &file, more[0].1, amounts.span));
                    vec![("tenure", contest)]
                }
                "wake" => vec![("tenure", wake::across_processes(&file, amounts.wakes))],
                _ => command::start(folder.path(), amounts.starts).into(),
            };
            for (contestant, outcome) in outcome {
                let cell = Cell { question: NAME, contestant, store, params: &params };
                bench.note(&cell, round, outcome)?;
            }
        }
    }
    Ok(())
}

type Part = (&'static str, &'static str, &'static [(&'static str, usize)]);

/// What is measured in each round: part, store and parameters.
const PARTS: [Part; 9] = [
    ("pair", "memory", &[]),
    ("hand-over", "memory", &[("threads", 1)]),
    ("hand-over", "memory", &[("threads", 2)]),
    ("held", "memory", &[]),
    ("pairs", "embedded", &[("tasks", 1)]),
    ("pairs", "embedded", &[("tasks", 256)]),
    ("hot", "embedded", &[("processes", 8)]),
    ("wake", "embedded", &[]),
    ("command", "embedded", &[]),
];

fn held(memory: &Contestant, leases: usize) -> Result<Value, String> {
    let order = json!({ "urls": ["memory:"], "leases": leases, "prefix": "bench/held", "seconds": HELD_SPAN });
    memory.ask("leases", order, seconds(HELD_SPAN))
}

fn hot(tenure: &Contestant, file: &str, processes: usize, span: f64) -> Result<Value, String> {
    let contest = Contest {
        contestant: tenure,
        urls: &[file.to_owned()],
        prefix: "bench/hot",
        processes,
        tasks: 1,
        seconds: span,
        patience: Duration::from_secs(30),
    };
    contest.hold(None)
}
