//! Leases that are held and renewed: CPU, memory, and what goes over the wire.

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::servers::Redis;

use super::seconds;
use crate::bench::Bench;
use crate::child::Child;
use crate::contestant::Contestant;
use crate::server::{Looker, Seen, Watch};

const NAME: &str = "held";
/// In which tenure and Redisson renew each lease once: at a third of the ttl of 10 s.
const SPAN_THIRD: f64 = 3.4;
/// In which anybody does.
const SPAN_TTL: f64 = 10.0;
/// Beyond that, all leases must be taken within this time.
const TAKING: Duration = Duration::from_secs(20);

fn sizes(bench: &Bench) -> Vec<usize> {
    bench.plan.choose(vec![1_000, 10_000, 100_000], vec![1_000])
}

fn span(contestant: &Contestant) -> f64 {
    let at_a_third = contestant.is_tenure() || contestant.library.contains("redisson");
    if at_a_third { SPAN_THIRD } else { SPAN_TTL }
}

/// Those who are asked, and those who are not, with the reason. The locks of one library share what renews them: the
/// first stands for all.
fn contestants(bench: &Bench) -> (Vec<Contestant>, Vec<(Contestant, String)>) {
    let (mut asked, mut left_out): (Vec<Contestant>, _) = (Vec::new(), Vec::new());
    for contestant in bench.over("redis") {
        match asked.iter().find(|one| one.library == contestant.library) {
            _ if !contestant.renews => left_out.push((contestant, "not asked: it does not renew what is held".into())),
            Some(first) => {
                let why = format!("not asked: it is renewed as {} is, of the same library", first.peer);
                left_out.push((contestant, why));
            }
            None => asked.push(contestant),
        }
    }
    (asked, left_out)
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let cell = |contestant: &Contestant, leases: usize| {
        let per_second = if contestant.is_tenure() { 30_000.0 } else { 12_000.0 };
        contestant.starts_s() + span(contestant) + 0.3 + leases as f64 / per_second
    };
    let (all, _) = contestants(bench);
    let round: f64 = sizes(bench).iter().map(|size| all.iter().map(|one| cell(one, *size)).sum::<f64>()).sum();
    seconds(round * bench.plan.rounds as f64)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let server = Redis::start();
    let mut looker = Looker::new(&server)?;
    let (all, left_out) = contestants(bench);
    for (contestant, why) in &left_out {
        bench.leave_out(NAME, contestant, why)?;
    }
    let rounds = bench.plan.rounds;
    let params: Vec<(Value, usize)> = sizes(bench).iter().map(|leases| (json!({ "leases": leases }), rounds)).collect();
    bench.rounds(
        NAME,
        &params,
        |_, _| all.clone(),
        |contestant, params, _| {
            let outcome = measure(contestant, &server, &params["leases"]);
            looker.flush()?;
            outcome
        },
    )
}

fn measure(contestant: &Contestant, server: &Redis, leases: &Value) -> Result<Value, String> {
    let (watch, span) = (Watch::begin(server)?, span(contestant));
    let order = json!({ "urls": [server.url()], "leases": leases, "prefix": "bench/held", "seconds": span });
    let outcome = contestant
        .start_within("leases", order, seconds(span + contestant.starts_s()) + TAKING)
        .and_then(Child::result);
    // Its time ends with its answer; when it began, only the contestant knows.
    let seen = watch.end(seconds(span));
    let mut result = outcome?;
    let leases = leases.as_f64().unwrap_or(f64::NAN);
    if let Some(Seen { before, begin, end, span }) = seen {
        let span = span.as_secs_f64();
        result["server_cpu_percent"] = json!((end.cpu_s - begin.cpu_s) / span * 100.0);
        result["server_bytes_per_lease"] = json!((end.memory - before.memory) / leases);
        result["scripts_per_s"] = json!((end.scripts - begin.scripts) / span);
        result["renewals_per_s"] = json!((end.expiries - begin.expiries) / span);
    }
    Ok(result)
}
