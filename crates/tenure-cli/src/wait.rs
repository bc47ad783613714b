//! How long to wait for a lock.

use std::time::{Duration, Instant};

use tenure::{Error, ErrorKind, Guard, Lock, Name, Owner, Tenure};

use crate::duration;
use crate::exit::Exit;
use crate::failure::{Failure, Holder};
use crate::label;
use crate::signals::{self, Signals};

/// What a wait is given that was over before the store was reached: time to ask once, for the lock may be free.
const ONE_TRY: Duration = Duration::from_millis(1);
/// How long it may take to find out who is in the way, for the message alone.
const CURIOSITY: Duration = Duration::from_secs(1);
/// How long the store may take to confirm that a failed attempt was cleaned up; it has just failed to answer.
const CLEAN_UP_FAILED: Duration = Duration::from_secs(1);
/// How long the store may take to confirm the last thing a command asks of it. What it does not ends with its ttl.
pub(crate) const FAREWELL: Duration = Duration::from_secs(3);

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

    /// Acquires `lock`, which is of `name`. The waiting began at `started`, before the store was reached.
    pub(crate) async fn acquire(
        self,
        started: Instant,
        tenure: &Tenure,
        name: &Name,
        lock: &Lock,
    ) -> Result<Guard, Failure> {
        match self {
            Self::Forever => Ok(lock.acquire().await?),
            Self::Within(limit) => {
                let left = limit.saturating_sub(started.elapsed()).max(ONE_TRY);
                lock.acquire_within(left).await.map_err(|error| match error.kind() {
                    // The limit is the caller's, not what was left of it.
                    ErrorKind::Timeout => {
                        let why = timed_out(&error, limit);
                        not_acquired(tenure, name, &why, error.holder().map(Holder::of))
                    }
                    _ => error.into(),
                })
            }
            Self::No => match lock.try_acquire().await? {
                Some(guard) => Ok(guard),
                None => Err(busy(tenure, name).await.busy()),
            },
        }
    }
}

fn not_acquired(tenure: &Tenure, name: &Name, why: &str, holder: Option<Holder>) -> Failure {
    Failure::from(Error::new(ErrorKind::Timeout, why).about(name).in_store(tenure.url())).held_by(holder)
}

fn timed_out(error: &Error, limit: Duration) -> String {
    let holder = error.holder().map_or_else(
        || "held by somebody else".to_owned(),
        |holder| match holder.ahead {
            // The holder itself is one of them.
            0 | 1 => format!("held by {}", holder.label),
            ahead => format!("held by {}, {} more ahead", holder.label, ahead - 1),
        },
    );
    format!("not acquired within {}: {holder}", duration::exact(limit))
}

/// Says who holds a name; that the store says so a moment later than it refused does not matter here.
async fn busy(tenure: &Tenure, name: &Name) -> Failure {
    let holder = match tokio::time::timeout(CURIOSITY, tenure.inspect(name.as_str())).await {
        Ok(Ok(view)) => view.holders.into_iter().next(),
        _ => None,
    };
    let Some(holder) = holder else { return not_acquired(tenure, name, "busy: held by somebody else", None) };
    let until = match holder.expires_in {
        Some(left) => format!("expires in {} unless renewed", duration::show(left)),
        None => "no expiry is known".to_owned(),
    };
    let label = label::of_holder(&holder);
    let why = format!("busy: held by {label} ({until})");
    not_acquired(tenure, name, &why, Some(Holder { label, expires_in_ms: holder.expires_in.map(duration::ms) }))
}

/// Ends the claim of an attempt that too few replicas have. An id that follows from its owner may be in use again, so
/// the engine leaves such a claim to its ttl; here it is known that it is not.
pub(crate) async fn give_back(tenure: &Tenure, name: &Name, owner: &Owner, failure: &Failure) {
    if failure.kind() == Some(ErrorKind::Replicas) {
        let _ = tokio::time::timeout(CLEAN_UP_FAILED, tenure.release_as(name.as_str(), owner)).await;
    }
}

/// Why an attempt ended without the lock.
pub(crate) enum Unfinished {
    Failed(Failure),
    /// By this signal.
    Interrupted(i32),
}

/// Ends what an attempt, dropped before, has left in the store, and says why it ended.
pub(crate) async fn give_up(tenure: &Tenure, name: &str, signals: &mut Signals, why: Unfinished) -> Failure {
    let limit = match why {
        Unfinished::Failed(_) => CLEAN_UP_FAILED,
        Unfinished::Interrupted(_) => FAREWELL,
    };
    let ended = matches!(signals.allow(limit, tenure.close()).await, Some(Ok(())));
    match why {
        Unfinished::Failed(failure) => failure,
        Unfinished::Interrupted(signal) if ended => interrupted(name, signal).and("the claim was ended"),
        Unfinished::Interrupted(signal) => {
            interrupted(name, signal).and("the store did not answer, so the claim ends with its ttl")
        }
    }
}

/// What a signal that ended the waiting comes to.
pub(crate) fn interrupted(name: &str, signal: i32) -> Failure {
    Failure::new(Exit::Signal(signal), format!("{name}: stopped waiting: {}", signals::name(signal)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_no_time_is_not_waiting() {
        assert_eq!(Wait::of(Some(Duration::ZERO), false), Wait::No);
        assert_eq!(Wait::of(None, true), Wait::No);
        assert_eq!(Wait::of(None, false), Wait::Forever);
        assert_eq!(Wait::of(Some(ONE_TRY), false), Wait::Within(ONE_TRY));
    }
}
