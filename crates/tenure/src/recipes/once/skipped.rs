//! Why a slot was skipped, for people and programs.

use std::fmt;
use std::time::SystemTime;

use super::decide::Why;
use super::record::{Entry, at};
use super::utc;

/// Why a slot was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhySkipped {
    /// It was run.
    Done,
    /// It is being run, or a later one is.
    Runs,
    /// The run of an earlier slot goes on.
    PredecessorRuns,
    /// It failed, as often as it may be tried.
    Failed,
    /// It was begun, its end was not recorded, and it may not be tried again.
    Unended,
    /// It was over when the name was granted ([`Missed::Skip`](super::Missed::Skip)).
    Over,
    /// It began before the last run of the schedule that was replaced.
    Rescheduled,
}

/// A slot that was not run here: who ran it, when, and how that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Skipped {
    /// The slot.
    pub slot: String,
    /// Who ran it, or runs what keeps it from being run.
    pub by: Option<String>,
    /// When that started, by the store's clock.
    pub when: Option<SystemTime>,
    /// How that ended: `ok`, or how it failed; none if that is not known.
    pub outcome: Option<String>,
    /// Why it was skipped.
    pub why: WhySkipped,
    told: String,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.told)
    }
}

impl Skipped {
    pub(super) fn new(slot: &str, why: &Why) -> Self {
        let (kind, run, told) = match why {
            Why::Done(run) => (WhySkipped::Done, Some(run), format!("{} and ended ok", was_run(run))),
            Why::Runs(run) => (WhySkipped::Runs, Some(run), format!("slot {} is being run {}", run.slot, by(run))),
            Why::PredecessorRuns(run) => {
                let told = format!("slot {slot} is skipped: slot {} is still being run {}", run.slot, by(run));
                (WhySkipped::PredecessorRuns, Some(run), told)
            }
            Why::Failed(run) => {
                let outcome = run.outcome.as_deref().unwrap_or_default();
                (WhySkipped::Failed, Some(run), format!("{} and failed: {outcome}{}", was_run(run), tried(run)))
            }
            Why::Unended(run) => {
                let told = format!("{} and its end was not recorded{}", was_run(run), tried(run));
                (WhySkipped::Unended, Some(run), told)
            }
            Why::Over { present } => {
                let told = format!("slot {slot} was over when its turn came: slot {present} is present");
                (WhySkipped::Over, None, told)
            }
            Why::Rescheduled(run) => {
                let told = format!("slot {slot} began before the last run of `{}`, {}", run.schedule, by(run));
                (WhySkipped::Rescheduled, Some(run), told)
            }
        };
        Self {
            slot: slot.to_owned(),
            by: run.map(|run| run.by.clone()),
            when: run.map(|run| at(run.started_ms())),
            outcome: run.and_then(|run| run.outcome.clone()),
            why: kind,
            told,
        }
    }
}

fn was_run(run: &Entry) -> String {
    format!("slot {} was run {}", run.slot, by(run))
}

fn by(run: &Entry) -> String {
    format!("by {} at {}", run.by, utc::text(run.started_ms() / 1_000 * 1_000))
}

fn tried(run: &Entry) -> String {
    if run.attempt == 1 { String::new() } else { format!(" (attempt {})", run.attempt) }
}
