//! How long a claim, and each request for it, is waited for.

use std::sync::OnceLock;
use std::time::Duration;

use super::core::Core;
use super::plan::Plan;
use crate::clock::Moment;
use crate::lease;

/// How long a store may be out of reach before a claim that it never answered fails.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same for a store that answers other claims of this client meanwhile.
const PATIENCE_MAX: Duration = Duration::from_secs(60);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const CALL_TIMEOUT_MAX: Duration = Duration::from_secs(5);
const CALL_TIMEOUT_MIN: Duration = Duration::from_millis(250);

/// How long a caller wants to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// Not at all.
    No,
    /// Until then.
    Until(Moment),
    /// For ever.
    Forever,
}

impl Wait {
    pub(super) fn limit(self) -> Option<Moment> {
        match self {
            Self::Until(moment) => Some(moment),
            Self::No | Self::Forever => None,
        }
    }
}

/// How long a store may take to answer one request.
pub(super) fn call_patience(plan: &Plan) -> Duration {
    (plan.ttl / 3).clamp(CALL_TIMEOUT_MIN, CALL_TIMEOUT_MAX)
}

/// How long one request may go unanswered before it is repeated. Evaluated when it has to be waited for.
pub(super) fn call_limit(
    core: &Core,
    plan: &Plan,
    started: &OnceLock<Moment>,
    reached: bool,
    wait: Wait,
) -> impl Fn() -> Moment {
    let patience = call_patience(plan);
    move || {
        let now = core.clock.now();
        let started = *started.get_or_init(|| now);
        let limit = lease::about(now + patience);
        let until = match wait {
            // However short the wait, a free lock is found free.
            Wait::Until(until) if !reached => until.max(started + CALL_TIMEOUT_MIN),
            Wait::Until(until) => until,
            Wait::Forever if !reached => patience_over(core, started),
            Wait::Forever | Wait::No => limit,
        };
        limit.min(until)
    }
}

/// When a claim fails that the store never answered. A store that answers others is slow rather than out of reach: to
/// fail is then to begin anew behind everybody else, which helps nobody.
pub(super) fn patience_over(core: &Core, started: Moment) -> Moment {
    (core.last_answered().max(started) + PATIENCE).min(started + PATIENCE_MAX)
}

/// The pause before a request is repeated that failed so often.
pub(super) fn pause_before(tries: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1 << tries.min(5)).min(PAUSE_MAX).mul_f64(0.5 + rand::random::<f64>() / 2.0)
}
