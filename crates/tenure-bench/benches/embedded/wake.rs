//! How soon a waiter in another process runs after the release.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples, now_micros};

const ROUNDS: usize = 2_000;
const NAME: &str = "orders/42";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// The other process: for each line on standard input it waits for the lock once and says when it ran.
pub(crate) fn wait_in_line(url: &str) {
    runtime().block_on(async {
        let tenure = Tenure::connect(url).await.unwrap();
        let lock = tenure.lock(NAME).ttl(Duration::from_secs(60));
        for line in std::io::stdin().lines() {
            line.unwrap();
            let guard = lock.acquire().await.unwrap();
            println!("{}", now_micros());
            guard.release().await.unwrap();
        }
    });
}

pub(crate) fn across_processes(report: &mut Report) {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    let mut waiter = Command::new(std::env::current_exe().unwrap())
        .args(["--wait-in-line", &url])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut orders = waiter.stdin.take().unwrap();
    let mut answers = BufReader::new(waiter.stdout.take().unwrap()).lines();
    let mut samples = Samples::default();
    runtime().block_on(async {
        let tenure = Tenure::connect(&url).await.unwrap();
        let lock = tenure.lock(NAME).ttl(Duration::from_secs(60));
        for _ in 0..ROUNDS {
            let guard = lock.acquire().await.unwrap();
            writeln!(orders).unwrap();
            while tenure.inspect(NAME).await.unwrap().waiters.is_empty() {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            // Counted from before the release: its transaction is part of the hand-over.
            let released = now_micros();
            guard.release().await.unwrap();
            let ran: u64 = answers.next().unwrap().unwrap().parse().unwrap();
            samples.push(ran.saturating_sub(released) as f64 / 1e3);
        }
    });
    drop(orders);
    waiter.wait().unwrap();
    let (p50, p99) = (samples.median(), samples.percentile(99.0));
    let raw =
        json!({ "unit": "ms", "p50": p50, "p99": p99, "p100": samples.percentile(100.0), "rounds": samples.raw() });
    let figure = format!("p50 {p50:.2} p99 {p99:.2} ms");
    report.row("waiter in another process runs after the release, sqlite", &figure, "p99 <= 5 ms", p99 <= 5.0, &raw);
}
