//! The claims of this client, as far as it knows them.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::desk::Desk;
use super::entry::{Entry, Note};
use super::lease::Lease;
use crate::backend::Event;
use crate::clock::Moment;
use crate::error::Loss;
use crate::name::Name;
use crate::owner::ClaimId;

/// A claim of this client.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
    pub(super) lease: Arc<Lease>,
    /// The revision that made the key; zero until that is known.
    pub(super) created: i64,
    pub(super) number: u64,
    pub(super) holds: bool,
    /// When it was last asked for, answered or not.
    pub(super) asked: Moment,
    pub(super) ttl: Duration,
    /// Whether etcd may have been asked for its key: false while the request waits to be sent.
    pub(super) sent: bool,
    /// Whether its key was asked for, and nothing was answered.
    pub(super) unanswered: bool,
    /// Whether an earlier request for its key may have been done, or may still arrive.
    pub(super) repeated: bool,
    /// Whether etcd may have the claim by another key: one of an earlier process or lease, or what its owner holds.
    pub(super) elsewhere: bool,
    /// This client has asked for its end: that its key goes is no news.
    pub(super) leaving: bool,
    /// It is being ended by this client: its key may go at any moment, so it is nobody's to trust.
    pub(super) ending: bool,
}

impl Known {
    fn has(&self, key: &[u8], created: i64) -> bool {
        self.key == key && self.created == created
    }
}

/// All of them, by their ids.
#[derive(Debug, Default)]
pub(super) struct Claims(HashMap<ClaimId, Known>);

impl Claims {
    /// False if the claim with this id is being ended, and has not ended with its lease.
    fn enter(&mut self, id: ClaimId, known: Known) -> bool {
        if self.0.get(&id).is_some_and(|before| before.ending && !before.lease.is_gone()) {
            return false;
        }
        self.0.insert(id, known);
        true
    }

    /// Before the table grows, those go that nobody asks for any more, and that are not in etcd either.
    fn make_room(&mut self, now: Moment) -> Vec<ClaimId> {
        if self.0.len() < self.0.capacity() {
            return Vec::new();
        }
        let gone = |known: &Known| {
            // One that is being ended is so until its key is gone for sure: with its lease, which nobody else keeps
            // alive.
            let lived = if known.ending { known.asked.max(known.lease.counted_from()) } else { known.asked };
            now.since(lived) >= 2 * known.ttl.max(known.lease.ttl())
        };
        self.0.extract_if(|_, known| gone(known)).map(|(id, _)| id).collect()
    }

    /// A claim that is to be renewed: from now on, so that it is not ended while it is asked for.
    fn ask(&mut self, name: &Name, id: ClaimId, now: Moment) -> Option<Known> {
        let known = self.0.get_mut(&id).filter(|known| known.name == *name)?;
        if !known.ending {
            known.asked = known.asked.max(now);
        }
        Some(known.clone())
    }

    /// The claim with this id, if it still has that key and is not being ended.
    fn living(&mut self, id: ClaimId, key: &[u8], created: i64) -> Option<&mut Known> {
        self.0.get_mut(&id).filter(|known| known.has(key, created) && !known.ending)
    }

    /// The claims that live by a lease, and that nobody has asked for since their ttl: from now on they are being
    /// ended, whoever asks for them. So are those of which the end was not answered before.
    fn end_overdue(&mut self, lease: i64, now: Moment) -> Vec<(ClaimId, Known)> {
        let overdue = |known: &Known| known.lease.id == lease && now.since(known.asked) >= known.ttl;
        let overdue = self.0.iter_mut().filter(|(_, known)| overdue(known));
        let end = |(id, known): (&ClaimId, &mut Known)| {
            known.ending = true;
            (*id, known.clone())
        };
        overdue.map(end).collect()
    }

    /// A key that belongs to no claim, as far as was seen: from now on it is being ended, unless it does belong to one.
    fn end_orphan(&mut self, id: ClaimId, orphan: Known) -> Option<(ClaimId, Known)> {
        let known = self.0.entry(id).or_insert(orphan.clone());
        (known.ending && known.key == orphan.key).then(|| (id, known.clone()))
    }
}

impl Desk {
    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, name: &Name, id: ClaimId) -> Option<Known> {
        self.claims().0.get(&id).filter(|known| known.name == *name).cloned()
    }

    /// The claim with this id, should it wait.
    pub(super) fn waiting(&self, id: ClaimId) -> Option<Known> {
        self.claims().0.get(&id).filter(|known| !known.holds && !known.ending).cloned()
    }

    /// The claim with this id, should its key have to be there.
    pub(super) fn untouched(&self, id: ClaimId) -> Option<Known> {
        self.claims().0.get(&id).filter(|known| known.created != 0 && !known.leaving && !known.ending).cloned()
    }

    /// A claim that this client ends, if it is known and has this number. What was not sent by now is never sent.
    pub(super) fn leave(&self, name: &Name, id: ClaimId, number: Option<u64>) -> Option<Known> {
        let mut claims = self.claims();
        let known = claims.0.get_mut(&id).filter(|known| known.name == *name)?;
        if known.created != 0 && number.is_some_and(|number| number != known.number) {
            return None;
        }
        known.leaving = true;
        Some(known.clone())
    }

    /// A claim's key is asked for from now on. False if it has been given up: then it must not be.
    pub(super) fn is_sent(&self, id: ClaimId, key: &[u8]) -> bool {
        let mut claims = self.claims();
        let Some(known) = claims.0.get_mut(&id).filter(|known| known.key == key && !known.leaving) else {
            return false;
        };
        known.sent = true;
        true
    }

    /// False if the claim with this id is being ended: it is asked for anew once that is done.
    pub(super) fn remember(&self, id: ClaimId, known: Known) -> bool {
        let mut claims = self.claims();
        for unasked in claims.make_room(known.asked) {
            self.ear.forget(unasked);
        }
        claims.enter(id, known)
    }

    /// A claim has another key, and what it had before is gone.
    pub(super) fn moved(&self, id: ClaimId, known: Known) -> Option<Known> {
        let mut claims = self.claims();
        self.ear.forget(id);
        claims.0.insert(id, known)
    }

    pub(super) fn ask(&self, name: &Name, id: ClaimId, now: Moment) -> Option<Known> {
        self.claims().ask(name, id, now)
    }

    /// Changes what is known of a claim, if it still has this key.
    pub(super) fn update(&self, id: ClaimId, key: &[u8], change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.claims().0.get_mut(&id).filter(|known| known.key == key) {
            change(known);
        }
    }

    /// The same, for one that is to be trusted from now on. None if it has changed meanwhile, or is being ended.
    pub(super) fn vouch<T>(
        &self,
        id: ClaimId,
        key: &[u8],
        created: i64,
        change: impl FnOnce(&mut Known) -> T,
    ) -> Option<T> {
        self.claims().living(id, key, created).map(change)
    }

    /// It is about to be put where its owner holds: whether it was may stay unknown.
    pub(super) fn may_be_elsewhere(&self, id: ClaimId) {
        if let Some(known) = self.claims().0.get_mut(&id) {
            known.elsewhere = true;
        }
    }

    /// A claim holds by this key. True if that is news.
    pub(super) fn takes_hold(&self, id: ClaimId, own: &Entry) -> bool {
        let holds = |known: &mut Known| !std::mem::replace(&mut known.holds, true);
        let news = self.vouch(id, &own.key, own.created, holds).unwrap_or(false);
        if news {
            self.ear.watches().holds(id);
        }
        news
    }

    pub(super) fn forget(&self, id: ClaimId) -> Option<Known> {
        let mut claims = self.claims();
        self.ear.forget(id);
        claims.0.remove(&id)
    }

    /// Forgets a claim if it still is as it was when it was looked at.
    pub(super) fn forget_seen(&self, id: ClaimId, seen: &Known) -> bool {
        let mut claims = self.claims();
        let same = claims.0.get(&id).is_some_and(|known| known.has(&seen.key, seen.created));
        if same {
            self.ear.forget(id);
            claims.0.remove(&id);
        }
        same
    }

    /// Whether claims live by a lease, or may.
    pub(super) fn has_claims(&self, lease: i64) -> bool {
        self.claims().0.values().any(|known| known.lease.id == lease)
    }

    pub(super) fn end_overdue(&self, lease: i64, now: Moment) -> Vec<(ClaimId, Known)> {
        self.claims().end_overdue(lease, now)
    }

    pub(super) fn end_orphan(&self, id: ClaimId, orphan: Known) -> Option<(ClaimId, Known)> {
        self.claims().end_orphan(id, orphan)
    }

    pub(super) fn is_ending(&self, id: ClaimId, key: &[u8]) -> bool {
        self.claims().0.get(&id).is_some_and(|known| known.ending && known.key == key)
    }

    /// Runs something if a claim is known, and before it can be forgotten.
    pub(super) fn while_known(&self, id: ClaimId, then: impl FnOnce()) {
        let claims = self.claims();
        if claims.0.contains_key(&id) {
            then();
        }
    }

    /// A claim has no key any more. If there is none that may yet come, its lease keeps nothing alive: the next claim
    /// may have it.
    pub(super) fn spare_lease_of(&self, gone: Option<Known>) {
        if let Some(gone) = gone.filter(|gone| !gone.unanswered && !gone.repeated) {
            self.leases.give_back(gone.lease);
        }
    }

    /// etcd no longer has a lease: what lived by it has ended.
    pub(super) fn lose(&self, lease: &Lease) {
        if !lease.lose() {
            return;
        }
        let mut claims = self.claims();
        let ended: Vec<_> = claims.0.extract_if(|_, known| known.lease.id == lease.id).collect();
        for (id, _) in &ended {
            self.ear.forget(*id);
        }
        drop(claims);
        for (id, known) in ended {
            self.ear.tell(Event::Ended { id, number: known.number, loss: Loss::Gone });
        }
    }

    /// A claim that was looked at has ended.
    pub(super) fn ended(&self, id: ClaimId, seen: &Known, loss: Loss) {
        if self.forget_seen(id, seen) {
            self.ear.tell(Event::Ended { id, number: seen.number, loss });
        }
    }

    /// Somebody broke a claim; it may be one of ours.
    pub(super) fn broken(&self, id: ClaimId, note: &Note) {
        let known = self.claims().0.get(&id).filter(|known| known.number == note.number).cloned();
        if let Some(known) = known {
            let loss = Loss::Broken { by: note.by.to_string(), reason: note.reason.to_string() };
            self.ended(id, &known, loss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ClaimId = ClaimId(7);
    const TTL: Duration = Duration::from_secs(10);

    fn known(asked: Moment) -> Known {
        Known {
            name: Name::new("x").unwrap(),
            key: b"x/1-7".to_vec(),
            lease: Lease::new(1, TTL, true, Moment(0)),
            created: 5,
            number: 5,
            holds: false,
            asked,
            ttl: TTL,
            sent: true,
            unanswered: false,
            repeated: false,
            elsewhere: false,
            leaving: false,
            ending: false,
        }
    }

    fn claims() -> Claims {
        let mut claims = Claims::default();
        assert!(claims.enter(ID, known(Moment(0))));
        claims
    }

    #[test]
    fn what_is_asked_for_is_not_ended_although_nothing_was_answered() {
        let (mut claims, late) = (claims(), Moment(0) + TTL);
        assert!(claims.ask(&Name::new("x").unwrap(), ID, late).is_some_and(|known| !known.ending));
        assert!(claims.end_overdue(1, late).is_empty());
        assert!(claims.living(ID, b"x/1-7", 5).is_some());
        assert_eq!(claims.end_overdue(1, late + TTL).len(), 1);
    }

    #[test]
    fn what_is_being_ended_is_trusted_by_nobody_until_it_has() {
        let (mut claims, late) = (claims(), Moment(0) + TTL);
        assert_eq!(claims.end_overdue(1, late).len(), 1);
        assert!(claims.ask(&Name::new("x").unwrap(), ID, late).is_some_and(|known| known.ending));
        assert!(claims.living(ID, b"x/1-7", 5).is_none());
        assert!(!claims.enter(ID, known(late)), "its key may go at any moment");
        let again = claims.end_overdue(1, late);
        assert_eq!(again.len(), 1, "tried again, should it not have been answered");
        assert!(again[0].1.lease.lose());
        assert!(claims.enter(ID, known(late)), "it has ended with its lease");
    }

    #[test]
    fn another_key_or_another_making_of_it_is_another_claim() {
        let mut claims = claims();
        assert!(claims.living(ID, b"x/1-7", 6).is_none());
        assert!(claims.living(ID, b"x/2-7", 5).is_none());
        assert!(claims.living(ClaimId(8), b"x/1-7", 5).is_none());
    }

    #[test]
    fn an_orphan_is_no_key_of_a_claim() {
        let mut claims = claims();
        let orphan = |key: &[u8]| Known { key: key.to_vec(), created: 0, ending: true, ..known(Moment(0)) };
        assert!(claims.end_orphan(ID, orphan(b"x/1-7")).is_none(), "claimed meanwhile");
        assert!(claims.end_orphan(ID, orphan(b"x/2-7")).is_none(), "the claim may yet find it");
        assert!(claims.end_orphan(ClaimId(8), orphan(b"x/1-8")).is_some());
        assert!(!claims.enter(ClaimId(8), known(Moment(0))));
        assert!(claims.end_orphan(ClaimId(8), orphan(b"x/1-8")).is_some(), "and again");
    }
}
