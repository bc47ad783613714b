//! Everything that has a time: the claims to renew, the deadlines to keep, the alarms to ring.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use tokio::sync::Notify;

use super::lease;
use super::live::LiveClaim;
use super::request::Request;
use crate::clock::{Moment, NEVER};
use crate::name::Name;
use crate::owner::ClaimId;

/// The watchdog's table. One lock, held for a few hundred nanoseconds at a time.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    table: Mutex<Table>,
    /// Rung when something is due earlier than the watchdog sleeps.
    pub(crate) bell: Arc<Notify>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    slots: Vec<Option<Slot>>,
    vacant: Vec<u32>,
    stamps: u64,
    by_claim: HashMap<ClaimId, Key, BuildHasherDefault<RandomIdHasher>>,
    /// What is due when. Most moments are shared by many: renewals are rounded to a grid.
    due: BTreeMap<Moment, Vec<Key>>,
    /// Until when the watchdog sleeps.
    asleep_until: Moment,
}

#[derive(Debug)]
pub(crate) struct Slot {
    stamp: u64,
    due: Moment,
    /// Where its key stands among those due at the same moment.
    place: u32,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Claim(Beat),
    /// Wakes a task.
    Alarm(Waker),
    /// The task that asked has not been answered for a while, or does nothing.
    Unanswered(Arc<Request>, Waker),
    /// The `max_hold` of the guard with this turn is over.
    MaxHold(Arc<LiveClaim>, u64),
    /// The guard with this turn is held longer than `warn_after`.
    Warn(Arc<LiveClaim>, u64),
    /// The task that was called to lead the cohort of this name, in this term, should have begun.
    Summons(Name, u64),
}

/// The renewals of one claim.
#[derive(Debug)]
pub(crate) struct Beat {
    pub(crate) claim: Arc<LiveClaim>,
    /// When to ask next.
    pub(crate) ask_at: Moment,
    /// How many requests in a row went unanswered.
    pub(crate) unanswered: u32,
}

impl Beat {
    fn due(&self) -> Moment {
        let lost_at = if self.claim.is_granted() { lease::lost_at(self.claim.deadline()) } else { NEVER };
        self.ask_at.min(lost_at)
    }
}

/// A key into the table. The stamp makes stale keys harmless: their slot may have a new tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    index: u32,
    stamp: u64,
}

impl Registry {
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        super::unpoisoned(self.table.lock())
    }

    /// Adds a claim. Nothing is asked for it before [`schedule`](Self::schedule) says when. An id may come again (a
    /// repeated command): the newest attempt is the one that hears. Answers the one before it, which is to be told.
    pub(crate) fn add(&self, claim: Arc<LiveClaim>) -> Option<Arc<LiveClaim>> {
        let mut table = self.table();
        let id = claim.id;
        let before = table.by_claim.remove(&id).and_then(|key| table.remove(key));
        let key = table.insert(Kind::Claim(Beat { claim, ask_at: NEVER, unanswered: 0 }), NEVER);
        table.by_claim.insert(id, key);
        if let Some(Kind::Claim(beat)) = before { Some(beat.claim) } else { None }
    }

    /// Empties the table: nobody looks at it any more.
    pub(crate) fn end(&self) -> Vec<Kind> {
        std::mem::take(&mut *self.table()).slots.into_iter().flatten().map(|slot| slot.kind).collect()
    }

    /// Sets when to ask for a claim next, counting it as answered.
    pub(crate) fn schedule(&self, id: ClaimId, ask_at: Moment) {
        let mut table = self.table();
        let Some(key) = table.by_claim.get(&id).copied() else { return };
        let due = match table.slot(key) {
            Some(Slot { kind: Kind::Claim(beat), .. }) => {
                beat.ask_at = ask_at;
                beat.unanswered = 0;
                beat.due()
            }
            _ => return,
        };
        table.set_due(key, due);
        self.ring_if_due_before(table, due);
    }

    /// Adds a timer.
    pub(crate) fn add_timer(&self, kind: Kind, due: Moment) -> Key {
        let mut table = self.table();
        let key = table.insert(kind, due);
        self.ring_if_due_before(table, due);
        key
    }

    pub(crate) fn remove_timer(&self, key: Key) {
        self.table().remove(key);
    }

    pub(crate) fn remove(&self, claim: &LiveClaim) {
        let mut table = self.table();
        let Some(key) = table.key_of(claim.id) else { return };
        if let Some(Slot { kind: Kind::Claim(beat), .. }) = table.slot(key)
            && std::ptr::eq(Arc::as_ptr(&beat.claim), claim)
        {
            table.remove_claim(claim.id);
        }
    }

    pub(crate) fn find(&self, id: ClaimId) -> Option<Arc<LiveClaim>> {
        let mut table = self.table();
        let key = table.by_claim.get(&id).copied()?;
        match &table.slot(key)?.kind {
            Kind::Claim(beat) => Some(beat.claim.clone()),
            _ => None,
        }
    }

    /// Makes every answered claim due at once: news of it may have been missed.
    pub(crate) fn ask_for_all(&self, now: Moment) {
        let mut table = self.table();
        let keys: Vec<Key> = table.by_claim.values().copied().collect();
        for key in keys {
            if let Some(Slot { kind: Kind::Claim(beat), .. }) = table.slot(key)
                && beat.ask_at != NEVER
            {
                beat.ask_at = now;
                table.set_due(key, now);
            }
        }
        self.ring_if_due_before(table, now);
    }

    /// How many claims this client has.
    pub(crate) fn claims(&self) -> usize {
        self.table().by_claim.len()
    }

    fn ring_if_due_before(&self, mut table: MutexGuard<'_, Table>, due: Moment) {
        if due < table.asleep_until {
            table.asleep_until = due;
            drop(table);
            self.bell.notify_one();
        }
    }
}

impl Table {
    pub(crate) fn slot(&mut self, key: Key) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key.index as usize)?.as_mut()?;
        (slot.stamp == key.stamp).then_some(slot)
    }

    fn insert(&mut self, kind: Kind, due: Moment) -> Key {
        self.stamps = self.stamps.wrapping_add(1);
        let stamp = self.stamps;
        let slot = Some(Slot { stamp, due: NEVER, place: 0, kind });
        let index = match self.vacant.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                u32::try_from(self.slots.len() - 1).unwrap_or(u32::MAX)
            }
        };
        let key = Key { index, stamp };
        self.set_due(key, due);
        key
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<Kind> {
        self.set_due(key, NEVER);
        self.slot(key)?;
        let slot = self.slots.get_mut(key.index as usize)?.take()?;
        self.vacant.push(key.index);
        Some(slot.kind)
    }

    pub(crate) fn remove_claim(&mut self, id: ClaimId) {
        if let Some(key) = self.by_claim.remove(&id) {
            self.remove(key);
        }
    }

    pub(crate) fn set_due(&mut self, key: Key, due: Moment) {
        let Some(slot) = self.slot(key) else { return };
        let (before, place) = (slot.due, slot.place as usize);
        if before == due {
            return;
        }
        if before != NEVER {
            self.take_from(before, place);
        }
        let mut place = 0;
        if due != NEVER {
            let together = self.due.entry(due).or_default();
            place = u32::try_from(together.len()).unwrap_or(u32::MAX);
            together.push(key);
        }
        if let Some(slot) = self.slot(key) {
            slot.due = due;
            slot.place = place;
        }
    }

    /// Takes the key at `place` off a moment; the last of its moment moves there.
    fn take_from(&mut self, due: Moment, place: usize) {
        let Some(together) = self.due.get_mut(&due) else { return };
        if place < together.len() {
            together.swap_remove(place);
        }
        let moved = together.get(place).copied();
        if together.is_empty() {
            self.due.remove(&due);
        }
        if let Some(slot) = moved.and_then(|moved| self.slot(moved)) {
            slot.place = u32::try_from(place).unwrap_or(u32::MAX);
        }
    }

    /// Sets a claim's next due moment from its beat.
    pub(crate) fn reschedule(&mut self, key: Key) {
        let due = match self.slot(key) {
            Some(Slot { kind: Kind::Claim(beat), .. }) => beat.due(),
            _ => return,
        };
        self.set_due(key, due);
    }

    pub(crate) fn key_of(&self, id: ClaimId) -> Option<Key> {
        self.by_claim.get(&id).copied()
    }

    /// The first thing due at or before `now`. It stays in the table: reschedule or remove it.
    pub(crate) fn first_due(&self, now: Moment) -> Option<Key> {
        self.due.first_key_value().filter(|(due, _)| **due <= now).and_then(|(_, keys)| keys.last().copied())
    }

    /// The watchdog sleeps until the moment this answers, unless the bell is rung for something earlier.
    pub(crate) fn sleep(&mut self) -> Moment {
        self.asleep_until = self.due.first_key_value().map_or(NEVER, |(due, _)| *due);
        self.asleep_until
    }
}

/// Claim ids are random already.
#[derive(Debug, Default)]
struct RandomIdHasher(u64);

impl Hasher for RandomIdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, id: u64) {
        self.0 = id;
    }
}
