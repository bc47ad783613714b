//! The arithmetic of a lease. Nothing here reads a clock.

use std::time::Duration;

use crate::clock::Moment;

/// `lost()` fires this long before the deadline, so that it is never late.
const LOST_LEAD: Duration = Duration::from_millis(2);
/// Waiting claims are renewed at least this often.
const WAITING_RENEWAL_MAX: Duration = Duration::from_secs(5);
/// The soonest repetition of an unanswered request.
const REPEAT_MIN: Duration = Duration::from_millis(50);
/// How much later than the one before it each waiter looks for a dead holder.
const STAGGER: Duration = Duration::from_millis(50);
const STAGGER_MAX: Duration = Duration::from_secs(1);
/// What the limits of requests are rounded up to, in microseconds: little beside the shortest of them.
const LIMIT_GRID: u64 = 20_000;

/// What clocks of different rates may differ by in one ttl: 1 % and 2 ms.
pub(crate) fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a claim may be trusted whose ttl counts from `counted_from`.
pub(crate) fn deadline(counted_from: Moment, ttl: Duration) -> Moment {
    counted_from + ttl.saturating_sub(margin(ttl))
}

/// When the holder is told that a lease with this deadline is lost.
pub(crate) fn lost_at(deadline: Moment) -> Moment {
    deadline - LOST_LEAD
}

/// When a held claim is renewed.
pub(crate) fn renew_at(counted_from: Moment, ttl: Duration) -> Moment {
    counted_from + ttl / 3
}

/// When a waiting claim asks again: in time to stay alive, and when the holder's claim would die, each
/// waiter a little after the one before it.
pub(crate) fn ask_at(counted_from: Moment, ttl: Duration, holder_expires_in: Duration, waiters_ahead: usize) -> Moment {
    let alive = counted_from + (ttl / 3).min(WAITING_RENEWAL_MAX);
    let stagger = STAGGER.saturating_mul(u32::try_from(waiters_ahead).unwrap_or(u32::MAX)).min(STAGGER_MAX);
    // A millisecond more: at the very moment of expiry the claim is dead, a microsecond before it is not.
    let holder_dead = counted_from + holder_expires_in + stagger + Duration::from_millis(1);
    alive.min(holder_dead)
}

/// The limit of a request, or a little later: many requests then share a moment, which makes their limits cheap to keep.
pub(crate) fn about(limit: Moment) -> Moment {
    Moment(limit.as_micros().saturating_add(LIMIT_GRID - 1) / LIMIT_GRID * LIMIT_GRID)
}

/// How long a request may go unanswered before it is repeated.
pub(crate) fn repeat_after(ttl: Duration) -> Duration {
    (ttl / 9).max(REPEAT_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(1_000_000_000);

    #[test]
    fn a_deadline_counts_from_before_the_request_less_the_margin() {
        let ttl = Duration::from_secs(10);
        assert_eq!(deadline(START, ttl), START + Duration::from_millis(9_898));
        assert_eq!(lost_at(deadline(START, ttl)), START + Duration::from_millis(9_896));
        assert_eq!(deadline(START, Duration::from_millis(1)), START, "never before the request");
    }

    #[test]
    fn three_renewals_fit_into_a_ttl_and_repeats_into_a_renewal() {
        for ttl in [100, 1_000, 10_000, 86_400_000].map(Duration::from_millis) {
            let renewal = renew_at(START, ttl);
            assert!(renewal + repeat_after(ttl) < lost_at(deadline(START, ttl)), "{ttl:?}");
        }
    }

    #[test]
    fn waiters_look_for_a_dead_holder_one_after_another() {
        let ttl = Duration::from_secs(60);
        let soon = Duration::from_millis(100);
        let asks: Vec<_> = (0..30).map(|ahead| ask_at(START, ttl, soon, ahead)).collect();
        assert_eq!(asks[0], START + Duration::from_millis(101));
        assert_eq!(asks[1], START + Duration::from_millis(151));
        assert_eq!(asks[29], START + Duration::from_millis(1_101), "at most a second later");
        assert_eq!(ask_at(START, ttl, ttl, 0), START + Duration::from_secs(5), "and stays alive meanwhile");
    }
}
