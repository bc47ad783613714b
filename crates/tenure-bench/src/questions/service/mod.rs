//! The lock service against the library on the same store, and against etcd's lock service: pairs, one name that many
//! want, and what somebody who waits costs the service.

mod instance;
mod waiting;

use std::time::Duration;

use serde_json::{Value, json};
use tenure_testkit::servers::{Etcd, Redis};

use self::instance::Service;
use super::{pairs, seconds};
use crate::bench::{Bench, Cell};
use crate::contest::Contest;
use crate::contestant::Contestant;
use crate::over_http::{SERVICE, v3lock};

const NAME: &str = "service";
/// Tasks, each with a connection of its own where locks go over HTTP.
const TASKS: [usize; 3] = [1, 64, 1_024];
const PROCESSES: usize = 8;
const PATIENCE: Duration = Duration::from_secs(60);

fn contestants(bench: &Bench) -> Vec<Contestant> {
    let mut all = bench.tenure_over(SERVICE);
    all.extend(bench.tenure_over("redis"));
    if bench.plan.measures("etcd") {
        all.push(v3lock());
    }
    all
}

fn spans(bench: &Bench, tasks: usize) -> (f64, f64) {
    bench.plan.choose((if tasks > 256 { 3.0 } else { 0.5 }, 1.5), (0.3, 0.3))
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let each = contestants(bench).len() as f64;
    let pairs: f64 =
        TASKS.map(|tasks| spans(bench, tasks)).iter().map(|(warmup, counted)| warmup + counted + 0.2).sum();
    seconds((pairs + 2.0) * each * bench.plan.rounds as f64 + bench.plan.choose(20.0, 3.0))
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let (redis, served) = (Redis::start(), Redis::start());
    let service = Service::start(served.url())?;
    let etcd = bench.plan.measures("etcd").then(|| Etcd::builder().members(1).durable().start());
    let urls = |contestant: &Contestant| match (contestant.store.as_str(), &etcd) {
        (SERVICE, _) => vec![service.url.clone()],
        ("etcd", Some(etcd)) => vec![etcd.url()],
        _ => vec![redis.url().to_owned()],
    };
    let all = contestants(bench);
    let spans = TASKS.map(|tasks| spans(bench, tasks));
    let mut params: Vec<(Value, usize)> =
        TASKS.map(|tasks| (json!({ "part": "pairs", "tasks": tasks }), bench.plan.rounds)).into();
    params.push((json!({ "part": "hot", "processes": PROCESSES }), bench.plan.rounds));
    let span = bench.plan.choose(1.5, 0.3);
    let asked = |contestant: &Contestant, params: &Value, _| {
        let urls = urls(contestant);
        if params["part"] == "hot" {
            let prefix = "bench/service";
            let contest = Contest {
                contestant,
                urls: &urls,
                prefix,
                processes: PROCESSES,
                tasks: 1,
                seconds: span,
                patience: PATIENCE,
            };
            return contest.hold(None);
        }
        let index = TASKS.iter().position(|tasks| params["tasks"] == *tasks).unwrap_or(0);
        let before = service.cpu_s();
        let mut result = pairs::measure(contestant, &urls, &params["tasks"], spans[index], None)?;
        if contestant.store == SERVICE {
            result["service_us_per_pair"] =
                json!((service.cpu_s() - before) * 1e6 / result["all"].as_f64().unwrap_or(f64::NAN));
        }
        Ok(result)
    };
    bench.rounds(NAME, &params, |_, _| all.clone(), asked)?;
    let waiters = bench.plan.choose(10_000, 500);
    bench.progress(NAME, 0, 1, &format!("{waiters} waiters"));
    let params = json!({ "part": "waiters", "waiters": waiters });
    let (by_service, by_library) = match waiting::measure(&served, &redis, waiters) {
        Ok((by_service, by_library)) => (Ok(by_service), Ok(by_library)),
        Err(why) => (Err(why.clone()), Err(why)),
    };
    let cell = Cell { question: NAME, contestant: "tenure", store: SERVICE, params: &params };
    bench.note(&cell, 1, by_service)?;
    bench.note(&Cell { store: "redis", ..cell }, 1, by_library)
}
