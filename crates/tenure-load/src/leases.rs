//! What it costs a process to hold many leases that are renewed: CPU and memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::crowd::Crowd;
use crate::locker::{BoxError, Locker};
use crate::order::{Leases, LeasesResult};
use crate::process::{cpu_time, resident_bytes};
use crate::time::seconds;

/// How many are asked for, or given back, at a time.
const AT_A_TIME: usize = 256;

/// Acquires all of them, calls `all_held`, and measures. `None` if `stop` came first. What was acquired is in `held`
/// afterwards, however it ended: give it back with [`release`], or end the process.
///
/// # Errors
///
/// The library's.
///
/// # Cancel safety
///
/// Cancelling leaves tasks that end soon, and drops what they hold.
pub async fn run<L: Locker>(
    locker: &L,
    order: &Leases,
    held: &mut Vec<L::Held>,
    all_held: impl FnOnce(),
    stop: impl Future<Output = ()>,
) -> Result<Option<LeasesResult>, BoxError> {
    let before = resident_bytes()?;
    let mut stop = std::pin::pin!(stop);
    if !acquire(locker, (&order.prefix, order.leases), held, stop.as_mut()).await? {
        return Ok(None);
    }
    all_held();
    let (cpu, since) = (cpu_time(), Instant::now());
    tokio::select! {
        () = tokio::time::sleep(seconds(order.seconds)) => {}
        () = stop => return Ok(None),
    }
    let cpu_percent = (cpu_time() - cpu).as_secs_f64() / since.elapsed().as_secs_f64() * 100.0;
    let grown = resident_bytes()?.saturating_sub(before);
    Ok(Some(LeasesResult {
        leases: held.len(),
        cpu_percent,
        bytes_per_lease: grown as f64 / held.len().max(1) as f64,
        held: held.iter().filter(|held| locker.is_held(held)).count(),
    }))
}

fn list<T>(taken: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each task takes every so-manieth name. False if `stop` came first.
pub(crate) async fn acquire<L: Locker>(
    locker: &L,
    (prefix, leases): (&str, usize),
    held: &mut Vec<L::Held>,
    stop: impl Future<Output = ()>,
) -> Result<bool, BoxError> {
    let tasks = AT_A_TIME.min(leases);
    // One list for all, as large as it will be: what is measured is the leases, not lists that grow.
    let taken = Arc::new(Mutex::new(Vec::with_capacity(leases)));
    let take = |task: usize| {
        let (locker, prefix, taken) = (locker.clone(), prefix.to_owned(), taken.clone());
        async move {
            for number in (task..leases).step_by(tasks) {
                let lease = locker.acquire(&format!("{prefix}/{number}")).await?;
                list(&taken).push(lease);
            }
            Ok(())
        }
    };
    let mut crowd = Crowd::of((0..tasks).map(take));
    let outcome = tokio::select! {
        outcome = crowd.finish() => Some(outcome),
        () = stop => None,
    };
    crowd.end().await;
    *held = std::mem::take(&mut *list(&taken));
    outcome.transpose().map(|all| all.is_some())
}

/// Gives all of them back.
///
/// # Errors
///
/// The library's first; the rest is dropped then.
///
/// # Cancel safety
///
/// Cancelling drops what is still held.
pub async fn release<L: Locker>(locker: &L, held: Vec<L::Held>) -> Result<(), BoxError> {
    let mut heaps: Vec<VecDeque<L::Held>> = (0..AT_A_TIME).map(|_| VecDeque::new()).collect();
    let count = heaps.len();
    for (number, held) in held.into_iter().enumerate() {
        heaps[number % count].push_back(held);
    }
    let give_back = |heap: VecDeque<L::Held>| {
        let locker = locker.clone();
        async move {
            for held in heap {
                locker.release(held).await?;
            }
            Ok(())
        }
    };
    let mut crowd = Crowd::of(heaps.into_iter().map(give_back));
    let outcome = crowd.finish().await;
    crowd.end().await;
    outcome
}
