//! Moments that several processes agree on.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub fn epoch_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(since)
}

/// A time told in microseconds since the Unix epoch, on the clock that is measured with. A time that has passed is now.
pub(crate) fn at(epoch_us: u64) -> Instant {
    Instant::now() + Duration::from_micros(epoch_us.saturating_sub(epoch_micros()))
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Seconds of an order. What is no duration is none.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
