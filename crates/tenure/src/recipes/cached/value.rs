//! A value and its age, and for whom it is fresh.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;

/// A value, as it was found or computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) bytes: Arc<[u8]>,
    /// How old it was, by the store's clock.
    pub(super) age: Duration,
    /// When it was at least that old, by the client's clock: before the store was asked.
    pub(super) at: Moment,
}

/// What a caller takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Values younger than this.
    pub(super) keep: Duration,
    /// And any that was written since it called: to compute it anew would make it no fresher.
    pub(super) since: Moment,
}

impl Wanted {
    /// Whether a caller takes this value.
    pub(super) fn takes(&self, value: &Value, now: Moment) -> bool {
        let age = value.age.saturating_add(now.since(value.at));
        let written_since = value.at >= self.since && value.age <= value.at.since(self.since);
        age < self.keep || written_since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn value(age: Duration, at: Moment) -> Value {
        Value { bytes: [7].into(), age, at }
    }

    #[test]
    fn a_value_grows_old_with_the_time_that_passes_here() {
        let start = Moment(0) + SECOND * 100;
        let wanted = Wanted { keep: SECOND * 10, since: start + SECOND * 50 };
        // Older than this clock: its age counts, not a moment before the clock began.
        let old = value(SECOND * 5, Moment(0));
        for (seconds, is_taken) in [(0, true), (4, true), (5, false), (6, false)] {
            assert_eq!(wanted.takes(&old, Moment(0) + SECOND * seconds), is_taken, "after {seconds} s");
        }
        assert!(!wanted.takes(&value(Duration::MAX, start), start));
    }

    #[test]
    fn what_was_written_while_the_caller_waited_is_taken_however_short_it_is_kept() {
        let since = Moment(0) + SECOND * 100;
        let wanted = Wanted { keep: Duration::from_millis(1), since };
        let later = since + SECOND * 5;
        assert!(wanted.takes(&value(SECOND * 4, later), later + SECOND));
        assert!(wanted.takes(&value(SECOND * 5, later), later));
        assert!(!wanted.takes(&value(SECOND * 6, later), later), "written before it called");
        assert!(!wanted.takes(&value(Duration::ZERO, since - SECOND), later), "found before it called");
    }
}
