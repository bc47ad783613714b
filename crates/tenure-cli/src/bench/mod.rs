//! `bench`: how fast locks are in a store, as a program on this machine would find it.
//!
//! Every figure is taken in processes of its own (`worker`), so that one measurement does not weigh on the next.
//! `crew` is the near end of the line to them.

mod crew;
mod measure;
mod plan;
mod report;
mod worker;

use std::io::IsTerminal;
use std::time::Duration;

use tenure::Tenure;

use crate::args::Bench;
use crate::exit::Exit;
use crate::failure::{Failure, warn};
use crate::label;
use crate::line::Line;
use crate::output;
use crate::signals::{AT_ONCE, Signals};
use crate::store::Store;
use crate::wait::{FAREWELL, Wait};

use crew::Crew;
use plan::Plan;
pub(crate) use worker::worker;

/// What starts a worker: not for people.
pub(crate) const WORKER_COMMAND: &str = "__bench";

/// How long workers may take to give back what they hold when they are told to stop.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Between two looks at what a worker that died has left.
const SWEEP_PAUSE: Duration = Duration::from_millis(50);

pub(crate) async fn run(args: Bench, store: Store, json: bool) -> Result<Exit, Failure> {
    let plan = Plan::new(args, &store)?;
    let mut signals = Signals::listen()?;
    let label = label::of_person();
    let tenure = tokio::select! {
        connected = store.connect(&label, Wait::Forever, json) => connected?,
        signal = signals.next() => return Err(stopped(signal)),
    };
    say_what_is_missing(&plan, &tenure, json);
    let mut line = std::io::stderr().is_terminal().then(Line::default);
    let mut crew = Crew::default();
    let outcome = tokio::select! {
        biased;
        signal = signals.next() => Err(stopped(signal)),
        outcome = measure::all(&plan, &mut crew, &mut line) => outcome,
    };
    let report = match outcome {
        Ok(report) => report,
        Err(failure) => return Err(give_up(failure, crew, &tenure, &plan, &mut signals).await),
    };
    drop(line);
    let report = report.of(store.shown());
    if json {
        output::print_json(&report)?;
    } else {
        output::print(report.table().as_bytes())?;
    }
    Ok(Exit::Done)
}

fn say_what_is_missing(plan: &Plan, tenure: &Tenure, json: bool) {
    if plan.lacks_processes {
        let message = "a store in one process has no other processes: the hot name is not measured";
        warn(message, json);
    } else if !plan.processes.is_empty() && !tenure.capabilities().queue {
        let message = "this store keeps no queue: who waits for the hot name asks again after a pause, in no order";
        warn(message, json);
    }
}

fn stopped(signal: i32) -> Failure {
    Failure::new(Exit::Signal(signal), format!("stopped: {}", crate::signals::name(signal)))
}

/// Ends all workers, and what they did not give back themselves.
async fn give_up(mut failure: Failure, mut crew: Crew, tenure: &Tenure, plan: &Plan, signals: &mut Signals) -> Failure {
    // A signal to all processes of a service may be heard of from a worker first.
    if !matches!(failure.exit, Exit::Signal(_))
        && let Ok(signal) = tokio::time::timeout(AT_ONCE, signals.next()).await
    {
        failure = stopped(signal);
    }
    let orderly = signals.allow(STOP_MAX, crew.stop()).await == Some(true);
    crew.kill().await;
    if orderly || signals.allow(FAREWELL, sweep(tenure, plan)).await == Some(true) {
        return failure.and("every lock was released");
    }
    failure.and("what is still held ends with its ttl of 10s")
}

/// Ends the claims of workers that can no longer do so. True once there are none.
async fn sweep(tenure: &Tenure, plan: &Plan) -> bool {
    loop {
        let Ok(left) = tenure.list(plan.prefix()).await else { return false };
        if left.is_empty() {
            return true;
        }
        for view in left.iter().filter(|view| !view.holders.is_empty()) {
            let _ = tenure.break_holders(view.name.as_str(), None, "its process of tenure bench has died").await;
        }
        tokio::time::sleep(SWEEP_PAUSE).await;
    }
}
