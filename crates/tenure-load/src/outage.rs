//! A store that dies under many leases: how soon each loss is told, and what the outage costs the client.

use std::sync::Arc;
use std::time::Duration;

use tenure::Guard;
use tenure::clock::{Clock as _, Moment, SystemClock};
use tokio::task::JoinSet;

use crate::leases;
use crate::locker::BoxError;
use crate::order::{Outage, OutageResult};
use crate::process::{cpu_time, cpu_wait};
use crate::samples::Samples;
use crate::tenure_locker::TenureLocker;

/// The part of a ttl after which no answer from before the outage is still on its way.
const SETTLED: u32 = 20;
/// How long before the first deadline it is measured what others take from this process.
const BEFORE: Duration = Duration::from_millis(300);
/// How much longer than one ttl the client is watched after the last loss: its clean-ups end with the ttl.
const CALM: Duration = Duration::from_secs(1);

/// Acquires all leases, calls `all_held`, waits until the store is `dead`, and measures until the client is calm again.
///
/// A watched lease has a task that awaits [`Guard::lost`] and reads the clock when it runs.
///
/// # Errors
///
/// tenure's, while leases are acquired.
///
/// # Cancel safety
///
/// Cancelling drops what is held.
pub async fn run(
    locker: &TenureLocker,
    order: &Outage,
    all_held: impl FnOnce(),
    dead: impl Future<Output = ()>,
) -> Result<OutageResult, BoxError> {
    let mut held = Vec::new();
    leases::acquire(locker, (&order.prefix, order.leases), &mut held, std::future::pending()).await?;
    let ttl = Duration::from_millis(order.target.ttl_ms);
    let held: Vec<Arc<Guard>> = held.into_iter().map(Arc::new).collect();
    let every = (held.len() / order.watched.max(1)).max(1);
    let mut watches = JoinSet::new();
    for (index, guard) in held.iter().enumerate().step_by(every) {
        let guard = guard.clone();
        watches.spawn(async move {
            guard.lost().await;
            (index, SystemClock.now())
        });
    }
    all_held();
    dead.await;
    let cpu = cpu_time();
    tokio::time::sleep(ttl / SETTLED).await;
    let deadlines: Vec<Moment> = held.iter().map(|guard| guard.deadline()).collect();
    let first = deadlines.iter().min().copied().unwrap_or_default();
    tokio::time::sleep(first.since(SystemClock.now() + BEFORE)).await;
    let waited = cpu_wait();
    let mut lateness = Samples::default();
    while let Some(told) = watches.join_next().await {
        let (index, told) = told?;
        lateness.push(told.as_micros() as f64 - deadlines[index].as_micros() as f64);
    }
    let cpu_s = (cpu_time() - cpu).as_secs_f64();
    let waited = cpu_wait().saturating_sub(waited);
    tokio::time::sleep(ttl + CALM).await;
    let [p50, p99, max] = lateness.percentiles([50.0, 99.0, 100.0]);
    Ok(OutageResult {
        leases: held.len(),
        watched: lateness.len(),
        late: lateness.iter().filter(|late| **late > 0.0).count(),
        late_p50_ms: p50 / 1e3,
        late_p99_ms: p99 / 1e3,
        late_max_ms: max / 1e3,
        cpu_wait_ms: waited.as_secs_f64() * 1e3,
        cpu_s,
        cpu_calm_s: (cpu_time() - cpu).as_secs_f64(),
        held: held.iter().filter(|guard| guard.is_held()).count(),
    })
}
