//! Acquire and release of names that nobody else wants, by many tasks.

use std::time::Instant;

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples, cpu_time};
use tenure_testkit::servers::{Fleet, Redis};

use super::runtime;

const ROUNDS: usize = 5;
const TASKS: usize = 256;

/// Pairs per second, and the client's CPU time for each in microseconds.
async fn pairs(tenure: &Tenure, pairs: usize) -> (f64, f64) {
    let (start, used) = (Instant::now(), cpu_time());
    let running: Vec<_> = (0..TASKS)
        .map(|task| {
            let tenure = tenure.clone();
            tokio::spawn(async move {
                for turn in 0..pairs / TASKS {
                    let lock = tenure.lock(format!("orders/{task}/{}", turn % 100));
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    let done = (pairs / TASKS * TASKS) as f64;
    (done / start.elapsed().as_secs_f64(), (cpu_time() - used).as_secs_f64() * 1e6 / done)
}

/// Five servers do five times the work of one, on the same cores: that is what the rate is held against.
pub(crate) fn throughput(report: &mut Report) {
    let (one, fleet) = (Redis::start(), Fleet::start(5));
    let (mut rates, mut single, mut ratios, mut cpu) =
        (Samples::default(), Samples::default(), Samples::default(), Samples::default());
    runtime().block_on(async {
        let redis = Tenure::connect(one.url()).await.unwrap();
        let redlock = Tenure::connect(fleet.url_with("node_timeout=1s")).await.unwrap();
        for round in 0..=ROUNDS {
            let (alone, _) = pairs(&redis, 50_000).await;
            let (rate, used) = pairs(&redlock, 20_000).await;
            if round > 0 {
                single.push(alone);
                rates.push(rate);
                ratios.push(rate / (alone / 5.0));
                cpu.push(used);
            }
        }
    });
    let figure = format!("{:.1} k/s = {:.2} of it", rates.median() / 1e3, ratios.median());
    let raw = json!({ "unit": "pairs/s", "rounds": rates.raw(), "single": single.raw(), "ratios": ratios.raw(),
        "client_cpu_us_per_pair": cpu.raw() });
    report.row("pairs, 256 tasks, five nodes, against a fifth of one Redis", &figure, "-", true, &raw);
    println!("    one Redis {:.0} k/s; client CPU {:.1} µs a pair", single.median() / 1e3, cpu.median());
}
