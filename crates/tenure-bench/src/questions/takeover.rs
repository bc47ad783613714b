//! A holder is killed while another process waits: how long the lock stays with the dead.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_load::epoch_micros;
use tenure_testkit::servers::Redis;

use super::seconds;
use crate::bench::{Bench, Cell};
use crate::child::Child;
use crate::contestant::Contestant;
use crate::stores::OTHERS;

const NAME: &str = "takeover";
const TTL: Duration = Duration::from_secs(2);
/// Holders that renew do so at a third of the ttl, mostly; a kill comes at any time between two renewals.
const PHASES: Duration = Duration::from_millis(667);
/// How long the next one may take before it is given up.
const LIMIT: Duration = Duration::from_secs(30);

fn contestants(bench: &Bench) -> Vec<Contestant> {
    let mut all = bench.over("redis");
    all.extend(bench.tenure_over("embedded"));
    all.extend(OTHERS.iter().flat_map(|store| bench.over(store.name)));
    all
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let starts: f64 = contestants(bench).iter().map(|one| 2.0 * one.starts_s() + 0.4).sum();
    seconds((starts + TTL.as_secs_f64()) * bench.plan.rounds as f64)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = format!("sqlite:{}", folder.path().join("takeover.db").display());
    let others = OTHERS.iter().filter(|store| bench.plan.measures(store.name));
    let others: Vec<_> = others.map(|store| (store.name, (store.start)())).collect();
    let urls_of = |store: &str| match store {
        "redis" => vec![server.url().to_owned()],
        "embedded" => vec![file.clone()],
        _ => others.iter().find(|(name, _)| *name == store).map_or_else(Vec::new, |(_, server)| server.urls()),
    };
    let all = contestants(bench);
    let params = json!({ "ttl_ms": TTL.as_millis() as u64 });
    let of = bench.plan.rounds * all.len();
    for round in 1..=bench.plan.rounds {
        let mut order = all.clone();
        order.rotate_left((round - 1) % all.len());
        // While one waits for the lease of the dead to end, the next pair is started.
        let mut takers = Vec::new();
        for (index, contestant) in order.iter().enumerate() {
            let Contestant { peer, store, .. } = contestant;
            let phase = PHASES.mul_f64(phase(round * all.len() + index));
            let done = (round - 1) * all.len() + index;
            bench.progress(NAME, done, of, &format!("{peer} over {store}, round {round}"));
            let urls = urls_of(store);
            let name = format!("bench/{NAME}/{round}/{index}");
            takers.push((contestant, phase, begin(contestant, &urls, &name, phase)));
        }
        for (contestant, phase, taker) in takers {
            let outcome = taker.and_then(|(killed, taker)| end(killed, taker, phase));
            let cell = Cell { question: NAME, contestant: &contestant.peer, store: &contestant.store, params: &params };
            bench.note(&cell, round, outcome)?;
        }
    }
    Ok(())
}

/// Values between 0 and 1 that lie apart from each other, however many are taken.
fn phase(index: usize) -> f64 {
    (index as f64 * 0.618_033_988_75).fract()
}

/// When the holder was killed, and who waits for the lock.
fn begin(contestant: &Contestant, urls: &[String], name: &str, phase: Duration) -> Result<(u64, Child), String> {
    let order = json!({ "urls": urls, "name": name, "ttl_ms": TTL.as_millis() as u64 });
    let mut holder = contestant.start("hold", order.clone(), LIMIT)?;
    holder.expect("held")?;
    let mut taker = contestant.start("take", order, LIMIT)?;
    taker.expect("asking")?;
    // At least a little, so that its first try is over.
    thread::sleep(Duration::from_millis(100) + phase);
    let killed = epoch_micros();
    holder.kill();
    Ok((killed, taker))
}

fn end(killed: u64, taker: Child, phase: Duration) -> Result<Value, String> {
    let result = taker.result()?;
    let got = result["got_us"].as_f64().ok_or_else(|| format!("no got_us in {result}"))?;
    let after_ms = (got - killed as f64) / 1e3;
    if after_ms < 0.0 {
        return Err(format!("another had the lock {:.0} ms before the holder was killed", -after_ms));
    }
    Ok(json!({ "after_ms": after_ms, "phase_ms": phase.as_secs_f64() * 1e3 }))
}
