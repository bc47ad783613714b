//! A run that was recorded and may start.

use super::record::{OK, OnceRun, Record};
use super::skipped::Skipped;
use crate::clock::{Moment, micros};
use crate::engine::{Guard, Tenure};
use crate::error::Result;
use crate::memo::MemoKind;

/// What became of a wish to run a slot: [`Once::begin`](super::Once::begin).
#[derive(Debug)]
pub enum Begun {
    /// It is recorded as begun: start now.
    Run(Attempt),
    /// It is not to be run here.
    Skipped(Skipped),
}

/// An attempt to run a slot: recorded as begun, with the name held. Say how it ended while it is held; one that is
/// dropped without that counts as failed.
#[derive(Debug)]
#[must_use = "dropping an attempt ends it, as one that failed"]
#[clippy::has_significant_drop]
pub struct Attempt {
    tenure: Tenure,
    guard: Guard,
    /// The record, and what it was before.
    record: Record,
    before: Record,
    /// When it started: on the store's clock, and on the client's.
    started: (u64, Moment),
}

impl Attempt {
    /// Records the start. It is made only once the store has answered.
    pub(super) async fn start(
        tenure: &Tenure,
        guard: Guard,
        (record, before): (Record, Record),
        now: u64,
    ) -> Result<Self> {
        let started = (now, tenure.clock().now());
        let attempt = Self { tenure: tenure.clone(), guard, record, before, started };
        match attempt.write(&attempt.record).await {
            Ok(()) => Ok(attempt),
            Err(error) => {
                // A start that was not made is no attempt.
                if let Err(left) = attempt.withdrawn().await {
                    tracing::debug!(error = %left, "a start that was not made could not be taken back");
                }
                Err(error)
            }
        }
    }

    /// What is recorded of it.
    pub fn entry(&self) -> Option<OnceRun> {
        self.record.last().map(super::record::Entry::shown)
    }

    /// The lease it runs under.
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The lease it runs under. What was not recorded by now is recorded no more.
    pub fn into_guard(self) -> Guard {
        self.guard
    }

    /// Records that it did what it should.
    ///
    /// # Errors
    ///
    /// As [`Guard::write_memo`].
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: call it again, or leave it as a failure.
    pub async fn succeeded(&self) -> Result<()> {
        self.write(&self.record.with_end(self.now(), OK)).await
    }

    /// Records that it failed, and how.
    ///
    /// # Errors
    ///
    /// As [`Guard::write_memo`].
    ///
    /// # Cancel safety
    ///
    /// As [`succeeded`](Self::succeeded).
    pub async fn failed(&self, how: &str) -> Result<()> {
        let how = if how.is_empty() || how == OK { "failed" } else { how };
        self.write(&self.record.with_end(self.now(), how)).await
    }

    /// Takes the record of its start back: nothing was started.
    ///
    /// # Errors
    ///
    /// As [`Guard::write_memo`].
    ///
    /// # Cancel safety
    ///
    /// As [`succeeded`](Self::succeeded).
    pub async fn withdrawn(&self) -> Result<()> {
        self.write(&self.before).await
    }

    /// The store's time: its own at the start, and what has passed since.
    fn now(&self) -> u64 {
        let (store, client) = self.started;
        store.saturating_add(micros(self.tenure.clock().now().since(client)) / 1_000)
    }

    async fn write(&self, record: &Record) -> Result<()> {
        self.guard.write_memo_as(MemoKind::Once, &record.to_bytes(), None).await.map(drop)
    }
}
