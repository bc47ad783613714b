//! For tests of programs that use locks: time that stands still until a test moves it. With the feature `testing`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use tenure::Tenure;
//! use tenure::backends::memory::MemoryStore;
//! use tenure::testing::ManualClock;
//!
//! let clock = Arc::new(ManualClock::new());
//! let store = MemoryStore::on(clock.clone());
//! let tenure = Tenure::over(Arc::new(store.client()), clock.clone(), "test");
//! let guard = tenure.lock("report").no_renewal().acquire().await?;
//! clock.advance(Duration::from_secs(10)); // the ttl
//! assert!(!guard.is_held());
//! assert!(tenure.lock("report").try_acquire().await?.is_some());
//! # Ok(()) }
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::{Clock, Moment, Timer, micros};

/// Where the boot-time clock starts: an hour after boot, so that "zero" is never mistaken for "now".
const START: Moment = Moment(3_600_000_000);
/// Where the wall clock starts: 2026-01-01 00:00:00 UTC.
const WALL_START_MICROS: u64 = 1_767_225_600_000_000;

/// A clock that moves only when told to. Timers wake when it reaches their moment; nothing ever sleeps.
///
/// Cloning it gives another handle of the same clock.
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<Mutex<Time>>,
}

struct Time {
    now: Moment,
    wall_micros: u64,
    sleepers: Vec<Sleeper>,
    timers_made: u64,
}

/// A task that waits for a moment; one for each timer at most.
struct Sleeper {
    timer: u64,
    at: Moment,
    waker: Waker,
}

impl ManualClock {
    /// A clock that stands at an arbitrary moment of 2026.
    #[must_use]
    pub fn new() -> Self {
        let time = Time { now: START, wall_micros: WALL_START_MICROS, sleepers: Vec::new(), timers_made: 0 };
        Self { shared: Arc::new(Mutex::new(time)) }
    }

    /// Lets time pass, on both clocks, and wakes whoever waited for it.
    pub fn advance(&self, by: Duration) {
        let mut time = self.time();
        time.now = time.now + by;
        time.wall_micros = time.wall_micros.saturating_add(micros(by));
        let now = time.now;
        let (due, waiting) = time.sleepers.drain(..).partition(|sleeper: &Sleeper| sleeper.at <= now);
        time.sleepers = waiting;
        drop(time);
        // Woken without the lock: a waker may poll at once.
        for sleeper in due {
            sleeper.waker.wake();
        }
    }

    /// Steps the wall clock alone, as an administrator or NTP does; back if negative.
    pub fn step_wall(&self, by_micros: i64) {
        let mut time = self.time();
        time.wall_micros = time.wall_micros.saturating_add_signed(by_micros);
    }

    fn time(&self) -> MutexGuard<'_, Time> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManualClock").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.time().now
    }

    fn wall_micros(&self) -> u64 {
        self.time().wall_micros
    }

    fn timer(&self) -> Box<dyn Timer> {
        let mut time = self.time();
        time.timers_made += 1;
        Box::new(ManualTimer { number: time.timers_made, clock: self.clone() })
    }
}

struct ManualTimer {
    number: u64,
    clock: ManualClock,
}

impl Timer for ManualTimer {
    fn poll_until(&mut self, at: Moment, cx: &mut Context<'_>) -> Poll<()> {
        let mut time = self.clock.time();
        time.sleepers.retain(|sleeper| sleeper.timer != self.number);
        if time.now >= at {
            return Poll::Ready(());
        }
        time.sleepers.push(Sleeper { timer: self.number, at, waker: cx.waker().clone() });
        Poll::Pending
    }
}

impl Drop for ManualTimer {
    fn drop(&mut self) {
        self.clock.time().sleepers.retain(|sleeper| sleeper.timer != self.number);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::disallowed_methods)]

    use std::future::poll_fn;

    use super::*;

    #[tokio::test]
    async fn a_timer_wakes_when_its_moment_is_reached_and_not_before() {
        let clock = ManualClock::new();
        let at = clock.now() + Duration::from_secs(5);
        let mut timer = clock.timer();
        let slept = tokio::spawn(async move { poll_fn(|cx| timer.poll_until(at, cx)).await });
        while clock.time().sleepers.is_empty() {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_micros(4_999_999));
        assert_eq!(clock.time().sleepers.len(), 1, "one microsecond is missing");
        clock.advance(Duration::from_micros(1));
        slept.await.unwrap();
        assert!(clock.time().sleepers.is_empty());
    }

    #[test]
    fn a_timer_set_again_forgets_the_moment_before() {
        let clock = ManualClock::new();
        let mut timer = clock.timer();
        let mut cx = Context::from_waker(Waker::noop());
        for seconds in [1, 2, 3] {
            assert!(timer.poll_until(clock.now() + Duration::from_secs(seconds), &mut cx).is_pending());
        }
        assert_eq!(clock.time().sleepers.len(), 1);
        drop(timer);
        assert!(clock.time().sleepers.is_empty(), "a dropped timer leaves nothing behind");
    }

    #[test]
    fn the_wall_clock_steps_alone() {
        let clock = ManualClock::new();
        let (now, wall) = (clock.now(), clock.wall_micros());
        clock.step_wall(-1_000_000);
        assert_eq!((clock.now(), clock.wall_micros()), (now, wall - 1_000_000));
        clock.advance(Duration::from_secs(2));
        assert_eq!((clock.now(), clock.wall_micros()), (now + Duration::from_secs(2), wall + 1_000_000));
    }
}
