//! Five servers: the time of a pair with none, one and two of them hung, throughput, and one name that all want.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::Tenure;
use tenure_load::Samples;
use tenure_testkit::servers::{Fleet, Redis};

use super::{each, seconds};
use crate::bench::Bench;
use crate::contest::Contest;
use crate::contestant::Contestant;
use crate::server::process_cpu;

const NAME: &str = "redlock";
const NODES: usize = 5;
/// A contestant that a hung server stalls is ended after this time.
const LIMIT: Duration = Duration::from_secs(10);
const PROCESSES: usize = 8;

/// A fleet for each number of servers that hang, with a server of its own beside it.
struct Fleets {
    one: Redis,
    hung: Vec<Fleet>,
}

impl Fleets {
    fn urls(&self, hung: usize) -> Vec<String> {
        self.hung[hung].nodes().iter().map(|node| node.url().to_owned()).collect()
    }

    fn cpu(&self, hung: usize) -> f64 {
        self.hung[hung].nodes().iter().filter_map(|node| process_cpu(node.pid())).sum()
    }
}

fn span(bench: &Bench) -> f64 {
    bench.plan.choose(0.8, 0.3)
}

fn all_params() -> Vec<Value> {
    let latency = (0..=2).map(|hung| json!({ "part": "latency", "hung": hung }));
    let acquire = (0..=2).map(|hung| json!({ "part": "acquire", "hung": hung }));
    let others = [
        json!({ "part": "pairs", "tasks": 256 }),
        json!({ "part": "one redis", "tasks": 256 }),
        json!({ "part": "hot", "processes": PROCESSES }),
    ];
    latency.chain(acquire).chain(others).collect()
}

fn contestants(bench: &Bench, params: &Value) -> Vec<Contestant> {
    match params["part"].as_str() {
        Some("acquire") => bench.tenure_over("redlock"),
        Some("one redis") => bench.tenure_over("redis"),
        _ => bench.over("redlock"),
    }
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let works = span(bench) + 0.5;
    let cells: Duration = all_params().iter().map(|params| each(bench, &contestants(bench, params), works)).sum();
    // With two servers hung some stall, twice until they are not asked again.
    cells + seconds(bench.over("redlock").len() as f64 * 2.0 * LIMIT.as_secs_f64() * 0.5)
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let fleets = Fleets { one: Redis::start(), hung: (0..=2).map(|_| Fleet::start(NODES)).collect() };
    let span = span(bench);
    let params = all_params();
    let who: Vec<(Value, Vec<Contestant>)> =
        params.iter().map(|params| (params.clone(), contestants(bench, params))).collect();
    let of = |params: &Value, _| {
        who.iter().find(|(known, _)| known == params).map_or(Vec::new(), |(_, contestants)| contestants.clone())
    };
    let params: Vec<(Value, usize)> = params.into_iter().map(|params| (params, bench.plan.rounds)).collect();
    bench.rounds(NAME, &params, of, |contestant, params, round| {
        let hung = params["hung"].as_u64().unwrap_or(0) as usize;
        match params["part"].as_str() {
            Some("acquire") => acquire(&fleets.hung[hung], hung, span),
            Some("hot") => Contest {
                contestant,
                urls: &fleets.urls(0),
                prefix: &format!("bench/{}/{round}", contestant.peer),
                processes: PROCESSES,
                tasks: 1,
                seconds: span,
                patience: LIMIT * 3,
            }
            .hold(None),
            Some("one redis") => pairs(contestant, &[fleets.one.url().to_owned()], &params["tasks"], round, span),
            _ => {
                let tasks = params.get("tasks").cloned().unwrap_or(json!(1));
                let before = fleets.cpu(hung);
                let nodes = &fleets.hung[hung].nodes()[..hung];
                // A contestant connects while all is well; then they hang.
                let outcome = with_hung(nodes, || pairs(contestant, &fleets.urls(hung), &tasks, round, span));
                let used = fleets.cpu(hung) - before;
                outcome.map(|mut result| {
                    result["server_us_per_pair"] = json!(used * 1e6 / result["all"].as_f64().unwrap_or(f64::NAN));
                    result
                })
            }
        }
    })
}

/// Pairs, with the rate and what a pair costs the client.
fn pairs(contestant: &Contestant, urls: &[String], tasks: &Value, round: usize, span: f64) -> Result<Value, String> {
    // Long enough for the servers to hang within it.
    let warmup = if tasks == 1 { HANGS_AFTER.as_secs_f64() + 0.6 } else { 0.3 };
    let order = json!({ "urls": urls, "tasks": tasks, "names": 100, "prefix": format!("bench/{}/{round}", contestant.peer),
        "warmup_s": warmup, "seconds": span });
    let limit = LIMIT + seconds(warmup + span + contestant.starts_s());
    let mut result = contestant.start_within("pairs", order, limit)?.result()?;
    let number = |field: &str| result[field].as_f64().ok_or_else(|| format!("no {field} in {result}"));
    let count = number("pairs")?;
    if count == 0.0 {
        return Err(format!("not one pair in {span} s"));
    }
    let (rate, client) = (count / number("seconds")?, number("cpu_s")? * 1e6 / count);
    result["pairs_per_s"] = json!(rate);
    result["client_us_per_pair"] = json!(client);
    Ok(result)
}

/// When servers begin to hang, counted from the start of the contestant.
const HANGS_AFTER: Duration = Duration::from_millis(600);

/// Lets servers hang from some time after `work` has begun until it ends.
fn with_hung<T>(nodes: &[Redis], work: impl FnOnce() -> T) -> T {
    if nodes.is_empty() {
        return work();
    }
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(HANGS_AFTER);
            nodes.iter().for_each(Redis::pause);
        });
        work()
    });
    nodes.iter().for_each(Redis::resume);
    outcome
}

/// The time of an acquire alone; what is acquired is released before the next.
fn acquire(fleet: &Fleet, hung: usize, span: f64) -> Result<Value, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let measured: Result<Samples, tenure::Error> = runtime.block_on(async {
        let tenure = Tenure::connect(fleet.url()).await?;
        warm(&tenure, &mut Samples::default(), 0.2).await?;
        fleet.nodes()[..hung].iter().for_each(Redis::pause);
        // The client takes note of what hangs within its first requests.
        warm(&tenure, &mut Samples::default(), 0.6).await?;
        let mut samples = Samples::default();
        warm(&tenure, &mut samples, span).await?;
        Ok(samples)
    });
    fleet.nodes()[..hung].iter().for_each(Redis::resume);
    let samples = measured.map_err(|error| error.to_string())?;
    let [p50, p99, max] = samples.percentiles([50.0, 99.0, 100.0]);
    Ok(json!({ "p50_us": p50, "p99_us": p99, "max_us": max, "acquires": samples.len() }))
}

/// Acquires and releases for some seconds.
async fn warm(tenure: &Tenure, samples: &mut Samples, span: f64) -> Result<(), tenure::Error> {
    let begin = std::time::Instant::now();
    let mut turn = 0;
    while begin.elapsed() < seconds(span) {
        let lock = tenure.lock(format!("bench/acquire/{}", turn % 100));
        turn += 1;
        let asked = std::time::Instant::now();
        let guard = lock.acquire().await?;
        samples.push(asked.elapsed().as_secs_f64() * 1e6);
        guard.release().await?;
    }
    Ok(())
}
