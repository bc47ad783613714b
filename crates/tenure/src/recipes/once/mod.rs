//! A job that runs once per slot, over a whole fleet.

mod attempt;
mod begin;
#[cfg(feature = "cron")]
mod cron;
mod decide;
mod record;
mod schedule;
mod skipped;
mod utc;

use std::fmt::Display;
use std::time::Duration;

use tracing::warn;

use crate::backend::Replicas;
use crate::engine::{Lock, Tenure};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::memo::MemoKind;
use crate::owner::Owner;

pub use attempt::{Attempt, Begun};
pub use decide::Missed;
pub use record::OnceRun;
pub use skipped::{Skipped, WhySkipped};

use decide::Rules;
use record::Record;
use schedule::Schedule;

/// A job that runs once per slot, whichever host of a fleet comes first. Made by [`Tenure::once`].
///
/// A slot is a period or a point of a cron schedule, by the store's clock: hosts' clocks do not matter. The run is
/// recorded with the name before the work starts and fenced by the store, so a host that dies in mid-run does not
/// have its slot run again, unless [`retry`](Self::retry) allows that.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
/// use tenure::OnceOutcome;
///
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let report = tenure.once("report").every(Duration::from_secs(24 * 3600));
/// let first = report.run(async { "written" }).await?;
/// assert!(matches!(first, OnceOutcome::Ran("written")));
/// match report.run(async { "written twice" }).await? {
///     OnceOutcome::Ran(_) => unreachable!(),
///     OnceOutcome::Skipped(skipped) => println!("{skipped}"), // slot 2026-11-18T00:00:00Z was run by …
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing runs before `run` is awaited"]
pub struct Once {
    tenure: Tenure,
    name: String,
    lock: Lock,
    schedule: Option<std::result::Result<Schedule, String>>,
    missed: Missed,
    retry: u32,
    reschedule: bool,
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceOutcome<T> {
    /// The work was run here, and this is its value.
    Ran(T),
    /// It was not.
    Skipped(Skipped),
}

impl Tenure {
    /// A job that runs once per slot under this name. Say when: [`Once::every`], or `Once::cron`.
    pub fn once(&self, name: impl AsRef<str>) -> Once {
        let name = name.as_ref().to_owned();
        // Each run has a claim of its own: its token is the one that everybody sees.
        let lock = self.lock(&name).strict_fifo();
        let (schedule, missed) = (None, Missed::default());
        Once { tenure: self.clone(), name, lock, schedule, missed, retry: 0, reschedule: false }
    }
}

impl Once {
    /// A slot is a period of this length, counted from 1970 in UTC: 1 s or more.
    pub fn every(mut self, period: Duration) -> Self {
        self.schedule = Some(Schedule::every(period));
        self
    }

    /// A slot begins at each point of this schedule: five fields (minute hour day month weekday), in a time zone such
    /// as `Europe/Berlin`. A fixed hour that comes twice runs once, one that is skipped runs after the gap; if minute
    /// or hour begins with `*`, slots follow real time. With the feature `cron`.
    #[cfg(feature = "cron")]
    pub fn cron(mut self, expression: impl AsRef<str>, zone: impl AsRef<str>) -> Self {
        let cron = cron::Cron::new(expression.as_ref(), zone.as_ref());
        self.schedule = Some(cron.map(|cron| Schedule::Cron(Box::new(cron))));
        self
    }

    /// What to do when the slot is over by the time the name is granted: skip by default.
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed;
        self
    }

    /// How many further attempts a slot has after one that failed; an end that was not recorded counts as a failure.
    /// None by default.
    pub fn retry(mut self, attempts: u32) -> Self {
        self.retry = attempts;
        self
    }

    /// Replaces another schedule that was used under this name until now. Without it that is refused.
    pub fn reschedule(mut self) -> Self {
        self.reschedule = true;
        self
    }

    /// How long the claim of a runner that died keeps others waiting: as [`Lock::ttl`].
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.lock = self.lock.ttl(ttl);
        self
    }

    /// What people see of the runner, instead of the client's label.
    pub fn label(mut self, label: impl AsRef<str>) -> Self {
        self.lock = self.lock.label(label);
        self
    }

    /// Starts only once so many replicas have the record: as [`Lock::min_replicas`].
    pub fn min_replicas(mut self, replicas: impl Into<Replicas>) -> Self {
        self.lock = self.lock.min_replicas(replicas);
        self
    }

    /// The owners this process runs within: as [`Lock::within`].
    pub fn within(mut self, owners: impl IntoIterator<Item = Owner>) -> Self {
        self.lock = self.lock.within(owners);
        self
    }

    /// Runs `work` unless the slot has been run, or is being run, by anybody. It is dropped the moment the lease is
    /// lost.
    ///
    /// The run counts as done once `work` ends; use [`try_run`](Self::try_run) for work that can fail. Should the
    /// store not confirm the end, that is logged, and counts as a failure there.
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin), and [`ErrorKind::Lost`] if the lease was lost before the work ended.
    ///
    /// # Cancel safety
    ///
    /// Cancelling before the start loses the place in the queue; afterwards it drops `work` where it stands, and the
    /// run counts as failed.
    pub async fn run<W: Future>(&self, work: W) -> Result<OnceOutcome<W::Output>> {
        self.run_told(work, |_| None).await
    }

    /// The same for work that can fail: an `Err` of it is recorded as a failure, and returned within
    /// [`OnceOutcome::Ran`].
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    ///
    /// As [`run`](Self::run).
    pub async fn try_run<T, E: Display>(
        &self,
        work: impl Future<Output = std::result::Result<T, E>>,
    ) -> Result<OnceOutcome<std::result::Result<T, E>>> {
        self.run_told(work, |output| output.as_ref().err().map(ToString::to_string)).await
    }

    async fn run_told<W: Future>(
        &self,
        work: W,
        failure: impl FnOnce(&W::Output) -> Option<String>,
    ) -> Result<OnceOutcome<W::Output>> {
        let attempt = match self.begin().await? {
            Begun::Run(attempt) => attempt,
            Begun::Skipped(skipped) => return Ok(OnceOutcome::Skipped(skipped)),
        };
        let output = attempt.guard().protect(work).await?;
        let ended = match failure(&output) {
            Some(failure) => attempt.failed(&failure).await,
            None => attempt.succeeded().await,
        };
        if let Err(error) = ended {
            warn!(%error, "the end of a run was not recorded");
        }
        if let Err(error) = attempt.into_guard().release().await {
            warn!(%error, "the name of a run was not released");
        }
        Ok(OnceOutcome::Ran(output))
    }

    /// The last 16 runs under this name, the latest first, whatever their schedule.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a bad name and where the store keeps no memos; [`ErrorKind::Conflict`] if a memo of
    /// another kind is kept there; store errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn status(&self) -> Result<Vec<OnceRun>> {
        Ok(self.record().await?.1.runs.iter().rev().map(record::Entry::shown).collect())
    }

    /// The record, and the token it was written under.
    async fn record(&self) -> Result<(Option<crate::token::Token>, Record)> {
        let Some(memo) = self.tenure.memo(&self.name).await? else { return Ok((None, Record::default())) };
        if memo.kind != MemoKind::Once {
            let message = format!("a memo of the kind {} is kept with this name: use another name", memo.kind);
            return Err(self.error(ErrorKind::Conflict, message));
        }
        match Record::read(&memo.bytes) {
            Some(record) => Ok((Some(memo.token), record)),
            None => Err(self.error(ErrorKind::Store, "what is kept with this name is no record of runs")),
        }
    }

    fn rules(&self) -> Result<Rules> {
        let store = self.tenure.capabilities();
        if !store.memos || !store.time || !store.tokens {
            let message = "this store keeps no memos or does not tell the time, so nobody could know what was run: use \
                           another store for jobs that run once";
            return Err(self.error(ErrorKind::Invalid, message));
        }
        let schedule = match &self.schedule {
            Some(Ok(schedule)) => schedule.clone(),
            Some(Err(problem)) => return Err(self.error(ErrorKind::Invalid, problem.as_str())),
            None => return Err(self.error(ErrorKind::Invalid, "say when it is due: every, or cron")),
        };
        Ok(Rules { schedule, missed: self.missed, retry: self.retry, reschedule: self.reschedule })
    }

    fn error(&self, kind: ErrorKind, message: impl Into<String>) -> Error {
        let error = Error::new(kind, message).at(Step::Memo).in_store(self.tenure.url());
        match crate::Name::new(&self.name) {
            Ok(name) => error.about(&name),
            Err(_) => error,
        }
    }
}
