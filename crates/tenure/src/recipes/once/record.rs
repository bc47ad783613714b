//! What the memo of a job keeps: its last runs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::utc;

/// How many runs are kept.
const RUNS_MAX: usize = 16;
/// The longest text of an outcome, in characters.
const OUTCOME_CHARS_MAX: usize = 200;

/// The outcome of a run that did what it should.
pub(super) const OK: &str = "ok";

/// One run of a job, as its record has it. Moments are of the store's clock, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) schedule: String,
    pub(super) slot: String,
    /// The first is 1.
    pub(super) attempt: u32,
    pub(super) by: String,
    pub(super) started: String,
    pub(super) ended: Option<String>,
    /// `ok`, or how it failed.
    pub(super) outcome: Option<String>,
}

/// The last runs of a job, the latest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) runs: Vec<Entry>,
}

/// One run of a job that runs once per slot: [`Once::status`](crate::Once::status).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OnceRun {
    /// The schedule: `every 1h`, `cron 0 3 * * * Europe/Berlin`.
    pub schedule: String,
    /// The slot that it ran.
    pub slot: String,
    /// Which attempt it was; the first is 1.
    pub attempt: u32,
    /// Who ran it.
    pub by: String,
    /// When it started, by the store's clock.
    pub started: SystemTime,
    /// When it ended, if that was recorded.
    pub ended: Option<SystemTime>,
    /// `ok`, or how it failed; none if its end was not recorded.
    pub outcome: Option<String>,
}

impl Entry {
    /// When it started, in milliseconds of the store's clock.
    pub(super) fn started_ms(&self) -> u64 {
        utc::read(&self.started).unwrap_or(0)
    }

    pub(super) fn is_ok(&self) -> bool {
        self.outcome.as_deref() == Some(OK)
    }

    pub(super) fn is_unended(&self) -> bool {
        self.outcome.is_none()
    }

    pub(super) fn shown(&self) -> OnceRun {
        OnceRun {
            schedule: self.schedule.clone(),
            slot: self.slot.clone(),
            attempt: self.attempt,
            by: self.by.clone(),
            started: at(self.started_ms()),
            ended: self.ended.as_deref().and_then(utc::read).map(at),
            outcome: self.outcome.clone(),
        }
    }
}

/// A moment of the store's clock.
pub(super) fn at(ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(ms)
}

impl Record {
    /// Reads it; none of it if these are no runs.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn last(&self) -> Option<&Entry> {
        self.runs.last()
    }

    /// The same with one more run.
    pub(super) fn with(&self, run: Entry) -> Self {
        let kept = self.runs.len().saturating_sub(RUNS_MAX - 1);
        Self { runs: self.runs.iter().skip(kept).cloned().chain([run]).collect() }
    }

    /// The same with the end of its last run.
    pub(super) fn with_end(&self, ended_ms: u64, outcome: &str) -> Self {
        let mut record = self.clone();
        if let Some(last) = record.runs.last_mut() {
            last.ended = Some(utc::text(ended_ms));
            let shown = outcome.chars().map(|c| if c.is_control() { ' ' } else { c });
            last.outcome = Some(shown.take(OUTCOME_CHARS_MAX).collect());
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memo::MEMO_BYTES_MAX;

    fn entry(number: u32) -> Entry {
        Entry {
            schedule: "s".repeat(320),
            slot: utc::text(u64::from(number) * 3_600_000),
            attempt: 1,
            by: "\u{1f600}".repeat(256),
            started: utc::text(7),
            ended: None,
            outcome: None,
        }
    }

    #[test]
    fn the_last_sixteen_are_kept_and_fit_into_a_memo() {
        let mut record = Record::default();
        for number in 0..20 {
            record = record.with(entry(number)).with_end(9, &"\u{1f600}\n".repeat(1_000));
        }
        assert_eq!((record.runs.len(), record.last().unwrap().slot.as_str()), (16, "1970-01-01T19:00:00Z"));
        let bytes = record.to_bytes();
        assert!(bytes.len() < MEMO_BYTES_MAX, "{}", bytes.len());
        assert_eq!(Record::read(&bytes), Some(record));
        assert_eq!(Record::read(b"{}"), None);
    }
}
