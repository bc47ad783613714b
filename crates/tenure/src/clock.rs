//! The one place that reads clocks and sets timers.
//!
//! Everything in the engine that depends on time asks a [`Clock`], so that tests drive time
//! themselves. Nothing is assumed of clocks but that they run at about the right *rate*.

use std::fmt;
use std::future::Future as _;
use std::ops::{Add, Sub};
use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A moment on a [`Clock`], in microseconds since an arbitrary start.
///
/// Unlike [`std::time::Instant`] it counts the time the machine was suspended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Moment(pub u64);

impl Moment {
    /// Microseconds since the clock's start.
    pub fn as_micros(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(micros(duration)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(micros(duration)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}

/// A duration in whole microseconds, saturating.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Time, as the engine sees it.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now, on a clock that only moves forward and counts through suspend.
    fn now(&self) -> Moment;

    /// The wall clock, in microseconds since 1970: the floor of fencing tokens, how long memos are kept, and the time
    /// that a store without a server tells. No lease depends on it.
    fn wall_micros(&self) -> u64;

    /// A new timer on this clock. Called on the runtime the client lives on.
    fn timer(&self) -> Box<dyn Timer>;
}

/// One alarm that can be set again and again.
pub trait Timer: Send {
    /// Ready once the clock has reached `at`; otherwise the task is woken when it has.
    /// Each call replaces the moment of the one before.
    fn poll_until(&mut self, at: Moment, cx: &mut Context<'_>) -> Poll<()>;
}

/// Waits for so long on a clock.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
#[cfg(feature = "http")]
pub(crate) async fn sleep(clock: &dyn Clock, time: Duration) {
    let (at, mut timer) = (clock.now() + time, clock.timer());
    std::future::poll_fn(|cx| timer.poll_until(at, cx)).await;
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[allow(clippy::disallowed_methods)] // this is their home
impl Clock for SystemClock {
    fn now(&self) -> Moment {
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Moment(seconds * 1_000_000 + nanos / 1_000)
    }

    fn wall_micros(&self) -> u64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map(micros).unwrap_or(0)
    }

    fn timer(&self) -> Box<dyn Timer> {
        #[cfg(target_os = "linux")]
        match BootTimer::new() {
            Ok(timer) => return Box::new(timer),
            // Out of file descriptors, say: the monotonic timer is right but for suspends, after
            // which a loss is told late (`is_held` stays exact).
            Err(error) => tracing::warn!(%error, "no boot-time timer, falling back to the monotonic one"),
        }
        Box::new(TokioTimer { sleep: Box::pin(tokio::time::sleep(Duration::ZERO)), set_for: None })
    }
}

/// A timer that also runs while the machine is suspended: it fires at once on resume.
#[cfg(target_os = "linux")]
struct BootTimer {
    fd: tokio::io::unix::AsyncFd<std::os::fd::OwnedFd>,
    set_for: Option<Moment>,
}

#[cfg(target_os = "linux")]
impl BootTimer {
    fn new() -> std::io::Result<Self> {
        use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // Deprecated because it takes types that do not own their descriptor; this one does.
        #[allow(deprecated)]
        let fd = tokio::io::unix::AsyncFd::with_interest(fd, tokio::io::Interest::READABLE)?;
        Ok(Self { fd, set_for: None })
    }

    fn set(&mut self, at: Moment) {
        use rustix::time::{Itimerspec, TimerfdTimerFlags, Timespec, timerfd_settime};
        if self.set_for == Some(at) {
            return;
        }
        // A zero value would disarm it.
        let at_micros = at.0.max(1);
        let value = Timespec {
            tv_sec: i64::try_from(at_micros / 1_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(at_micros % 1_000_000 * 1_000).unwrap_or(0),
        };
        let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        if timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::ABSTIME, &spec).is_ok() {
            self.set_for = Some(at);
        }
    }
}

#[cfg(target_os = "linux")]
impl Timer for BootTimer {
    fn poll_until(&mut self, at: Moment, cx: &mut Context<'_>) -> Poll<()> {
        if SystemClock.now() >= at {
            return Poll::Ready(());
        }
        self.set(at);
        loop {
            match self.fd.poll_read_ready(cx) {
                Poll::Ready(Ok(mut ready)) => {
                    if SystemClock.now() >= at {
                        return Poll::Ready(());
                    }
                    // An expiry of an earlier setting: take it off and wait for ours.
                    let mut expirations = [0; 8];
                    let _ = rustix::io::read(self.fd.get_ref(), &mut expirations);
                    ready.clear_ready();
                    // It may have been ours, which came after the look at the clock: it comes only once.
                    if SystemClock.now() >= at {
                        return Poll::Ready(());
                    }
                }
                // The runtime is shutting down.
                Poll::Ready(Err(_)) => return Poll::Pending,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// The fallback where there is no boot-time timer.
struct TokioTimer {
    sleep: std::pin::Pin<Box<tokio::time::Sleep>>,
    set_for: Option<Moment>,
}

#[allow(clippy::disallowed_methods)]
impl Timer for TokioTimer {
    fn poll_until(&mut self, at: Moment, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let now = SystemClock.now();
            if now >= at {
                return Poll::Ready(());
            }
            if self.set_for != Some(at) {
                self.sleep.as_mut().reset(tokio::time::Instant::now() + at.since(now));
                self.set_for = Some(at);
            }
            match self.sleep.as_mut().poll(cx) {
                Poll::Ready(()) => self.set_for = None,
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// A moment that never comes, for timers with nothing to wait for.
pub(crate) const NEVER: Moment = Moment(u64::MAX);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// A timer that is set again just as the one before goes off must not miss its own.
    #[tokio::test]
    async fn a_timer_goes_off_however_soon_it_is_set_again() {
        let mut timer = SystemClock.timer();
        for round in 0..30_000_u64 {
            let at = SystemClock.now() + Duration::from_micros(round % 97);
            let rung = poll_fn(|cx| timer.poll_until(at, cx));
            assert!(tokio::time::timeout(Duration::from_secs(10), rung).await.is_ok(), "not in round {round}");
        }
    }
}
