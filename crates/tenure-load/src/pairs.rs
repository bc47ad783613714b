//! Acquire and release of names that nobody else wants.
//!
//! Each task goes round its own names. Measured is a whole pair, from asking for the lock until its release was
//! confirmed; counted are the pairs that ended after the warm-up and before the end, whenever they were begun: else
//! whoever takes long would lose more of them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::crowd::Crowd;
use crate::histogram::Histogram;
use crate::locker::{BoxError, Locker};
use crate::order::{Pairs, PairsResult};
use crate::process::cpu_time;
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
    let tally = Arc::new(Mutex::new(Tally::default()));
    let task = |task| go_round(locker.clone(), names(order, task), from, end, tally.clone());
    let mut crowd = Crowd::of((0..order.tasks).map(task));
    let counted = async {
        tokio::time::sleep_until(from.into()).await;
        let used = cpu_time();
        tokio::time::sleep_until(end.into()).await;
        cpu_time() - used
    };
    let work = async {
        let cpu = crowd.until(counted).await?;
        crowd.finish().await?;
        Ok::<_, BoxError>(cpu)
    };
    let outcome = tokio::select! {
        outcome = work => Some(outcome),
        () = stop => None,
    };
    crowd.end().await;
    let Some(outcome) = outcome else { return Ok(None) };
    let cpu = outcome?;
    let Tally { all, times } = &*tally.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(Some(PairsResult {
        pairs: times.count(),
        all: *all,
        seconds: order.seconds,
        p50_us: times.percentile_us(50.0),
        p99_us: times.percentile_us(99.0),
        max_us: times.percentile_us(100.0),
        cpu_s: cpu.as_secs_f64(),
    }))
}

fn names(order: &Pairs, task: usize) -> Vec<String> {
    (0..order.names.max(1)).map(|name| format!("{}/{task}/{name}", order.prefix)).collect()
}

/// The pairs of all tasks. One for all: for each of thousands, the histogram would be too large.
#[derive(Debug, Default)]
struct Tally {
    all: u64,
    /// Of those that count.
    times: Histogram,
}

/// One task: its names in turn, over and over, until the end.
async fn go_round<L: Locker>(
    locker: L,
    names: Vec<String>,
    from: Instant,
    end: Instant,
    tally: Arc<Mutex<Tally>>,
) -> Result<(), BoxError> {
    for name in names.iter().cycle() {
        let begun = Instant::now();
        if begun >= end {
            break;
        }
        let held = locker.acquire(name).await?;
        locker.release(held).await?;
        let ended = Instant::now();
        {
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.all += 1;
            if ended >= from && ended <= end {
                tally.times.add(ended - begun);
            }
        }
        // A store that answers at once would never let another task run.
        tokio::task::coop::consume_budget().await;
    }
    Ok(())
}
