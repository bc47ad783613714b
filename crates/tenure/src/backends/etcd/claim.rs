//! Appending a claim, or answering for it again.

use std::sync::Arc;
use std::time::Duration;

use super::convoy::Make;
use super::desk::{Desk, Stood, TRIES_MAX, delete, own_and_line, put, put_again};
use super::entry::{Entry, Line, Part, Value, head, only, revision};
use super::error::{is_missing_lease, odd};
use super::lease::Lease;
use super::road::Failure;
use super::table::Known;
use super::wire::{Answered as _, Compare, Request, TxnRequest};
use crate::backend::{Answer, ClaimRequest, Claimed, Refusal, Standing};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::Grant;
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How often a claim that is not to wait looks before it is appended, and taken back if it does not hold.
const HASTY_TRIES: usize = 4;

/// What a look at the queue came to; none if it changed meanwhile, and has to be looked at again.
type Settled = Option<Answer<Claimed>>;

impl Desk {
    /// Appends a claim, or answers for it again and renews it.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: whoever cancels releases the claim by its id.
    pub(super) async fn claim(self: &Arc<Self>, name: &Name, request: &ClaimRequest) -> Result<Answer<Claimed>> {
        for tries in 0..TRIES_MAX {
            let tried = self.try_claim(name, request, tries).await;
            // Once it was asked for, whatever fails afterwards does not undo that.
            let begun = self.known(name, request.id);
            if let Some(known) = &begun {
                // By its lease there may live what is left of others, and no claim may live long enough to be renewed.
                self.tidy(&known.lease, self.clock.now());
            }
            let unknown = |error: Error| error.with_certainty(Certainty::Unknown);
            let tried = tried.map_err(|error| if begun.is_some() { unknown(error) } else { error });
            if let Some(answer) = tried? {
                if !matches!(answer.value, Claimed::Stands(_)) {
                    self.spare_lease_of(self.forget(request.id));
                }
                return Ok(answer);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the queue changes faster than it can be joined"))
    }

    async fn try_claim(self: &Arc<Self>, name: &Name, request: &ClaimRequest, tries: usize) -> Result<Settled> {
        let known = self.known(name, request.id).filter(|known| !known.lease.is_gone());
        if let Some(known) = known.as_ref().filter(|known| known.ending) {
            // Its key goes before it gets another.
            self.end(request.id, known).await?;
            return Ok(None);
        }
        // One that would end before the claim may be trusted is of no use.
        let lasting = |known: &Known| known.lease.ttl() >= request.ttl;
        let joined = known.as_ref().is_some_and(|known| known.key != self.keys.claim(name, known.lease.id, request.id));
        if request.reenter.is_some() || joined {
            // Nothing is appended: it re-enters, or did so before.
            let line = self.line(name).await?;
            return self.settle(name, request, None, &line, false).await;
        }
        // One that was never sent has nothing in etcd, and needs no lease that is kept alive for it.
        let useful = |known: &Known| lasting(known) && (known.sent || self.is_trusted(&known.lease));
        let lease = match known.filter(useful) {
            Some(known) if self.is_trusted(&known.lease) => known.lease,
            Some(known) => {
                // Asked for a good while ago, without an answer.
                if !self.leases.keep(&self.road, &known.lease).await? {
                    self.lose(&known.lease);
                    return Ok(None);
                }
                known.lease
            }
            None => self.lease_for(request).await?,
        };
        if let Some(own) = self.made_before(name, request, &lease).await? {
            let line = self.line_of_known(name, request, Some(&own)).await?;
            return self.settle(name, request, Some(own), &line, true).await;
        }
        // One that is not to wait is appended only where it holds, unless others come and go too fast to see that.
        let waits = request.queue || tries >= HASTY_TRIES;
        self.append(name, request, lease, waits).await
    }

    fn is_trusted(&self, lease: &Lease) -> bool {
        self.clock.now().since(lease.counted_from()) < lease.ttl() / 2
    }

    /// One lease for all claims that nobody else can join; else one of its own, which every process of the session
    /// keeps alive.
    async fn lease_for(&self, request: &ClaimRequest) -> Result<Arc<Lease>> {
        if request.solo {
            self.leases.shared(&self.road, request.ttl).await
        } else {
            self.leases.own(&self.road, request.ttl).await
        }
    }

    /// The key of a claim that was asked for before, if it was made and nobody heard of it. It is looked for before it
    /// is asked for again: behind all others who ask for this name, it might take as long as before.
    async fn made_before(&self, name: &Name, request: &ClaimRequest, lease: &Arc<Lease>) -> Result<Option<Entry>> {
        let key = self.keys.claim(name, lease.id, request.id);
        let asked = |known: &Known| known.sent && known.created == 0 && known.key == key;
        if !request.queue || request.attempt != 0 || !self.known(name, request.id).is_some_and(|known| asked(&known)) {
            return Ok(None);
        }
        let own = self.range(only(&key)).await?.kvs.into_iter().next().map(Entry::of);
        let is_asked_for = |own: &Entry| {
            let same =
                |part: &Part| part.shape == request.shape && part.attempt == 0 && part.ttl == micros_of(request.ttl);
            own.lease == lease.id
                && own.part(request.id).is_some_and(same)
                && own.value.as_ref().is_some_and(|value| value.owner == request.owner)
        };
        let Some(own) = own.filter(is_asked_for) else { return Ok(None) };
        if !self.begin(name, request, &key, lease) {
            return Ok(None);
        }
        self.update(request.id, &key, |known| known.unanswered = false);
        Ok(Some(own))
    }

    /// Makes the key of a claim: at the tail if it may wait, else only where the name is free.
    async fn append(
        self: &Arc<Self>,
        name: &Name,
        request: &ClaimRequest,
        lease: Arc<Lease>,
        waits: bool,
    ) -> Result<Settled> {
        let (under, key) = (self.keys.under(name), self.keys.claim(name, lease.id, request.id));
        if !self.begin(name, request, &key, &lease) {
            return Ok(None);
        }
        let value = self.value_of(request);
        let note = (request.attempt != 0).then(|| self.keys.note(request.id));
        let (desk, of_name, bytes) = (self.clone(), name.clone(), value.encode());
        let (prefix, own_key, lease_id, id) = (under.clone(), key.clone(), lease.id, request.id);
        let make = move || {
            if !desk.is_sent(id, &own_key) {
                return None;
            }
            // etcd reads all of a queue to find its front, and each member does if that is part of a write.
            let known = waits && desk.ear.is_long(&of_name);
            let compare = if waits { Compare::absent(&own_key) } else { Compare::none_under(&prefix) };
            let front = || Request::Range(head(&prefix)).into();
            let mut success = vec![put(&own_key, bytes, lease_id)];
            success.extend((!known).then(front));
            // Used again after a break: what is told of the id from now on is about this claim.
            success.extend(note.map(|note| delete(&note)));
            let mut failure = vec![Request::Range(only(&own_key)).into()];
            failure.extend((!known).then(front));
            Some(TxnRequest { compare: vec![compare], success, failure })
        };
        let found = match self.put_txn(name, &lease, Box::new(make)).await? {
            Some(found) => found,
            None => return Ok(None),
        };
        self.update(request.id, &key, |known| known.unanswered = false);
        if !found.succeeded {
            let (own, line) = own_and_line(&under, found)?;
            let line = match line {
                Some(line) => self.telling(name, line).await?,
                None => self.line_of_known(name, request, own.as_ref()).await?,
            };
            return self.settle(name, request, own, &line, false).await;
        }
        let created = found.header().revision;
        let line = match found.into_ranges().next() {
            Some(front) => {
                if front.more {
                    self.ear.watches().found_long(name);
                }
                Line::of(&under, front.kvs, front.more, created)
            }
            None => self.front(name, request, created).await?,
        };
        let own = Entry { key, created, modified: created, lease: lease.id, value: Some(value) };
        let line =
            if self.plainly_waits(&line, &own, request) { line } else { self.telling_at(name, line, created).await? };
        self.settle(name, request, Some(own), &line, true).await
    }

    /// Known before it is asked for, so that what its lease has is never taken for nobody's. False if it is being
    /// ended.
    fn begin(&self, name: &Name, request: &ClaimRequest, key: &[u8], lease: &Arc<Lease>) -> bool {
        // Nothing is taken over from an earlier claim with this id: it may have ended.
        let before = self.known(name, request.id);
        // An id that other processes may have used, or one that had another key.
        let elsewhere =
            request.attempt != 0 || before.as_ref().is_some_and(|before| before.elsewhere || before.key != key);
        let before = before.filter(|known| known.key == key);
        let known = Known {
            name: name.clone(),
            key: key.to_vec(),
            lease: lease.clone(),
            created: 0,
            number: 0,
            holds: false,
            asked: self.clock.now(),
            ttl: request.ttl,
            sent: before.as_ref().is_some_and(|before| before.sent),
            unanswered: true,
            repeated: before.is_some_and(|before| before.unanswered || before.repeated),
            elsewhere,
            leaving: false,
            ending: false,
        };
        self.remember(request.id, known)
    }

    fn value_of(&self, request: &ClaimRequest) -> Value {
        let part = Part::of(request, self.clock.wall_micros(), None);
        Value { owner: request.owner.clone(), solo: request.solo, claims: vec![part] }
    }

    /// A transaction that binds a key to a lease; none if the lease is gone.
    async fn put_txn(&self, name: &Name, lease: &Arc<Lease>, make: Make) -> Result<Option<super::wire::TxnResponse>> {
        match self.convoy.txn_made(name, make).await {
            Err(Failure::Told(status)) if is_missing_lease(&status) => {
                self.lose(lease);
                Ok(None)
            }
            answer => Ok(Some(answer?)),
        }
    }

    /// What a claim comes to, given its own key, if it has one, and the queue. `appended` if the key was made just now.
    async fn settle(
        self: &Arc<Self>,
        name: &Name,
        request: &ClaimRequest,
        own: Option<Entry>,
        line: &Line,
        appended: bool,
    ) -> Result<Settled> {
        let elsewhere = line
            .find(request.id)
            .filter(|found| own.as_ref().is_none_or(|own| own.key != found.key && found.created < own.created));
        if let Some(found) = elsewhere {
            // An earlier try, of this or another process, got through under another key.
            if let Some(own) = own.as_ref().filter(|own| own.part(request.id).is_some()) {
                self.take_back(request.id, own).await?;
            }
            return self.answer_again(name, request, found, line).await;
        }
        match own {
            None => self.settle_without_key(name, request, line).await,
            Some(own) if appended => self.settle_appended(name, request, &own, line).await,
            Some(own) => {
                // An earlier request made it.
                self.update(request.id, &own.key, |known| (known.repeated, known.elsewhere) = (true, true));
                self.answer_again(name, request, &own, line).await
            }
        }
    }

    async fn settle_appended(
        self: &Arc<Self>,
        name: &Name,
        request: &ClaimRequest,
        own: &Entry,
        line: &Line,
    ) -> Result<Settled> {
        let before = line.queue_before(own.created, self.wall());
        if let Some(refusal) = before.refusal(request) {
            self.take_back(request.id, own).await?;
            return Ok(Some(self.answer(Claimed::Refused(refusal))));
        }
        let queue = line.queue(self.wall());
        if let Some(outer) = line.outer_of(own, request.id, &queue) {
            let part = own.part(request.id).cloned().ok_or_else(odd)?;
            return self.re_enter(name, request, outer, part, Some(own), line).await;
        }
        self.update(request.id, &own.key, |known| {
            known.created = own.created;
            known.number = revision(own.created);
        });
        match self.standing(name, request.id, own, (line, &queue))? {
            Stood::Here(standing) => Ok(self.stands(request.id, &own.key, own.created, standing)),
            Stood::Elsewhere(line) => {
                self.take_back(request.id, own).await?;
                let found = line.find(request.id).ok_or_else(odd)?;
                self.answer_again(name, request, found, &line).await
            }
        }
    }

    /// It has no key, and gets one only if it holds at once.
    async fn settle_without_key(&self, name: &Name, request: &ClaimRequest, line: &Line) -> Result<Settled> {
        let queue = line.queue(self.wall());
        if let Some(refusal) = queue.refusal(request) {
            return Ok(Some(self.answer(Claimed::Refused(refusal))));
        }
        if let Some(outer) = queue.re_entered_by(request) {
            let outer = line.holding(outer).ok_or_else(odd)?;
            let part = Part::of(request, self.clock.wall_micros(), None);
            return self.re_enter(name, request, outer, part, None, line).await;
        }
        if request.reenter.is_some() {
            return Ok(Some(self.answer(Claimed::Refused(Refusal::NotHeld))));
        }
        if !queue.has_room_for(request) {
            if request.queue {
                // It had re-entered a holding that is gone: it is claimed anew.
                self.forget(request.id);
                return Ok(None);
            }
            return Ok(Some(self.answer(Claimed::Busy(queue.place_at_the_end(self.wall())))));
        }
        self.append_beside(name, request, line).await
    }

    /// Makes the key of a claim that holds at once beside the others, unless somebody came meanwhile.
    async fn append_beside(&self, name: &Name, request: &ClaimRequest, line: &Line) -> Result<Settled> {
        let usable = |known: &Known| !known.lease.is_gone() && known.lease.ttl() >= request.ttl;
        let lease = match self.known(name, request.id).filter(usable) {
            Some(known) => known.lease,
            None => self.lease_for(request).await?,
        };
        let (under, key) = (self.keys.under(name), self.keys.claim(name, lease.id, request.id));
        if !self.begin(name, request, &key, &lease) {
            return Ok(None);
        }
        if !self.is_sent(request.id, &key) {
            return Ok(None);
        }
        let value = self.value_of(request);
        let at = value.claims.first().map(|part| part.since).unwrap_or_default();
        let compare = vec![Compare::none_since(&under, line.revision), Compare::absent(&key)];
        let success = vec![put(&key, value.encode(), lease.id)];
        let found =
            self.put_txn(name, &lease, Box::new(|| Some(TxnRequest { compare, success, failure: Vec::new() }))).await?;
        self.update(request.id, &key, |known| known.unanswered = false);
        let Some(found) = found.filter(|found| found.succeeded) else { return Ok(None) };
        let created = found.header().revision;
        let number = revision(created);
        self.update(request.id, &key, |known| {
            known.created = created;
            known.number = number;
        });
        let grant = Grant { token: Token(number), block_end: Token(number), at };
        let standing = Standing { number, ttl: request.ttl, state: Ok(grant) };
        Ok(self.stands(request.id, &key, created, standing))
    }

    /// The owner holds: the claim is added to what holds.
    async fn re_enter(
        &self,
        name: &Name,
        request: &ClaimRequest,
        outer: &Entry,
        part: Part,
        own: Option<&Entry>,
        line: &Line,
    ) -> Result<Settled> {
        let Some(grant) = self.join(name, outer, part, own, line).await? else { return Ok(None) };
        let Some(known) = self.known(name, request.id) else { return Ok(None) };
        if !self.leases.keep(&self.road, &known.lease).await? {
            self.lose(&known.lease);
            return Ok(None);
        }
        let standing = Standing { number: known.number, ttl: request.ttl, state: Ok(grant) };
        Ok(self.stands(request.id, &known.key, known.created, standing))
    }

    /// The claim is in the queue already: the same answer, and a renewal. Another attempt with its id takes it over.
    async fn answer_again(
        self: &Arc<Self>,
        name: &Name,
        request: &ClaimRequest,
        found: &Entry,
        line: &Line,
    ) -> Result<Settled> {
        let (Some(value), Some(part)) = (&found.value, found.part(request.id)) else { return Err(odd()) };
        if part.shape != request.shape || value.owner != request.owner {
            let refusal = Refusal::Mixed { live: part.shape, asked: request.shape };
            return Ok(Some(self.answer(Claimed::Refused(refusal))));
        }
        if part.attempt != request.attempt {
            self.take_over(request, found, value, line).await?;
            // Looked at once more, as it is now.
            return Ok(None);
        }
        let lease = self.leases.of_key(found.lease, value.lived());
        let known = Known {
            name: name.clone(),
            key: found.key.clone(),
            lease: lease.clone(),
            created: found.created,
            number: found.number_of(part),
            holds: false,
            asked: self.clock.now(),
            ttl: Duration::from_micros(part.ttl).max(request.ttl),
            sent: true,
            unanswered: false,
            repeated: true,
            elsewhere: true,
            leaving: false,
            ending: false,
        };
        if !self.remember(request.id, known) {
            return Ok(None);
        }
        if !self.leases.keep(&self.road, &lease).await? {
            self.lose(&lease);
            return Ok(None);
        }
        if micros_of(request.ttl) > part.ttl && value.claims.len() == 1 {
            self.lengthen(name, request.id, found, request.ttl).await?;
            return Ok(None);
        }
        let queue = line.queue(self.wall());
        if let Some(outer) = line.outer_of(found, request.id, &queue) {
            return self.re_enter(name, request, outer, part.clone(), Some(found), line).await;
        }
        match self.standing(name, request.id, found, (line, &queue))? {
            Stood::Here(standing) => Ok(self.stands(request.id, &found.key, found.created, standing)),
            Stood::Elsewhere(_) => {
                // Asked for once more without this key, it is answered for by the other.
                self.withdraw(found, None).await?;
                Ok(None)
            }
        }
    }

    /// Another attempt with this id: the one before can no longer end it.
    async fn take_over(&self, request: &ClaimRequest, found: &Entry, value: &Value, line: &Line) -> Result<()> {
        let mut value = value.clone();
        for part in value.claims.iter_mut().filter(|part| part.id == request.id) {
            part.attempt = request.attempt;
            part.number = Some(revision(line.revision).saturating_add(1));
        }
        let compare = vec![Compare::modified(&found.key, found.modified)];
        let success = vec![put_again(&found.key, value.encode())];
        self.txn(TxnRequest { compare, success, failure: Vec::new() }).await.map(drop)
    }

    /// Binds a key to a lease that lives longer. False if it changed meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the claim lives longer.
    pub(super) async fn lengthen(&self, name: &Name, id: ClaimId, found: &Entry, ttl: Duration) -> Result<bool> {
        let mut value = found.value.clone().ok_or_else(odd)?;
        for part in value.claims.iter_mut().filter(|part| part.id == id) {
            part.ttl = micros_of(ttl);
        }
        let lease = self.leases.fresh(&self.road, ttl).await?;
        let compare = vec![Compare::modified(&found.key, found.modified)];
        let success = vec![put(&found.key, value.encode(), lease.id)];
        let done =
            self.put_txn(name, &lease, Box::new(|| Some(TxnRequest { compare, success, failure: Vec::new() }))).await?;
        let done = done.is_some_and(|done| done.succeeded);
        if done {
            self.update(id, &found.key, |known| {
                known.lease = lease;
                known.ttl = ttl;
            });
        }
        Ok(done)
    }

    /// The answer for a claim that has a place by this key. What is trusted from a moment on is not overdue before.
    /// None if the claim was given up or ended meanwhile, or its lease is gone: what was seen has ended.
    fn stands(&self, id: ClaimId, key: &[u8], created: i64, mut standing: Standing) -> Settled {
        let counted_from = self.vouch(id, key, created, |known| {
            let counted_from = known.lease.counted_from();
            // It lives as long as what it lives by, however long it asked for.
            standing.ttl = standing.ttl.min(known.lease.ttl());
            known.asked = known.asked.max(counted_from);
            known.holds |= standing.state.is_ok();
            (!known.lease.is_gone()).then_some(counted_from)
        });
        if standing.state.is_ok() {
            self.ear.watches().holds(id);
        }
        Some(Answer { value: Claimed::Stands(standing), counted_from: counted_from.flatten()? })
    }

    fn answer(&self, value: Claimed) -> Answer<Claimed> {
        Answer { value, counted_from: self.clock.now() }
    }
}

fn micros_of(ttl: Duration) -> u64 {
    crate::clock::micros(ttl)
}
