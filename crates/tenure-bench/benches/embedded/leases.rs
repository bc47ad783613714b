//! What it costs to hold a hundred thousand leases.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples, cpu_time};

const LEASES: usize = 100_000;
const ROUNDS: usize = 5;
/// Three renewals of each lease.
const ROUND: Duration = Duration::from_secs(10);

pub(crate) fn held(report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut samples = Samples::default();
    let mut bytes_per_lease = 0;
    runtime.block_on(async {
        let tenure = Tenure::connect("memory:").await.unwrap();
        let before = resident_bytes();
        let mut guards = Vec::with_capacity(LEASES);
        for number in 0..LEASES {
            guards.push(tenure.lock(format!("orders/{number}")).acquire().await.unwrap());
            // Spread like the claims of a program, not taken in one burst.
            if number % 300 == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        bytes_per_lease = (resident_bytes() - before) / LEASES;
        for _ in 0..ROUNDS {
            let (cpu, wall) = (cpu_time(), Instant::now());
            tokio::time::sleep(ROUND).await;
            samples.push((cpu_time() - cpu).as_secs_f64() / wall.elapsed().as_secs_f64() * 100.0);
        }
        assert!(guards.iter().all(tenure::Guard::is_held), "every lease is held");
    });
    let median = samples.median();
    let raw = json!({ "unit": "% of one core", "rounds": samples.raw(), "bytes_per_lease": bytes_per_lease });
    let figure = format!("{median:.2} %, {bytes_per_lease} B each");
    report.row("100,000 leases held, memory (store and client)", &figure, "<= 2 %", median <= 2.0, &raw);
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
