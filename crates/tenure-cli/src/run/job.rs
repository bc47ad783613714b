//! `once`: the slot of a job, from its recorded start to its recorded end.

use std::time::Instant;

use tenure::{Attempt, Begun, Once, Owner, Tenure};

use super::hold::Hold;
use super::plan::Plan;
use super::purpose::{Due, Job};
use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, tell};
use crate::signals;
use crate::waiting::{self, Waiting};

/// How a command ended, for the record.
pub(super) enum End<'a> {
    /// It was not started.
    NotStarted,
    /// It was ended, for its time was over.
    TimedOut,
    By(&'a Result<Exit, Failure>),
}

/// Waits for the slot and for whoever is in the way, and records the start.
pub(super) async fn begin(plan: &Plan, job: &Job, tenure: &Tenure, started: Instant) -> Result<Hold, Failure> {
    let Some(name) = plan.names.first() else { return Err(Failure::usage("no name")) };
    let once = job.once(plan, tenure.once(name.as_str()));
    let (owner, json) = (Owner::random(), plan.json);
    let beginning = once.begin();
    let waiting = Waiting { tenure, name, owner: &owner, since: started, json };
    match waiting::shown(waiting, beginning).await? {
        Begun::Run(attempt) => {
            if let Some(run) = attempt.entry() {
                tell(format_args!("{name}: runs slot {}, attempt {}", run.slot, run.attempt));
            }
            Ok(Hold::Slot(Box::new(attempt)))
        }
        Begun::Skipped(skipped) => {
            Err(Failure::new(Exit::NotAcquired, format!("{name}: {skipped}")).skipped().of(name))
        }
    }
}

/// Records how the command ended.
pub(super) async fn end(plan: &Plan, attempt: &Attempt, end: End<'_>) -> tenure::Result<()> {
    let how = match end {
        End::NotStarted => return attempt.withdrawn().await,
        End::TimedOut => {
            format!("timed out after {}", plan.purpose.timeout().map(duration::exact).unwrap_or_default())
        }
        End::By(Ok(Exit::Command(0))) => return attempt.succeeded().await,
        End::By(Ok(Exit::Signal(signal))) => signals::name(*signal),
        End::By(Ok(exit)) => format!("exit {}", exit.code()),
        End::By(Err(failure)) => failure.to_string(),
    };
    attempt.failed(&how).await
}

impl Job {
    fn once(&self, plan: &Plan, once: Once) -> Once {
        let once = match &self.due {
            Due::Every(period) => once.every(*period),
            Due::Cron { expression, zone } => once.cron(expression, zone),
        };
        let mut once = once.missed(self.missed).retry(self.retry).ttl(plan.ttl).label(&plan.label);
        once = once.within(plan.held.owners());
        if self.reschedule {
            once = once.reschedule();
        }
        match plan.replicas() {
            Some(replicas) => once.min_replicas(replicas),
            None => once,
        }
    }
}
