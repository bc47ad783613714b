//! A thousand tasks of one process on one name.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples};
use tenure_testkit::servers::Redis;

const TASKS: u32 = 1_000;
const TURNS: u32 = 200;
const ROUNDS: usize = 7;

pub(crate) fn one_process(server: &Redis, report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut samples = Samples::default();
    for round in 0..=ROUNDS {
        let rate = runtime.block_on(async {
            let tenure = Tenure::connect(server.url()).await.unwrap();
            let lock = tenure.lock("crowd");
            let gate = lock.acquire().await.unwrap();
            let tasks: Vec<_> = (0..TASKS)
                .map(|_| {
                    let lock = lock.clone();
                    tokio::spawn(async move {
                        for _ in 0..TURNS {
                            drop(lock.acquire().await.unwrap());
                        }
                    })
                })
                .collect();
            tokio::time::sleep(Duration::from_millis(50)).await;
            let start = Instant::now();
            drop(gate);
            for task in tasks {
                task.await.unwrap();
            }
            let rate = f64::from(TASKS * TURNS) / start.elapsed().as_secs_f64();
            tenure.close().await.unwrap();
            rate
        });
        if round > 0 {
            samples.push(rate);
        }
    }
    let raw = json!({ "unit": "1/s", "rounds": samples.raw() });
    let figure = format!("{:.0} k/s", samples.median() / 1e3);
    report.row("1,000 tasks of one process on one name, Redis", &figure, "- (peers later)", true, &raw);
}
