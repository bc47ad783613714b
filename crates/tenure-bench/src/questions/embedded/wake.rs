//! How soon a waiter in another process runs after the release.

use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::Tenure;
use tenure_load::{Samples, epoch_micros};

use crate::child::Child;

const NAME: &str = "orders/42";
const TTL: Duration = Duration::from_secs(60);

fn runtime() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())
}

/// The other process: for each line on standard input it waits for the lock once and says when it ran.
///
/// # Errors
///
/// If the store or the input fails.
pub fn wait_in_line(url: &str) -> Result<(), String> {
    let waiting = async {
        let tenure = Tenure::connect(url).await.map_err(|error| error.to_string())?;
        let lock = tenure.lock(NAME).ttl(TTL);
        for line in std::io::stdin().lines() {
            line.map_err(|error| error.to_string())?;
            let guard = lock.acquire().await.map_err(|error| error.to_string())?;
            println!("{}", epoch_micros());
            guard.release().await.map_err(|error| error.to_string())?;
        }
        Ok(())
    };
    runtime()?.block_on(waiting)
}

pub(super) fn across_processes(url: &str, times: usize) -> Result<Value, String> {
    let mut command = Command::new(std::env::current_exe().map_err(|error| error.to_string())?);
    command.args(["wait-in-line", url]);
    let mut waiter = Child::start(command, Duration::from_secs(60))?;
    let wrong = |error: tenure::Error| error.to_string();
    let mut samples = Samples::default();
    runtime()?.block_on(async {
        let tenure = Tenure::connect(url).await.map_err(wrong)?;
        let lock = tenure.lock(NAME).ttl(TTL);
        // The first time opens the file.
        for turn in 0..=times {
            let guard = lock.acquire().await.map_err(wrong)?;
            waiter.tell("")?;
            while tenure.inspect(NAME).await.map_err(wrong)?.waiters.is_empty() {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            // Counted from before the release: its transaction is part of the hand-over.
            let released = epoch_micros();
            guard.release().await.map_err(wrong)?;
            let ran: u64 = waiter.line()?.trim().parse().map_err(|_| "the waiter did not tell the time")?;
            if turn > 0 {
                samples.push(ran.saturating_sub(released) as f64 / 1e3);
            }
        }
        Ok::<_, String>(())
    })?;
    let [p50, p99, max] = samples.percentiles([50.0, 99.0, 100.0]);
    Ok(json!({ "p50_ms": p50, "p99_ms": p99, "max_ms": max, "times": times }))
}
