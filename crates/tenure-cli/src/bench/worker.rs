//! One of the processes that are measured. It is a contestant of `tenure_load`, but one that cleans up: its order
//! comes on stdin (others may read a command line, and a URL may have a password), it stops when stdin ends or a
//! signal comes, and it gives back all it holds before it tells its result.

use std::time::Duration;

use serde::Serialize;
use tenure_load::order::{Hot, Leases, Order};
use tenure_load::{BoxError, TenureLocker, hot, leases, pairs};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::exit::Exit;
use crate::failure::{Failure, write_lines};
use crate::label;
use crate::output;
use crate::signals::Signals;
use crate::store::Store;
use crate::wait::Wait;

/// How long the warm-up may last, however far off the store is.
const WARM_UP_MAX: Duration = Duration::from_millis(500);
/// How long background work that hangs may delay the end of the process.
const FAREWELL: Duration = Duration::from_millis(200);

pub(crate) fn worker() -> Exit {
    match work() {
        Ok(()) => Exit::Done,
        Err(error) => {
            write_lines(&format!("{error}\n"));
            Exit::Unavailable
        }
    }
}

fn work() -> Result<(), BoxError> {
    let mut lines = stdin_lines();
    let Some(order) = lines.blocking_recv() else { return Ok(()) };
    let order: Order = serde_json::from_str(&order)?;
    // One thread for all tasks: a store on the same machine needs cores of its own.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome =
        runtime.block_on(async { obey(order, Word { lines, signals: Signals::listen().map_err(told)? }).await });
    runtime.shutdown_timeout(FAREWELL);
    outcome
}

/// What comes on stdin. A thread reads it, which the end of the process need not wait for.
fn stdin_lines() -> UnboundedReceiver<String> {
    let (sender, lines) = unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// What we are told on our way.
struct Word {
    lines: UnboundedReceiver<String>,
    signals: Signals,
}

impl Word {
    /// The next line; `None` once it is time to stop.
    async fn next(&mut self) -> Option<String> {
        tokio::select! {
            line = self.lines.recv() => line,
            _ = self.signals.next() => {
                self.lines.close();
                None
            }
        }
    }

    async fn stop(&mut self) {
        while self.next().await.is_some() {}
    }
}

async fn obey(order: Order, mut word: Word) -> Result<(), BoxError> {
    let Some(target) = order.target() else { return Ok(()) };
    let store = Store::resolve(target.urls.first().map(String::as_str)).map_err(told)?;
    let label = label::of_run("tenure bench".as_ref());
    let tenure = tokio::select! {
        connected = store.connect(&label, Wait::Forever, false) => connected.map_err(told)?,
        () = word.stop() => return Ok(()),
    };
    let locker = TenureLocker::new(tenure, Duration::from_millis(target.ttl_ms));
    let outcome = match &order {
        Order::Pairs(order) => pairs::run(&locker, order, word.stop()).await.and_then(line),
        Order::Hot(order) => contend(&locker, order, &mut word).await,
        Order::Leases(order) => hold(&locker, order, &mut word).await,
        Order::List | Order::Hold(_) | Order::Take(_) | Order::Outage(_) => Err("not an order for a worker".into()),
    };
    // Also what was dropped on its way.
    let closed = locker.tenure().close().await;
    let result = outcome?;
    closed?;
    output::deliver(result.unwrap_or_default().as_bytes()).map_err(told)
}

async fn contend(locker: &TenureLocker, order: &Hot, word: &mut Word) -> Result<Option<String>, BoxError> {
    tokio::select! {
        warm = tokio::time::timeout(WARM_UP_MAX, hot::warm_up(locker, order)) => warm.unwrap_or(Ok(()))?,
        () = word.stop() => return Ok(None),
    }
    output::deliver(b"ready\n").map_err(told)?;
    let Some(start) = word.next().await else { return Ok(None) };
    let start = start.trim().parse().map_err(|_| format!("not a start time: {start:?}"))?;
    let Some((result, crowd)) = hot::run(locker, order, start, word.stop()).await? else { return Ok(None) };
    crowd.end().await;
    line(Some(result))
}

async fn hold(locker: &TenureLocker, order: &Leases, word: &mut Word) -> Result<Option<String>, BoxError> {
    let mut held = Vec::new();
    let outcome = leases::run(locker, order, &mut held, || {}, word.stop()).await;
    let released = leases::release(locker, held).await;
    let result = outcome?;
    released?;
    match &result {
        Some(told) if told.held < told.leases => {
            Err(format!("{} of {} leases were lost while they were held", told.leases - told.held, told.leases).into())
        }
        _ => line(result),
    }
}

fn line(result: Option<impl Serialize>) -> Result<Option<String>, BoxError> {
    result.map(|result| output::json_line(&result).map_err(told)).transpose()
}

fn told(failure: Failure) -> BoxError {
    failure.to_string().into()
}
