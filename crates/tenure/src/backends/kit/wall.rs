//! The wall clock of a store, as it was last told and as our own clock carries it on.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::{Moment, micros};

/// For how long it is carried on before the store is asked again: so long it may go unnoticed that its clock was set.
const CARRIED_MAX: Duration = Duration::from_secs(10);

/// What a store told of its wall clock.
#[derive(Debug, Default)]
pub(in crate::backends) struct StoreWall(Mutex<Option<Told>>);

#[derive(Clone, Copy, Debug)]
struct Told {
    /// Read before it was asked.
    asked: Moment,
    /// In microseconds.
    wall: u64,
}

impl StoreWall {
    fn told(&self) -> MutexGuard<'_, Option<Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store was asked at this moment, and told this time.
    pub(in crate::backends) fn tell(&self, asked: Moment, wall: u64) {
        let mut told = self.told();
        if told.is_none_or(|told| told.asked <= asked) {
            *told = Some(Told { asked, wall });
        }
    }

    /// The store's time, if it was told a short while ago.
    pub(in crate::backends) fn at(&self, now: Moment) -> Option<u64> {
        let told = (*self.told()).filter(|told| now.since(told.asked) < CARRIED_MAX)?;
        Some(told.wall.saturating_add(micros(now.since(told.asked))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_carried_on_for_a_while() {
        let (wall, asked) = (StoreWall::default(), Moment(50));
        assert_eq!(wall.at(asked), None);
        wall.tell(asked, 1_000);
        wall.tell(Moment(40), 9_000);
        assert_eq!(wall.at(Moment(57)), Some(1_007), "an answer that comes late tells of the past");
        assert_eq!(wall.at(asked + CARRIED_MAX), None, "it is asked again");
    }
}
