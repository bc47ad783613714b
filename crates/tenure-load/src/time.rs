//! Moments that several processes agree on.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch.
pub fn epoch_micros() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micros(since)
}

/// How often the two clocks are compared: a process that is interrupted between them would begin too early.
const LOOKS: usize = 8;

/// A time told in microseconds since the Unix epoch, on the clock that is measured with. A time that has passed is now.
pub(crate) fn at(epoch_us: u64) -> Instant {
    let look = |_| {
        let before = Instant::now();
        let wall = epoch_micros();
        (before.elapsed(), before, wall)
    };
    let (_, now, wall) = (0..LOOKS).map(look).min_by_key(|(took, ..)| *took).unwrap_or_else(|| look(0));
    now + Duration::from_micros(epoch_us.saturating_sub(wall))
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Seconds of an order. What is no duration is none.
pub(crate) fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
