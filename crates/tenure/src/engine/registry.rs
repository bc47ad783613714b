//! Everything that has a time: the claims to renew, the deadlines to keep, the alarms to ring.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use tokio::sync::Notify;

use super::agenda::{Agenda, Entry};
use super::live::LiveClaim;
use super::outage::Outage;
use super::request::Request;
use crate::clock::{Moment, NEVER};
use crate::lease;
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
    /// When claims are asked for, and timers go off.
    due: Agenda,
    /// When leases may run out, apart from all else: losses are told first. A renewal does not move a claim here: if it
    /// is found to live on when its moment comes, it is given another.
    losses: Agenda,
    /// How many claims there were when the losses that are now told began.
    pub(super) telling: usize,
    pub(super) outage: Outage,
    /// From 0 to 1: keeps the retries of clients apart.
    pub(super) jitter: f64,
    /// Until when the watchdog sleeps.
    asleep_until: Moment,
}

#[derive(Debug)]
pub(crate) struct Slot {
    stamp: u64,
    /// Where it stands on both agendas: moments and places apart, as there may be very many slots.
    due: Moment,
    loss: Moment,
    due_place: u32,
    loss_place: u32,
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
    /// How many requests in a row went unanswered.
    pub(crate) unanswered: u32,
    /// Whether it is not asked for until the store answers again.
    pub(super) aside: bool,
}

/// A key into the table. The stamp makes stale keys harmless: their slot may have a new tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
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
        let key = table.insert(Kind::Claim(Beat { claim, unanswered: 0, aside: false }), NEVER);
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
        let claims = table.by_claim.len();
        let Some(beat) = table.beat(key) else { return };
        beat.unanswered = 0;
        let claim = &beat.claim;
        let tell_at = lease::tell_at(claim.deadline(), claim.plan.ttl, claims);
        let tell_at = if claim.is_granted() { tell_at } else { NEVER };
        table.set_due(key, ask_at);
        // One that is asked for before is watched from then on: most claims end sooner.
        let look_at = if tell_at < ask_at { table.watch_loss(key) } else { NEVER };
        self.ring_if_due_before(table, ask_at.min(look_at));
    }

    /// The store has answered for a claim: those that were not asked for meanwhile are asked for now.
    pub(crate) fn store_answered(&self, now: Moment) {
        let mut table = self.table();
        if table.store_answered(now) {
            self.ring_if_due_before(table, now);
        }
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
        if table.beat(key).is_some_and(|beat| std::ptr::eq(Arc::as_ptr(&beat.claim), claim)) {
            table.remove_claim(claim.id);
        }
    }

    pub(crate) fn find(&self, id: ClaimId) -> Option<Arc<LiveClaim>> {
        let mut table = self.table();
        let key = table.by_claim.get(&id).copied()?;
        Some(table.beat(key)?.claim.clone())
    }

    /// Finds a claim that has been granted, as the store says. Its lease is watched from now on.
    pub(crate) fn find_granted(&self, id: ClaimId) -> Option<Arc<LiveClaim>> {
        let mut table = self.table();
        let key = table.by_claim.get(&id).copied()?;
        let beat = table.beat(key)?;
        let (claim, aside) = (beat.claim.clone(), beat.aside);
        if aside {
            // Any other is looked at when it is asked for next.
            let at = table.tell_at(&claim);
            table.set_loss(key, at);
            self.ring_if_due_before(table, at);
        }
        Some(claim)
    }

    /// Makes every answered claim due at once: news of it may have been missed.
    pub(crate) fn ask_for_all(&self, now: Moment) {
        let mut table = self.table();
        table.store_answered(now);
        let keys: Vec<Key> = table.by_claim.values().copied().collect();
        for key in keys {
            if table.due(key) != NEVER {
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

    /// The renewals of a claim.
    pub(crate) fn beat(&mut self, key: Key) -> Option<&mut Beat> {
        match &mut self.slot(key)?.kind {
            Kind::Claim(beat) => Some(beat),
            _ => None,
        }
    }

    fn insert(&mut self, kind: Kind, due: Moment) -> Key {
        self.stamps = self.stamps.wrapping_add(1);
        let stamp = self.stamps;
        let slot = Some(Slot { stamp, due: NEVER, loss: NEVER, due_place: 0, loss_place: 0, kind });
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
        self.set_loss(key, NEVER);
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

    pub(crate) fn due(&mut self, key: Key) -> Moment {
        self.slot(key).map_or(NEVER, |slot| slot.due)
    }

    /// Sets when a claim is asked for, or a timer goes off.
    pub(crate) fn set_due(&mut self, key: Key, due: Moment) {
        let Some(slot) = self.slot(key).filter(|slot| slot.due != due) else { return };
        let before = Entry { due: slot.due, place: slot.due_place };
        if let Some((moved, place)) = self.due.remove(before)
            && let Some(slot) = self.slots.get_mut(moved as usize).and_then(Option::as_mut)
        {
            slot.due_place = place;
        }
        let entry = self.due.add(key.index, due);
        if let Some(slot) = self.slot(key) {
            (slot.due, slot.due_place) = (entry.due, entry.place);
        }
    }

    /// Sets when to look whether a lease has run out.
    pub(crate) fn set_loss(&mut self, key: Key, at: Moment) {
        let Some(slot) = self.slot(key).filter(|slot| slot.loss != at) else { return };
        let before = Entry { due: slot.loss, place: slot.loss_place };
        if let Some((moved, place)) = self.losses.remove(before)
            && let Some(slot) = self.slots.get_mut(moved as usize).and_then(Option::as_mut)
        {
            slot.loss_place = place;
        }
        let entry = self.losses.add(key.index, at);
        if let Some(slot) = self.slot(key) {
            (slot.loss, slot.loss_place) = (entry.due, entry.place);
        }
    }

    /// Sees to it that somebody looks when the lease of a granted claim may run out. Answers when.
    pub(crate) fn watch_loss(&mut self, key: Key) -> Moment {
        let Some(slot) = self.slot(key) else { return NEVER };
        let watched = slot.loss;
        let Kind::Claim(Beat { claim, .. }) = &slot.kind else { return NEVER };
        if watched != NEVER || !claim.is_granted() {
            return watched;
        }
        let claim = claim.clone();
        let at = lease::look_at(self.tell_at(&claim), claim.plan.ttl);
        self.set_loss(key, at);
        at
    }

    /// When the holder of this claim is told that it is lost, unless it is renewed.
    pub(crate) fn tell_at(&self, claim: &LiveClaim) -> Moment {
        lease::tell_at(claim.deadline(), claim.plan.ttl, self.claims().max(self.telling))
    }

    /// How many claims there are.
    pub(crate) fn claims(&self) -> usize {
        self.by_claim.len()
    }

    pub(crate) fn key_of(&self, id: ClaimId) -> Option<Key> {
        self.by_claim.get(&id).copied()
    }

    fn key_at(&self, index: u32) -> Option<Key> {
        self.slots.get(index as usize)?.as_ref().map(|slot| Key { index, stamp: slot.stamp })
    }

    /// The first thing due at or before `now`, losses aside. It stays in the table: reschedule or remove it.
    pub(crate) fn first_due(&self, now: Moment) -> Option<Key> {
        self.key_at(self.due.first_due(now)?)
    }

    /// The first claim whose lease may have run out. It stays in the table: reschedule or remove it.
    pub(crate) fn first_loss(&self, now: Moment) -> Option<Key> {
        self.key_at(self.losses.first_due(now)?)
    }

    /// The watchdog sleeps until the moment this answers, unless the bell is rung for something earlier.
    pub(crate) fn sleep(&mut self) -> Moment {
        self.asleep_until = self.due.first().min(self.losses.first()).min(self.outage.next_probe());
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
