//! What is due when.

use std::collections::BTreeMap;

use crate::clock::{Moment, NEVER};

/// Slots of the registry, ordered by the moment they are due. Most moments are shared by many: renewals are
/// rounded to a grid, and claims that were renewed together end together.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    moments: BTreeMap<Moment, Vec<u32>>,
}

/// Where a slot stands on an agenda; not on it if it is never due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) due: Moment,
    /// Its index among those due at the same moment.
    pub(super) place: u32,
}

impl Agenda {
    /// Adds a slot.
    pub(super) fn add(&mut self, slot: u32, due: Moment) -> Entry {
        if due == NEVER {
            return Entry { due, place: 0 };
        }
        let together = self.moments.entry(due).or_default();
        let place = u32::try_from(together.len()).unwrap_or(u32::MAX);
        together.push(slot);
        Entry { due, place }
    }

    /// Removes an entry. Answers the slot that has moved to its place, and the place, if there is one.
    pub(super) fn remove(&mut self, entry: Entry) -> Option<(u32, u32)> {
        if entry.due == NEVER {
            return None;
        }
        let together = self.moments.get_mut(&entry.due)?;
        if (entry.place as usize) < together.len() {
            together.swap_remove(entry.place as usize);
        }
        let moved = together.get(entry.place as usize).copied();
        if together.is_empty() {
            self.moments.remove(&entry.due);
        }
        moved.map(|slot| (slot, entry.place))
    }

    /// When the first slot is due.
    pub(super) fn first(&self) -> Moment {
        self.moments.first_key_value().map_or(NEVER, |(due, _)| *due)
    }

    /// A slot that is due at or before `now`. It stays on the agenda.
    pub(super) fn first_due(&self, now: Moment) -> Option<u32> {
        self.moments.first_key_value().filter(|(due, _)| **due <= now).and_then(|(_, slots)| slots.last().copied())
    }
}
