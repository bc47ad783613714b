//! The arithmetic of a lease. Nothing here reads a clock.

use std::time::Duration;

use crate::clock::{Moment, NEVER, micros};

/// `lost()` fires this long before the deadline, so that it is never late.
const LOST_LEAD: Duration = Duration::from_millis(2);
/// And this much earlier for each claim of the client: all may be lost at once, and tasks take time to wake.
const LOST_LEAD_EACH: Duration = Duration::from_micros(1);
/// Renewals and looks are rounded down to this part of the ttl, so that many become due together.
const GRID: u64 = 64;
/// Those of claims that wait to this part of the time between two of them: nobody trusts them to the last moment.
const WAITING_GRID: u64 = 5;
/// The pause before a claim is asked for again: it doubles with each failure.
const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_DOUBLINGS: u32 = 6;
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
pub fn margin(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Until when a claim may be trusted whose ttl counts from `counted_from`.
pub fn deadline(counted_from: Moment, ttl: Duration) -> Moment {
    counted_from + ttl.saturating_sub(margin(ttl))
}

/// When the holder is told that a lease with this deadline is lost.
pub fn lost_at(deadline: Moment) -> Moment {
    deadline - LOST_LEAD
}

/// When the watchdog of a client with so many claims tells the holder of one: early enough to be in time for all of
/// them, but not earlier than the margin again.
pub fn tell_at(deadline: Moment, ttl: Duration, claims: usize) -> Moment {
    let each = LOST_LEAD_EACH.saturating_mul(u32::try_from(claims).unwrap_or(u32::MAX));
    deadline - (LOST_LEAD + each).min(margin(ttl))
}

/// When to look whether a claim is to be told at `tell_at`, or lives on: a little before, so that many share a moment.
pub fn look_at(tell_at: Moment, ttl: Duration) -> Moment {
    if tell_at == NEVER { NEVER } else { Moment(tell_at.as_micros() - tell_at.as_micros() % grid(ttl)) }
}

/// The part of a ttl that moments are rounded down to if many claims are to share them, in microseconds.
pub fn grid(ttl: Duration) -> u64 {
    (micros(ttl) / GRID).max(1)
}

/// When a held claim is renewed.
pub fn renew_at(counted_from: Moment, ttl: Duration) -> Moment {
    counted_from + ttl / 3
}

/// When a waiting claim asks again: in time to stay alive, and when the holder's claim would die, each
/// waiter a little after the one before it.
pub fn ask_at(counted_from: Moment, ttl: Duration, holder_expires_in: Duration, waiters_ahead: usize) -> Moment {
    let every = (ttl / 3).min(WAITING_RENEWAL_MAX);
    let alive = (counted_from + every).as_micros();
    // Rounded down, so that those who came one after the other are renewed together.
    let alive = Moment(alive - alive % (micros(every) / WAITING_GRID).max(1));
    let stagger = STAGGER.saturating_mul(u32::try_from(waiters_ahead).unwrap_or(u32::MAX)).min(STAGGER_MAX);
    // A millisecond more: at the very moment of expiry the claim is dead, a microsecond before it is not.
    let holder_dead = counted_from + holder_expires_in + stagger + Duration::from_millis(1);
    alive.min(holder_dead)
}

/// The limit of a request, or a little later: many requests then share a moment, which makes their limits cheap to
/// keep.
pub fn about(limit: Moment) -> Moment {
    Moment(limit.as_micros().saturating_add(LIMIT_GRID - 1) / LIMIT_GRID * LIMIT_GRID)
}

/// How long a request may go unanswered before it is repeated.
pub fn repeat_after(ttl: Duration) -> Duration {
    (ttl / 9).max(REPEAT_MIN)
}

/// When a claim is asked for again that so many requests in a row have failed for. The moments lie on a grid, so that
/// many claims share a batch; `jitter`, from 0 to 1, is the client's own, and keeps clients apart.
pub fn retry_at(now: Moment, ttl: Duration, failures: u32, jitter: f64) -> Moment {
    let pause = RETRY_MIN.saturating_mul(1 << failures.min(RETRY_DOUBLINGS)).min(repeat_after(ttl));
    let grid = (micros(pause) / 4).max(1);
    let offset = micros(pause.mul_f64(jitter.clamp(0.0, 1.0) / 4.0));
    let earliest = (now + pause / 2).as_micros();
    Moment(earliest.saturating_sub(offset).div_ceil(grid).saturating_mul(grid).saturating_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(1_000_000_000);

    #[test]
    fn a_waiter_asks_again_after_most_of_the_usual_time_whatever_its_ttl() {
        for ttl in [100, 1_000, 10_000, 60_000, 3_600_000, 86_400_000].map(Duration::from_millis) {
            let every = (ttl / 3).min(WAITING_RENEWAL_MAX);
            for offset in 0..1_000 {
                let from = Moment(1_000_000_000 + offset * 7_919);
                let after = ask_at(from, ttl, TTL_FAR, 0).since(from);
                assert!(after >= every * 4 / 5 && after <= every, "{ttl:?}: {after:?}");
            }
        }
    }

    const TTL_FAR: Duration = Duration::from_secs(1_000_000);

    #[test]
    fn a_deadline_counts_from_before_the_request_less_the_margin() {
        let ttl = Duration::from_secs(10);
        assert_eq!(deadline(START, ttl), START + Duration::from_millis(9_898));
        assert_eq!(lost_at(deadline(START, ttl)), START + Duration::from_millis(9_896));
        assert_eq!(deadline(START, Duration::from_millis(1)), START, "never before the request");
    }

    #[test]
    fn the_holders_of_many_leases_are_told_earlier_but_never_by_more_than_the_margin() {
        let (ttl, deadline) = (Duration::from_secs(10), START + Duration::from_secs(100));
        let lead = |claims| deadline.since(tell_at(deadline, ttl, claims));
        assert_eq!(lead(0), Duration::from_millis(2));
        assert_eq!(lead(10_000), Duration::from_millis(12));
        assert_eq!(lead(10_000_000), margin(ttl));
        assert_eq!(deadline.since(tell_at(deadline, Duration::from_millis(100), 100_000)), Duration::from_millis(3));
    }

    #[test]
    fn retries_share_moments_and_their_pauses_grow_up_to_a_ninth_of_the_ttl() {
        let ttl = Duration::from_secs(9);
        for jitter in [0.0, 0.3, 1.0] {
            let at = |after: u64, failures| retry_at(START + Duration::from_millis(after), ttl, failures, jitter);
            for failures in 1..20 {
                let pause = at(0, failures).since(START);
                let longest = Duration::from_millis(20 << failures.min(6)).min(ttl / 9);
                assert!((longest / 2..=longest).contains(&pause), "{failures} failures: {pause:?}");
            }
            let moments: std::collections::BTreeSet<_> = (0..1_000).map(|after| at(after, 6)).collect();
            assert!(moments.len() <= 6, "{moments:?}");
        }
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
