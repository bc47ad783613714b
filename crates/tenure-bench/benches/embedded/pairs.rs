//! Acquire and release, alone and in a crowd.

use std::time::Instant;

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples};

const ROUNDS: usize = 9;
const PAIRS: u32 = 200_000;
const TASKS: u32 = 1_000;
const TURNS: u32 = 500;

/// One task, one name, nobody else.
pub(crate) fn uncontended(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut samples = Samples::default();
    runtime.block_on(async {
        let tenure = Tenure::connect("memory:").await.unwrap();
        let lock = tenure.lock("orders/42");
        for round in 0..=ROUNDS {
            let start = Instant::now();
            for _ in 0..PAIRS {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
            // The first round warms up.
            if round > 0 {
                samples.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(PAIRS));
            }
        }
    });
    let median = samples.median();
    let raw = json!({ "unit": "us", "rounds": samples.raw() });
    report.row("uncontended pair, memory", &format!("{median:.2} µs"), "< 2 µs", median < 2.0, &raw);
}

/// A thousand tasks on one name. All queue up before the first is let in, so that every turn is a hand-over.
pub(crate) fn hand_over(report: &mut Report) {
    for (kind, threads) in [("one thread", 1), ("two threads", 2)] {
        let runtime = match threads {
            1 => tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap(),
            _ => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build().unwrap(),
        };
        let mut samples = Samples::default();
        for round in 0..=ROUNDS {
            let rate = runtime.block_on(async {
                let tenure = Tenure::connect("memory:").await.unwrap();
                let lock = tenure.lock("orders/42");
                let gate = lock.acquire().await.unwrap();
                let task = |_| {
                    let lock = lock.clone();
                    tokio::spawn(async move {
                        for _ in 0..TURNS {
                            drop(lock.acquire().await.unwrap());
                        }
                    })
                };
                let tasks: Vec<_> = (0..TASKS).map(task).collect();
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                let start = Instant::now();
                drop(gate);
                for task in tasks {
                    task.await.unwrap();
                }
                f64::from(TASKS * TURNS) / start.elapsed().as_secs_f64()
            });
            if round > 0 {
                samples.push(rate);
            }
        }
        let median = samples.median();
        let raw = json!({ "unit": "1/s", "rounds": samples.raw() });
        let what = format!("1,000 tasks hand one name over, memory, {kind}");
        report.row(&what, &format!("{:.2} M/s", median / 1e6), ">= 1 M/s", median >= 1e6, &raw);
    }
}
