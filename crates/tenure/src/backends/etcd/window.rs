//! How many requests of a crowd are sent side by side: as many as etcd answers quickly.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::clock::{Clock, Moment};

/// An answer within this time leaves room for one more. Several round trips of a cluster in one data centre.
pub(super) const QUICK: Duration = Duration::from_millis(25);
/// An answer that takes longer than this halves the window: etcd has more to do than it can.
const SLOW: Duration = Duration::from_millis(100);

/// Grows by one with each quick answer; a slow one halves it. Many clients that share a cluster so leave room for
/// each other, and for renewals.
#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    min: usize,
    max: usize,
}

impl Window {
    pub(super) fn new(min: usize, max: usize) -> Self {
        Self { size: min, min, max }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn answered(&mut self, took: Duration) {
        if took > SLOW {
            self.size = (self.size / 2).max(self.min);
        } else if took < QUICK {
            self.size = (self.size + 1).min(self.max);
        }
    }
}

/// Lets in as many at a time as its window has room for, in the order they came.
#[derive(Debug)]
pub(super) struct Gate {
    clock: Arc<dyn Clock>,
    room: Semaphore,
    /// And by how many permits there are too many, until their holders leave.
    window: Mutex<(Window, usize)>,
}

impl Gate {
    pub(super) fn new(min: usize, max: usize, clock: Arc<dyn Clock>) -> Self {
        Self { clock, room: Semaphore::new(min), window: Mutex::new((Window::new(min, max), 0)) }
    }

    /// # Cancel safety
    ///
    /// Cancelling loses the place among those who wait.
    pub(super) async fn enter(&self) -> Pass<'_> {
        // It is never closed.
        let permit = self.room.acquire().await.ok();
        Pass { gate: self, permit, since: self.clock.now() }
    }

    fn left(&self, permit: Option<SemaphorePermit<'_>>, took: Duration) {
        let mut locked = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let (window, surplus) = &mut *locked;
        let before = window.size();
        window.answered(took);
        if window.size() > before {
            self.room.add_permits(window.size() - before);
        } else {
            *surplus += before - window.size();
        }
        if *surplus > 0
            && let Some(permit) = permit
        {
            *surplus -= 1;
            permit.forget();
        }
        *surplus -= self.room.forget_permits(*surplus);
    }
}

/// One that was let in, until it leaves.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    permit: Option<SemaphorePermit<'a>>,
    since: Moment,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let permit = self.permit.take();
        self.gate.left(permit, self.gate.clock.now().since(self.since));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_grows_while_answers_are_quick_and_shrinks_when_they_are_not() {
        let mut window = Window::new(4, 64);
        for _ in 0..100 {
            window.answered(Duration::from_millis(3));
        }
        assert_eq!(window.size(), 64);
        window.answered((QUICK + SLOW) / 2);
        assert_eq!(window.size(), 64, "neither quick nor slow");
        window.answered(Duration::from_secs(1));
        assert_eq!(window.size(), 32);
        for _ in 0..100 {
            window.answered(Duration::from_secs(1));
        }
        assert_eq!(window.size(), 4, "never none");
    }

    #[tokio::test]
    async fn a_gate_has_as_much_room_as_its_window() {
        let leaves = |mut pass: Pass<'_>, took| {
            pass.gate.left(pass.permit.take(), took);
            std::mem::forget(pass);
        };
        let gate = Gate::new(2, 8, Arc::new(crate::clock::SystemClock));
        for _ in 0..20 {
            leaves(gate.enter().await, Duration::ZERO);
        }
        assert_eq!(gate.room.available_permits(), 8, "all were quick");
        let [one, two, three] = [gate.enter().await, gate.enter().await, gate.enter().await];
        leaves(one, Duration::from_secs(1));
        assert_eq!(gate.room.available_permits(), 2, "four, and two are still inside");
        leaves(two, Duration::from_secs(1));
        leaves(three, Duration::from_secs(1));
        assert_eq!(gate.room.available_permits(), 2, "the least, and all have left");
    }
}
