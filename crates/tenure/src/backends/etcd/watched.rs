//! A name that this client waits for: its keys, as one watch on all of them tells, and the claims of this client
//! among them.
//!
//! The watch is kept as long as there are waiters, and a little longer. A watch for each wait would be made while
//! others write, and etcd then serves it late: it puts one that begins before its latest revision among those that
//! lag, which it looks at ten times a second. And nobody has to read a queue, long as it may be, to know who is next.
//!
//! What is known may be old, and errs on the safe side: of the keys before a claim none is ever added, they only go,
//! or take less.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use tokio::sync::oneshot;

use super::entry::{Entry, HEAD_MAX, Line, is_claim_under};
use super::silence::Belief;
use super::wire::KeyEvent;
use crate::backend::Shape;
use crate::clock::Moment;
use crate::machine::Queue;
use crate::owner::{ClaimId, Owner};

/// How many keys are looked at first to see who holds: one that holds and one that waits, as a rule.
const FIRST: usize = 4;

/// One name.
#[derive(Debug)]
pub(super) struct Watched {
    /// The watch's.
    pub(super) number: i64,
    under: Vec<u8>,
    /// In the order in which they were made.
    entries: BTreeMap<(i64, Vec<u8>), Entry>,
    made: HashMap<Vec<u8>, i64>,
    /// Up to where the keys are known; none until they were listed.
    revision: Option<i64>,
    /// What was told before.
    early: Vec<KeyEvent>,
    /// Whether anything was told: from then on all is told at once.
    heard: bool,
    waiters: HashMap<ClaimId, Waiter>,
    by_owner: HashMap<Owner, HashSet<ClaimId>>,
    /// Who is to be told once all is known up to a revision.
    awaited: BTreeMap<i64, Vec<oneshot::Sender<()>>>,
    /// For how many looks there was no waiter.
    pub(super) idle: u32,
    /// The shortest ttl of its waiters, and for how many looks the watch was trusted without asking.
    ttl: Duration,
    unchecked: u32,
}

/// A claim of this client that waits.
#[derive(Debug)]
struct Waiter {
    key: Vec<u8>,
    owner: Owner,
    shape: Shape,
}

impl Watched {
    pub(super) fn new(number: i64, under: Vec<u8>) -> Self {
        Self {
            number,
            under,
            entries: BTreeMap::new(),
            made: HashMap::new(),
            revision: None,
            early: Vec::new(),
            heard: false,
            waiters: HashMap::new(),
            by_owner: HashMap::new(),
            awaited: BTreeMap::new(),
            idle: 0,
            ttl: Duration::MAX,
            unchecked: 0,
        }
    }

    /// What its keys begin with.
    pub(super) fn under(&self) -> &[u8] {
        &self.under
    }

    /// Begins anew with another watch.
    pub(super) fn begin_again(&mut self, number: i64) {
        (self.number, self.revision, self.heard) = (number, None, false);
        self.entries.clear();
        self.made.clear();
        self.early.clear();
    }

    /// A claim waits by this key. False if that is known.
    pub(super) fn enter(&mut self, id: ClaimId, own: &Entry) -> bool {
        self.idle = 0;
        if self.waiters.get(&id).is_some_and(|waiter| waiter.key == own.key) {
            return false;
        }
        self.leave(id);
        let Some((value, part)) = own.value.as_ref().zip(own.part(id)) else { return false };
        let waiter = Waiter { key: own.key.clone(), owner: value.owner.clone(), shape: part.shape };
        self.ttl = self.ttl.min(Duration::from_micros(part.ttl));
        self.by_owner.entry(waiter.owner.clone()).or_default().insert(id);
        self.waiters.insert(id, waiter);
        true
    }

    pub(super) fn leave(&mut self, id: ClaimId) {
        let Some(waiter) = self.waiters.remove(&id) else { return };
        if let Some(same) = self.by_owner.get_mut(&waiter.owner) {
            same.remove(&id);
            if same.is_empty() {
                self.by_owner.remove(&waiter.owner);
            }
        }
    }

    /// Whether the watch may lag although it has just begun, and somebody depends on it.
    pub(super) fn may_lag(&self) -> bool {
        !self.heard && self.has_waiters()
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.waiters.is_empty()
    }

    /// Whether it is time to ask etcd whether the watch still tells: once per ttl while somebody depends on it.
    /// Called at each look.
    pub(super) fn is_to_be_checked(&mut self, looks_every: Duration) -> bool {
        if !self.has_waiters() {
            self.ttl = Duration::MAX;
        }
        self.unchecked = if self.revision.is_some() { self.unchecked.saturating_add(1) } else { 0 };
        let is_due = looks_every.saturating_mul(self.unchecked) >= self.ttl;
        if is_due {
            self.unchecked = 0;
        }
        is_due
    }

    /// The keys that hold, as far as is known.
    pub(super) fn holding(&self, now: Moment) -> Vec<Entry> {
        let Some((line, queue)) = self.telling(now) else { return Vec::new() };
        let mut holding: Vec<Entry> = queue.holders().filter_map(|held| line.holding(held)).cloned().collect();
        holding.dedup_by_key(|entry| entry.created);
        holding
    }

    /// The waiters whose own keys were not told yet.
    pub(super) fn untold(&self) -> Vec<ClaimId> {
        self.waiters.keys().copied().filter(|id| !self.is_told(*id)).collect()
    }

    /// Whether the key of a waiter was told.
    pub(super) fn is_told(&self, id: ClaimId) -> bool {
        self.waiters.get(&id).is_some_and(|waiter| self.made.contains_key(&waiter.key))
    }

    /// Whether it still is as it was, by what the watch has told.
    pub(super) fn believes(&self, belief: &Belief) -> bool {
        let same = |entry: &Entry| {
            let known = self.entries.get(&(entry.created, entry.key.clone()));
            known.is_some_and(|known| known.modified == entry.modified)
        };
        let waits_untold = |id: &ClaimId| self.waiters.contains_key(id) && !self.is_told(*id);
        self.number == belief.number && (belief.holding.iter().any(same) || belief.untold.iter().any(waits_untold))
    }

    /// How many keys there are; none before they were listed.
    pub(super) fn length(&self) -> Option<usize> {
        self.revision.map(|_| self.entries.len())
    }

    /// Whether all is known that was done up to a revision.
    pub(super) fn knows(&self, revision: i64) -> bool {
        self.revision.is_some_and(|known| known >= revision)
    }

    /// Resolves when all is known that was done up to a revision.
    pub(super) fn when_known(&mut self, revision: i64) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.awaited.entry(revision).or_default().push(tell);
        told
    }

    fn knows_more(&mut self, revision: i64) {
        self.revision = Some(revision);
        let later = self.awaited.split_off(&revision.saturating_add(1));
        for tell in std::mem::replace(&mut self.awaited, later).into_values().flatten() {
            let _ = tell.send(());
        }
    }

    /// The keys were read, after the watch had begun. The keys that are gone.
    pub(super) fn listed(&mut self, line: Line) -> Vec<Entry> {
        if self.knows(line.revision) {
            return Vec::new();
        }
        let before = std::mem::take(&mut self.entries);
        self.made.clear();
        for entry in line.entries {
            self.put(entry);
        }
        self.knows_more(line.revision);
        let mut gone: Vec<Entry> =
            before.into_iter().filter(|(at, _)| !self.entries.contains_key(at)).map(|(_, entry)| entry).collect();
        let early = std::mem::take(&mut self.early);
        gone.extend(self.apply(early));
        gone
    }

    /// What the watch told. The keys that are gone.
    pub(super) fn take(&mut self, events: Vec<KeyEvent>) -> Vec<Entry> {
        self.heard |= !events.is_empty();
        self.apply(events)
    }

    fn apply(&mut self, events: Vec<KeyEvent>) -> Vec<Entry> {
        let Some(known) = self.revision else {
            self.early.extend(events);
            return Vec::new();
        };
        let mut gone = Vec::new();
        let mut latest = known;
        for event in events {
            let is_put = event.is_put();
            let Some(kv) = event.kv.filter(|kv| kv.mod_revision > known) else { continue };
            latest = latest.max(kv.mod_revision);
            if is_put && is_claim_under(&self.under, &kv) {
                self.put(Entry::of(kv));
            } else if let Some(created) = self.made.remove(&kv.key) {
                gone.extend(self.entries.remove(&(created, kv.key)));
            }
        }
        self.knows_more(latest);
        gone
    }

    fn put(&mut self, entry: Entry) {
        if let Some(before) = self.made.insert(entry.key.clone(), entry.created) {
            self.entries.remove(&(before, entry.key.clone()));
        }
        self.entries.insert((entry.created, entry.key.clone()), entry);
    }

    /// The front of the queue; none before it was listed.
    pub(super) fn front(&self) -> Option<Line> {
        self.first(usize::try_from(HEAD_MAX).unwrap_or(usize::MAX))
    }

    fn first(&self, most: usize) -> Option<Line> {
        let revision = self.revision?;
        let entries: Vec<Entry> = self.entries.values().take(most).cloned().collect();
        Some(Line { more: entries.len() < self.entries.len(), entries, mixed: false, revision })
    }

    /// As much of the front as it takes to see who holds; none before it was listed.
    pub(super) fn holders(&self, now: Moment) -> Option<Line> {
        self.telling(now).map(|(line, _)| line)
    }

    fn telling(&self, now: Moment) -> Option<(Line, Queue)> {
        let mut most = FIRST;
        loop {
            let line = self.first(most)?;
            let queue = line.queue(now);
            if !line.more || queue.waiters().next().is_some() {
                return Some((line, queue));
            }
            most = most.saturating_mul(8);
        }
    }

    /// The claims of this client whose turn has come, or whose owner holds by now; and the front of the queue.
    pub(super) fn turns(&self, now: Moment) -> Option<(Line, Vec<(ClaimId, Entry)>)> {
        if self.waiters.is_empty() {
            return None;
        }
        let (line, queue) = self.telling(now)?;
        let mut turns = HashSet::new();
        for held in queue.holders() {
            turns.extend(self.waiters.contains_key(&held.id).then_some(held.id));
            let same = self.by_owner.get(&held.owner).into_iter().flatten().filter(|_| !held.solo);
            turns.extend(same.filter(|id| self.waiters.get(id).is_some_and(|waits| held.shape.covers(waits.shape))));
        }
        let own = |id: ClaimId| {
            let key = &self.waiters.get(&id)?.key;
            // Before its key is told, nobody can say who is before it.
            let own = self.entries.get(&(*self.made.get(key)?, key.clone()))?;
            Some((id, own.clone()))
        };
        let turns: Vec<_> = turns.into_iter().filter_map(own).collect();
        (!turns.is_empty()).then_some((line, turns))
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Part, Value};
    use super::super::wire::KeyValue;
    use super::*;

    fn key(id: u64) -> Vec<u8> {
        format!("n/1-{}", ClaimId(id)).into_bytes()
    }

    fn kv(id: u64, created: i64, owner: &Owner, solo: bool) -> KeyValue {
        let part = Part {
            id: ClaimId(id),
            label: "".into(),
            shape: Shape::Exclusive,
            ttl: 10_000_000,
            since: Moment(5),
            number: None,
            attempt: 0,
            within: Vec::new(),
        };
        let value = Value { owner: owner.clone(), solo, claims: vec![part] }.encode();
        KeyValue { key: key(id), create_revision: created, mod_revision: created, version: 1, value, lease: 1 }
    }

    fn put(id: u64, created: i64, owner: &Owner) -> KeyEvent {
        KeyEvent { kind: 0, kv: Some(kv(id, created, owner, true)) }
    }

    fn delete(id: u64, at: i64) -> KeyEvent {
        let gone = KeyValue { key: key(id), mod_revision: at, ..KeyValue::default() };
        KeyEvent { kind: 1, kv: Some(gone) }
    }

    fn listed(kvs: Vec<KeyValue>, revision: i64) -> Watched {
        let mut watched = Watched::new(2, b"n/".to_vec());
        watched.listed(Line::of(b"n/", kvs, false, revision));
        watched
    }

    fn turns(watched: &Watched) -> Vec<u64> {
        let turns = watched.turns(Moment(0)).map(|(_, turns)| turns).unwrap_or_default();
        turns.into_iter().map(|(id, _)| id.0).collect()
    }

    #[test]
    fn a_claim_has_its_turn_when_all_before_it_are_gone() {
        let [a, b, c] = [(); 3].map(|()| Owner::random());
        let own = kv(3, 7, &c, true);
        let mut watched = listed(vec![kv(1, 3, &a, true), kv(2, 5, &b, true), own.clone()], 9);
        assert!(watched.enter(ClaimId(3), &Entry::of(own.clone())));
        assert!(!watched.enter(ClaimId(3), &Entry::of(own)), "known");
        assert!(turns(&watched).is_empty());
        assert_eq!(watched.take(vec![delete(2, 11)]).len(), 1);
        assert!(turns(&watched).is_empty(), "the holder is still there");
        watched.take(vec![delete(1, 12)]);
        assert_eq!(turns(&watched), [3]);
        watched.leave(ClaimId(3));
        assert!(turns(&watched).is_empty() && !watched.has_waiters() && watched.by_owner.is_empty());
    }

    #[test]
    fn what_was_listed_is_not_undone_by_what_was_told_before() {
        let [a, b] = [(); 2].map(|()| Owner::random());
        let mut watched = Watched::new(2, b"n/".to_vec());
        watched.take(vec![put(1, 3, &a), delete(1, 4), put(1, 5, &a)]);
        watched.take(vec![put(2, 8, &b)]);
        assert!(watched.front().is_none() && !watched.knows(3));
        assert!(watched.listed(Line::of(b"n/", vec![kv(1, 5, &a, true)], false, 6)).is_empty());
        let order: Vec<_> = watched.front().unwrap().entries.iter().map(|entry| entry.created).collect();
        assert_eq!(order, [5, 8]);
        assert!(watched.knows(8) && !watched.knows(9));
    }

    #[test]
    fn a_claim_whose_own_key_was_not_told_yet_has_no_turn() {
        let own = kv(2, 8, &Owner::random(), true);
        let mut watched = listed(Vec::new(), 6);
        watched.enter(ClaimId(2), &Entry::of(own));
        assert!(turns(&watched).is_empty(), "one that was made at 7 may stand before it");
    }

    #[test]
    fn a_claim_whose_owner_holds_is_to_be_looked_at() {
        let (a, own) = (Owner::random(), |owner: &Owner| kv(2, 5, owner, false));
        for solo in [false, true] {
            let mut watched = listed(vec![kv(1, 3, &a, solo), own(&a)], 9);
            watched.enter(ClaimId(2), &Entry::of(own(&a)));
            assert_eq!(turns(&watched).is_empty(), solo, "nobody joins what is handed over in memory");
        }
    }

    #[test]
    fn a_key_that_was_made_again_and_data_are_told_apart() {
        let a = Owner::random();
        let mut watched = listed(vec![kv(1, 3, &a, true)], 4);
        watched.take(vec![delete(1, 5), put(1, 6, &a)]);
        assert_eq!(watched.front().unwrap().entries[0].created, 6);
        let data = KeyValue { lease: 0, mod_revision: 7, ..kv(1, 6, &a, true) };
        assert_eq!(watched.take(vec![KeyEvent { kind: 0, kv: Some(data) }]).len(), 1, "no claim any more");
        let below = KeyValue { key: b"n/below/1".to_vec(), ..kv(2, 8, &a, true) };
        watched.take(vec![KeyEvent { kind: 0, kv: Some(below) }]);
        assert_eq!(watched.length(), Some(0));
    }
}
