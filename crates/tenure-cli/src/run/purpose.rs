//! What a command is run for.

use std::time::Duration;

use tenure::Missed;

/// Why the command holds the lock.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// `run`: to be alone with it.
    Run,
    /// `elect`: to lead.
    Lead {
        /// Whether it ends when the leadership is lost.
        once: bool,
        /// Where it is reached.
        address: Option<String>,
    },
    /// `once`: to run the slot of a job.
    Once(Job),
}

/// When a job is due, and what is done about one that was missed or failed.
#[derive(Debug)]
pub(crate) struct Job {
    pub(super) due: Due,
    pub(super) missed: Missed,
    pub(super) retry: u32,
    pub(super) reschedule: bool,
    /// How long the command may take.
    pub(super) timeout: Option<Duration>,
}

#[derive(Debug)]
pub(crate) enum Due {
    Every(Duration),
    Cron { expression: String, zone: String },
}

impl Purpose {
    /// Whether what the command leaves running is ended before the lock is given back.
    pub(super) fn ends_whole_group(&self) -> bool {
        matches!(self, Self::Lead { .. })
    }

    /// How long the command may take.
    pub(super) fn timeout(&self) -> Option<Duration> {
        match self {
            Self::Once(job) => job.timeout,
            _ => None,
        }
    }

    /// Whether the client is needed once more when the lock is given back.
    pub(super) fn comes_again(&self) -> bool {
        matches!(self, Self::Lead { .. })
    }
}
