//! Acquire and release of names that nobody else wants.
//!
//! Each task goes round its own names. Measured is a whole pair, from asking for the lock until its release was confirmed; counted are
//! the pairs that were begun after the warm-up and ended before the end.

use std::time::Instant;

use crate::crowd::Crowd;
use crate::locker::{BoxError, Locker};
use crate::order::{Pairs, PairsResult};
use crate::process::cpu_time;
use crate::samples::Samples;
use crate::time::seconds;

/// Runs it. `None` if `stop` came first; no task is left then, nor after an error.
///
/// # Errors
///
/// The first of any task.
///
/// # Cancel safety
///
/// Cancelling leaves tasks that end soon, and drops what they hold.
pub async fn run<L: Locker>(
    locker: &L,
    order: &Pairs,
    stop: impl Future<Output = ()>,
) -> Result<Option<PairsResult>, BoxError> {
    let from = Instant::now() + seconds(order.warmup_s);
    let end = from + seconds(order.seconds);
    let task = |task| go_round(locker.clone(), names(order, task), from, end);
    let mut crowd = Crowd::of((0..order.tasks).map(task));
    let mut samples = Vec::new();
    let counted = async {
        tokio::time::sleep_until(from.into()).await;
        let used = cpu_time();
        tokio::time::sleep_until(end.into()).await;
        cpu_time() - used
    };
    let work = async {
        let cpu = crowd.until(&mut samples, counted).await?;
        crowd.finish(&mut samples).await?;
        Ok::<_, BoxError>(cpu)
    };
    let outcome = tokio::select! {
        outcome = work => Some(outcome),
        () = stop => None,
    };
    crowd.end().await;
    let Some(outcome) = outcome else { return Ok(None) };
    let cpu = outcome?;
    let mut all = Samples::default();
    for samples in &samples {
        all.append(samples);
    }
    let [p50, p99, max] = all.percentiles([50.0, 99.0, 100.0]).map(|value| (!value.is_nan()).then_some(value));
    Ok(Some(PairsResult {
        pairs: all.len() as u64,
        seconds: order.seconds,
        p50_us: p50,
        p99_us: p99,
        max_us: max,
        cpu_s: cpu.as_secs_f64(),
    }))
}

fn names(order: &Pairs, task: usize) -> Vec<String> {
    (0..order.names.max(1)).map(|name| format!("{}/{task}/{name}", order.prefix)).collect()
}

/// One task: its names in turn, over and over, until the end.
async fn go_round<L: Locker>(locker: L, names: Vec<String>, from: Instant, end: Instant) -> Result<Samples, BoxError> {
    let mut samples = Samples::default();
    for name in names.iter().cycle() {
        let begun = Instant::now();
        if begun >= end {
            break;
        }
        let held = locker.acquire(name).await?;
        locker.release(held).await?;
        let ended = Instant::now();
        if begun >= from && ended <= end {
            samples.push((ended - begun).as_secs_f64() * 1e6);
        }
        // A store that answers at once would never let another task run.
        tokio::task::coop::consume_budget().await;
    }
    Ok(samples)
}
