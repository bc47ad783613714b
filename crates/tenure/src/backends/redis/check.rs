//! The scripts follow the machine: the same random history goes to both, answer by answer, message by message and
//! state by state, in the server's own time. Tokens and append numbers are compared by their order in each name.
//!
//! `TENURE_HISTORIES` says how many histories; `TENURE_SEED` replays one that a failure printed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod compare;
mod coverage;
mod history;
mod lane;
mod last;
mod memos;
mod mutants;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tenure_testkit::servers::{Redis, without_expiry};

use self::coverage::Coverage;
use self::lane::{Lane, Mismatch};
use super::script::{MEMO, NATIVE, Script};

/// Histories in the plain form, and in that of a cluster.
const HISTORIES: [u64; 2] = [3_000, 600];
/// How often they are run until all corners are met.
const BATCHES_MAX: usize = 4;

/// How a lane talks to the server.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// As to one server, rather than as to a cluster.
    per_server: bool,
    /// The client has seen tokens a little above the server's clock.
    ahead: bool,
}

/// The scripts as they are sent.
#[derive(Clone)]
struct Scripts {
    native: String,
    memo: String,
}

impl Scripts {
    fn sent() -> Self {
        Self { native: script(), memo: text(&MEMO) }
    }
}

/// The script of claims.
fn script() -> String {
    text(&NATIVE)
}

fn text(script: &Script) -> String {
    let call = script.call(true);
    let Some(redis::Arg::Simple(text)) = call.args_iter().nth(1) else { panic!("not a call of a script") };
    String::from_utf8(text.to_vec()).unwrap()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs histories in two lanes at once, with the seeds from `seed` on.
fn run(scripts: &Scripts, per_server: bool, histories: u64, seed: u64) -> Result<Coverage, Mismatch> {
    let server = Redis::start();
    let forms = [Form { per_server, ahead: false }, Form { per_server, ahead: true }];
    let share = histories.div_ceil(2);
    let stop = Arc::new(AtomicBool::new(false));
    let results: Vec<_> = std::thread::scope(|scope| {
        let lanes: Vec<_> = forms
            .into_iter()
            .map(|form| {
                let (url, stop) = (server.url(), stop.clone());
                scope.spawn(move || Lane::open(url, scripts, form, seed, stop).run(url, share))
            })
            .collect();
        let panicked = |_| Err(Mismatch { seed, log: "a lane panicked: see above".to_owned() });
        lanes.into_iter().map(|lane| lane.join().unwrap_or_else(panicked)).collect()
    });
    let coverage = results.into_iter().try_fold(Coverage::default(), |sum, result| Ok(sum.plus(result?)))?;
    match without_expiry(&server) {
        kept if kept.is_empty() => Ok(coverage),
        kept => Err(Mismatch { seed, log: format!("kept for ever: {kept:#?}") }),
    }
}

fn check(per_server: bool) {
    let seed = variable("TENURE_SEED");
    let usual = if seed.is_some() { 2 } else { HISTORIES[usize::from(!per_server)] };
    let histories = variable("TENURE_HISTORIES").unwrap_or(usual);
    let mut met = Coverage::default();
    // On a busy machine the histories that meet the rare corners are spoiled more often than others: then some more
    // are run.
    for _ in 0..BATCHES_MAX {
        match run(&Scripts::sent(), per_server, histories, seed.unwrap_or_else(rand::random)) {
            Ok(coverage) => met = met.plus(coverage),
            Err(Mismatch { seed, log }) => {
                panic!("{log}\nthe script does not follow the machine: replay with TENURE_SEED={seed}")
            }
        }
        if histories < usual || seed.is_some() {
            return eprintln!("{met:#?}");
        }
        if met.rare().is_empty() {
            break;
        }
    }
    met.assert_complete(per_server);
}

#[test]
fn the_script_follows_the_machine() {
    check(true);
}

#[test]
fn the_script_follows_the_machine_in_a_cluster() {
    check(false);
}
