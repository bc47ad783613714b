//! One name that everybody wants: several tasks, in several processes that start at the same moment.
//!
//! Each task acquires and releases the name, over and over. Measured is how long each acquisition was waited for and
//! when it came, on a clock that the processes share: sorted by that, the turns of all processes show how often the
//! lock changed hands.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crate::crowd::Crowd;
use crate::locker::{BoxError, Locker};
use crate::order::{Hot, HotResult};
use crate::process::cpu_time;
use crate::time::{at, micros, seconds};

/// Opens connections, loads scripts: pairs on a name that no other process uses.
///
/// # Errors
///
/// The library's.
///
/// # Cancel safety
///
/// Cancelling drops what is held.
pub async fn warm_up<L: Locker>(locker: &L, order: &Hot) -> Result<(), BoxError> {
    let name = format!("{}/warm-up/{}", order.prefix, std::process::id());
    for _ in 0..order.warmup_pairs {
        let held = locker.acquire(&name).await?;
        locker.release(held).await?;
    }
    Ok(())
}

/// Goes on from `start_us` (microseconds since the Unix epoch) to the end. `None` if `stop` came first; no task is
/// left then, nor after an error.
///
/// The tasks are still at it when this returns: end them, or the process.
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
    order: &Hot,
    start_us: u64,
    stop: impl Future<Output = ()>,
) -> Result<Option<(HotResult, Crowd)>, BoxError> {
    let start = at(start_us);
    let end = start + seconds(order.seconds);
    let logs: Vec<Log> = (0..order.tasks).map(|_| Log::default()).collect();
    let tasks = logs.iter().cloned().map(|log| contend(locker.clone(), order.name.clone(), start, end, log));
    let mut crowd = Crowd::of(tasks);
    let course = async {
        tokio::time::sleep_until(start.into()).await;
        let used = cpu_time();
        tokio::time::sleep_until(end.into()).await;
        cpu_time() - used
    };
    let outcome = tokio::select! {
        outcome = crowd.until(course) => Some(outcome),
        () = stop => None,
    };
    match outcome {
        Some(Ok(cpu)) => Ok(Some((told(&logs, end, cpu.as_secs_f64()), crowd))),
        Some(Err(error)) => {
            crowd.end().await;
            Err(error)
        }
        None => {
            crowd.end().await;
            Ok(None)
        }
    }
}

/// What one task has to tell, at any moment.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Told>>);

#[derive(Debug, Default)]
struct Told {
    /// When, after how long a wait.
    turns: Vec<(u64, u64)>,
    /// Since when it waits, if it does.
    asked: Option<Instant>,
}

impl Log {
    fn with<T>(&self, act: impl FnOnce(&mut Told) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn contend<L: Locker>(locker: L, name: String, start: Instant, end: Instant, log: Log) -> Result<(), BoxError> {
    tokio::time::sleep_until(start.into()).await;
    loop {
        let asked = Instant::now();
        if asked >= end {
            return Ok(());
        }
        log.with(|told| told.asked = Some(asked));
        let held = locker.acquire(&name).await?;
        let got = Instant::now();
        log.with(|told| {
            // One that came too late is a wait that was under way at the end.
            if got <= end {
                told.asked = None;
                told.turns.push((micros(got - start), micros(got - asked)));
            }
        });
        locker.release(held).await?;
        tokio::task::coop::consume_budget().await;
    }
}

fn told(logs: &[Log], end: Instant, cpu_s: f64) -> HotResult {
    let mut result = HotResult { cpu_s, ..HotResult::default() };
    for (task, log) in logs.iter().enumerate() {
        log.with(|told| {
            result.turns.extend(told.turns.iter().map(|(got, wait)| (*got, *wait, task)));
            result.waiting.extend(told.asked.map(|asked| (task, micros(end.saturating_duration_since(asked)))));
        });
    }
    result
}
