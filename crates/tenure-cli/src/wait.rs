//! How long to wait for a lock.

use std::time::Duration;

use tenure::{Guard, Lock, Tenure};

use crate::duration;
use crate::exit::Exit;
use crate::failure::Failure;

/// How long an acquire waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// This long.
    Within(Duration),
    /// For ever.
    Forever,
}

impl Wait {
    /// What `--wait` and `--no-wait` come to. Waiting for no time is not waiting.
    pub(crate) fn of(wait: Option<Duration>, no_wait: bool) -> Self {
        match wait {
            _ if no_wait => Self::No,
            Some(Duration::ZERO) => Self::No,
            Some(limit) => Self::Within(limit),
            None => Self::Forever,
        }
    }

    /// What is left of it after some of it went by.
    pub(crate) fn less(self, passed: Duration) -> Self {
        match self {
            // Even a wait that is over asks the store once: it may be free.
            Self::Within(limit) => Self::Within(limit.saturating_sub(passed).max(Duration::from_millis(1))),
            other => other,
        }
    }

    /// Acquires.
    pub(crate) async fn acquire(self, tenure: &Tenure, lock: &Lock, name: &str) -> Result<Guard, tenure::Error> {
        match self {
            Self::Forever => lock.acquire().await,
            Self::Within(limit) => lock.acquire_within(limit).await,
            Self::No => match lock.try_acquire().await? {
                Some(guard) => Ok(guard),
                None => Err(busy(tenure, name).await),
            },
        }
    }
}

/// Says who holds a name; that the store says so a moment later than it refused does not matter here.
async fn busy(tenure: &Tenure, name: &str) -> tenure::Error {
    let holder = match tokio::time::timeout(Duration::from_secs(1), tenure.inspect(name)).await {
        Ok(Ok(view)) => view.holders.into_iter().next(),
        _ => None,
    };
    let message = match holder {
        Some(holder) => format!(
            "{name}: busy: held by {} (expires in {} unless renewed)",
            holder.label.as_deref().unwrap_or("somebody else"),
            holder.expires_in.map_or_else(|| "an unknown time".to_owned(), duration::show),
        ),
        None => format!("{name}: busy: held by somebody else"),
    };
    tenure::Error::new(tenure::ErrorKind::Timeout, message).in_store(tenure.url())
}

/// What a signal that ended the waiting comes to.
pub(crate) fn interrupted(name: &str, signal: i32) -> Failure {
    Failure::new(Exit::Signal(signal), format!("{name}: stopped waiting: signal {signal}; the claim was ended"))
}
