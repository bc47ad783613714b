//! How many requests of a crowd are sent side by side: as many as etcd answers quickly.

use std::time::Duration;

/// How many there are at least, and at most.
const SIZE: (usize, usize) = (4, 64);
/// An answer within this time leaves room for one more. Several round trips of a cluster in one data centre.
const QUICK: Duration = Duration::from_millis(25);
/// An answer that takes longer than this halves the window: etcd has more to do than it can.
const SLOW: Duration = Duration::from_millis(100);

/// Grows by one with each quick answer; a slow one halves it. Many clients that share a cluster so leave room for each other, and
/// for renewals.
#[derive(Debug)]
pub(super) struct Window {
    size: usize,
}

impl Default for Window {
    fn default() -> Self {
        Self { size: SIZE.0 }
    }
}

impl Window {
    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn answered(&mut self, took: Duration) {
        if took > SLOW {
            self.size = (self.size / 2).max(SIZE.0);
        } else if took < QUICK {
            self.size = (self.size + 1).min(SIZE.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_while_answers_are_quick_and_shrinks_when_they_are_not() {
        let mut window = Window::default();
        for _ in 0..2 * SIZE.1 {
            window.answered(Duration::from_millis(3));
        }
        assert_eq!(window.size(), SIZE.1);
        window.answered((QUICK + SLOW) / 2);
        assert_eq!(window.size(), SIZE.1, "neither quick nor slow");
        window.answered(Duration::from_secs(1));
        assert_eq!(window.size(), SIZE.1 / 2);
        for _ in 0..SIZE.1 {
            window.answered(Duration::from_secs(1));
        }
        assert_eq!(window.size(), SIZE.0, "never none");
    }
}
