//! Waiting for a condition, never for a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than anything takes on a machine that is far too busy; a wait that gets here has failed.
pub(super) const LIMIT: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// Looks until there is something to see, or gives up.
pub(super) fn wait_for<T>(look: impl FnMut() -> Option<T>) -> Option<T> {
    wait_at_most(LIMIT, look)
}

/// [`wait_for`] with another limit.
pub(super) fn wait_at_most<T>(limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if start.elapsed() > limit {
            return None;
        }
        sleep(BETWEEN_LOOKS);
    }
}

/// Waits until the condition is true. It blocks its thread, so an async test needs a runtime with several.
///
/// # Panics
///
/// If that takes a minute, with these words.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    assert!(wait_for(|| condition().then_some(())).is_some(), "waited in vain until {what}");
}
