//! A program that does as it is told by its one argument, and prints what came of it.

use std::io::{BufRead as _, Write as _};

use serde::Serialize;

use crate::locker::{BoxError, Locker};
use crate::order::{Listing, Order};
use crate::{hold, hot, leases, pairs, take};

/// The whole of a contestant's `main`: reads the order, and answers it with `listings`, or by `work`, which connects to
/// the order's [target](Order::target) and calls [`obey`]. Ends the process.
pub fn main(
    argument: Option<String>,
    listings: &[Listing],
    work: impl AsyncFnOnce(&Order) -> Result<(), BoxError>,
) -> ! {
    let outcome = answer(argument, listings, work);
    if let Err(error) = &outcome {
        eprintln!("{error}");
    }
    // At once: whatever is held or waited for is left to its lease.
    std::process::exit(i32::from(outcome.is_err()))
}

fn answer(
    argument: Option<String>,
    listings: &[Listing],
    work: impl AsyncFnOnce(&Order) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    let argument = argument.ok_or("one argument is needed: the order, as JSON")?;
    let order: Order = serde_json::from_str(&argument).map_err(|error| format!("no order: {error}"))?;
    let Some(target) = order.target() else { return listings.iter().try_for_each(print) };
    let known = listings.iter().any(|lock| lock.peer == target.peer && lock.store == target.store);
    if !known {
        return Err(format!("there is no {} over {} here", target.peer, target.store).into());
    }
    let runtime = runtime()?;
    let outcome = runtime.block_on(work(&order));
    // Dropped, it would end its tasks first, and these would give back what they hold.
    std::mem::forget(runtime);
    outcome
}

/// One thread for all tasks: the servers that are measured on the same machine need cores of their own.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

/// [`Order::Outage`] for tenure, which alone is asked: prints `held`, and reads one line once the store is dead.
///
/// # Errors
///
/// tenure's, or standard input's or output's.
///
/// # Cancel safety
///
/// Cancelling drops what is held.
#[cfg(feature = "tenure")]
pub async fn endure(locker: &crate::TenureLocker, order: &crate::order::Outage) -> Result<(), BoxError> {
    let dead = async {
        let _ = tokio::task::spawn_blocking(|| std::io::stdin().lock().read_line(&mut String::new())).await;
    };
    print(&crate::outage::run(locker, order, || drop(say("held")), dead).await?)
}

/// Does what the order says with a library that is connected, and prints the result.
///
/// # Errors
///
/// The library's, or standard input's or output's.
///
/// # Cancel safety
///
/// Cancelling drops what is held.
pub async fn obey<L: Locker>(locker: &L, order: &Order) -> Result<(), BoxError> {
    let never = std::future::pending;
    match order {
        Order::List => Ok(()),
        Order::Pairs(order) => pairs::run(locker, order, never()).await?.iter().try_for_each(print),
        Order::Hot(order) => {
            hot::warm_up(locker, order).await?;
            say("ready")?;
            let start = tokio::task::spawn_blocking(read_start).await??;
            let Some((result, crowd)) = hot::run(locker, order, start, never()).await? else { return Ok(()) };
            print(&result)?;
            // The process ends next, in the midst of it.
            std::mem::forget(crowd);
            Ok(())
        }
        Order::Hold(order) => hold::run(locker, order, || drop(say("held"))).await,
        Order::Take(order) => {
            say("asking")?;
            take::run(locker, order, |result| drop(print(&result))).await
        }
        Order::Leases(order) => {
            let mut held = Vec::new();
            let result = leases::run(locker, order, &mut held, || {}, never()).await?;
            std::mem::forget(held);
            result.iter().try_for_each(print)
        }
        Order::Outage(_) => Err("this library is not asked when it tells of losses".into()),
    }
}

fn read_start() -> Result<u64, BoxError> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(line.trim().parse().map_err(|_| format!("not a start time: {line:?}"))?)
}

fn print(value: &impl Serialize) -> Result<(), BoxError> {
    say(&serde_json::to_string(value)?)
}

fn say(line: &str) -> Result<(), BoxError> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}")?;
    Ok(stdout.flush()?)
}
