//! What one client knows of its claims, and the steps that all operations share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::convoy::Convoy;
use super::ear::Ear;
use super::entry::{Entry, Keys, Line, Note, Part, Target, all, head, only};
use super::error::odd;
use super::lease::{Lease, Leases};
use super::road::Road;
use super::url::Settings;
use super::wire::{
    Answered as _, BY_CREATION, Compare, DESCENDING, DeleteRequest, PutRequest, RangeRequest, RangeResponse, Request,
    RequestOp, TxnRequest, TxnResponse,
};
use crate::backend::{Event, Shape, Standing};
use crate::clock::{Clock, Moment};
use crate::error::{Loss, Result};
use crate::machine::Grant;
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How often an operation is begun anew because a queue changed under it.
pub(super) const TRIES_MAX: usize = 16;

pub(super) struct Desk {
    pub(super) road: Arc<Road>,
    pub(super) convoy: Arc<Convoy>,
    pub(super) keys: Keys,
    pub(super) leases: Leases,
    pub(super) ear: Ear,
    pub(super) clock: Arc<dyn Clock>,
    /// Where what is done in the background runs.
    pub(super) runtime: tokio::runtime::Handle,
    claims: Mutex<HashMap<ClaimId, Known>>,
}

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
    /// When it was last asked for.
    pub(super) asked: Moment,
    pub(super) ttl: Duration,
    /// Whether it was asked for more than once: an earlier request may still arrive.
    pub(super) repeated: bool,
}

impl Desk {
    /// Called on the runtime that the client lives on.
    pub(super) fn new(settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let runtime = tokio::runtime::Handle::current();
        let keys = Keys::new(settings.prefix.clone());
        let road = Arc::new(Road::new(settings, clock.clone()));
        Self {
            keys,
            convoy: Convoy::new(road.clone(), runtime.clone()),
            road,
            leases: Leases::new(clock.clone()),
            ear: Ear::default(),
            clock,
            runtime,
            claims: Mutex::default(),
        }
    }

    /// Now, as people and other machines read it.
    pub(super) fn wall(&self) -> Moment {
        Moment(self.clock.wall_micros())
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<ClaimId, Known>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known(&self, name: &Name, id: ClaimId) -> Option<Known> {
        self.claims().get(&id).filter(|known| known.name == *name).cloned()
    }

    pub(super) fn remember(&self, id: ClaimId, known: Known) {
        let now = known.asked;
        let mut unasked = Vec::new();
        let mut claims = self.claims();
        if claims.len() == claims.capacity() {
            // Before the table grows, those go that nobody asks for any more, and that are not in etcd either.
            claims.retain(|id, known| {
                let ended = now.since(known.asked) >= 2 * known.ttl.max(known.lease.ttl());
                if ended {
                    unasked.push(*id);
                }
                !ended
            });
        }
        claims.insert(id, known);
        drop(claims);
        for id in unasked {
            self.ear.forget(id);
        }
    }

    /// Changes what is known of a claim, if it still is.
    pub(super) fn update(&self, id: ClaimId, change: impl FnOnce(&mut Known)) {
        if let Some(known) = self.claims().get_mut(&id) {
            change(known);
        }
    }

    /// A claim holds. True if that is news.
    pub(super) fn takes_hold(&self, id: ClaimId) -> bool {
        self.claims().get_mut(&id).is_some_and(|known| !std::mem::replace(&mut known.holds, true))
    }

    pub(super) fn forget(&self, id: ClaimId) -> Option<Known> {
        let known = self.claims().remove(&id);
        self.ear.forget(id);
        known
    }

    /// The claims that live by a lease.
    pub(super) fn living_by(&self, lease: i64) -> Vec<(ClaimId, Known)> {
        let claims = self.claims();
        claims.iter().filter(|(_, known)| known.lease.id == lease).map(|(id, known)| (*id, known.clone())).collect()
    }

    /// The claims that live by a lease, and that nobody has asked for since their ttl.
    pub(super) fn overdue(&self, lease: i64, now: Moment) -> Vec<(ClaimId, Known)> {
        let claims = self.claims();
        let overdue = claims.iter().filter(|(_, known)| known.lease.id == lease && now.since(known.asked) >= known.ttl);
        overdue.map(|(id, known)| (*id, known.clone())).collect()
    }

    /// The keys of all claims of this client.
    pub(super) fn all_keys(&self) -> HashSet<Vec<u8>> {
        self.claims().values().map(|known| known.key.clone()).collect()
    }

    /// etcd no longer has a lease: what lived by it has ended.
    pub(super) fn lose(&self, lease: &Lease) {
        if lease.lose() {
            for (id, known) in self.living_by(lease.id) {
                self.ended(id, known.number, Loss::Gone);
            }
        }
    }

    fn ended(&self, id: ClaimId, number: u64, loss: Loss) {
        if self.forget(id).is_some() {
            self.ear.tell(Event::Ended { id, number, loss });
        }
    }

    /// Somebody broke a claim; it may be one of ours.
    pub(super) fn broken(&self, id: ClaimId, note: &Note) {
        let ours = self.claims().get(&id).is_some_and(|known| known.number == note.number);
        if ours {
            let loss = Loss::Broken { by: note.by.to_string(), reason: note.reason.to_string() };
            self.ended(id, note.number, loss);
        }
    }

    /// Runs a transaction.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves its outcome unknown.
    pub(super) async fn txn(&self, request: TxnRequest) -> Result<TxnResponse> {
        Ok(self.road.txn(&request).await?)
    }

    /// Reads. Another member is asked if one fails: nothing is changed by it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        let ask = || {
            self.road.ask(|link| {
                let request = request.clone();
                async move { link.range(request).await }
            })
        };
        match ask().await {
            Err(super::road::Failure::Told(status)) if super::error::is_of_the_member(&status) => Ok(ask().await?),
            answer => Ok(answer?),
        }
    }

    /// The whole queue of a name.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn line(&self, name: &Name) -> Result<Line> {
        let under = self.keys.under(name);
        let found = self.range(all(&under)).await?;
        let revision = found.header().revision;
        Ok(Line::of(&under, found.kvs, false, revision))
    }

    /// A claim's own key and the front of its queue.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn look(&self, name: &Name, key: &[u8]) -> Result<(Option<Entry>, Line)> {
        let under = self.keys.under(name);
        let success = vec![Request::Range(only(key)).into(), Request::Range(head(&under)).into()];
        let found = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        own_and_line(&under, found)
    }

    /// The front of a queue as it was read; all of it if names below this one took the room.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn unmixed(&self, name: &Name, line: Line) -> Result<Line> {
        if line.more && line.mixed { self.line(name).await } else { Ok(line) }
    }

    /// How a claim stands whose key is there; watches for its turn if it waits.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing in etcd.
    pub(super) async fn standing(&self, name: &Name, id: ClaimId, own: &Entry, line: &Line) -> Result<Standing> {
        let part = own.part(id).ok_or_else(odd)?;
        let (number, ttl) = (own.number_of(part), Duration::from_micros(part.ttl));
        if let Some(standing) = line.queue(self.wall()).standing(id, self.wall()) {
            match &standing.state {
                Ok(_) => self.ear.forget(id),
                Err(_) => self.watch(name, id, line.target(own, id), line.revision),
            }
            return Ok(standing);
        }
        if part.shape != Shape::Exclusive || line.queue(self.wall()).waiters().next().is_none() {
            // All that were read hold, and there are more: whether this one does as well takes the whole queue. And what one that can
            // hold together with others waits for is not the one before it.
            let whole = self.line(name).await?;
            if let Some(standing) = whole.queue(self.wall()).standing(id, self.wall()) {
                if standing.state.is_err() {
                    self.watch(name, id, whole.target(own, id), whole.revision);
                }
                return Ok(standing);
            }
        }
        // Too far back to be read with the others: it is the turn of the one before it first.
        let under = self.keys.under(name);
        let before = RangeRequest {
            max_create_revision: own.created.saturating_sub(1),
            sort_order: DESCENDING,
            limit: 1,
            keys_only: true,
            ..all(&under)
        };
        debug_assert_eq!(before.sort_target, BY_CREATION);
        let before = self.range(before).await?;
        let target = before.kvs.into_iter().next().map_or(Target::Everything, |kv| Target::Key(kv.key));
        self.watch(name, id, target, line.revision);
        let place = line.queue(self.wall()).place_at_the_end(self.wall());
        Ok(Standing { number, ttl, state: Err(place) })
    }

    fn watch(&self, name: &Name, id: ClaimId, target: Target, revision: i64) {
        // One that was given up meanwhile must not be watched for ever: whoever forgets it comes before this, or after it.
        let claims = self.claims();
        if claims.contains_key(&id) {
            self.ear.watch(id, target, &self.keys.under(name), revision);
        }
    }

    /// Something changed before a claim that waits.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the claim is looked at again by its next renewal.
    pub(super) async fn look_again(&self, id: ClaimId) {
        self.ear.looks(id);
        let Some(known) = self.claims().get(&id).filter(|known| !known.holds).cloned() else { return };
        if let Err(error) = self.turn(id, &known).await {
            tracing::debug!(%error, name = %known.name, "a claim that waits could not be looked at");
        }
    }

    /// Looks whether it is a claim's turn, and tells it.
    async fn turn(&self, id: ClaimId, known: &Known) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let (own, line) = self.look(&known.name, &known.key).await?;
            let line = self.unmixed(&known.name, line).await?;
            let Some(own) = own.filter(|own| own.created == known.created && own.part(id).is_some()) else {
                return self.is_not_there(id, known).await;
            };
            if let Some(outer) = line.outer_of(&own, id, self.wall()) {
                // Its owner holds by now, by another lease than this claim is trusted by: it is claimed anew, and re-enters.
                if self.withdraw(&own, Some(outer)).await? {
                    self.ended(id, known.number, Loss::Gone);
                    return Ok(());
                }
                // That one has ended meanwhile, and it may be this one's turn.
                continue;
            }
            let standing = self.standing(&known.name, id, &own, &line).await?;
            if let Ok(grant) = standing.state
                && self.takes_hold(id)
            {
                self.granted(id, grant, known.number);
            }
            return Ok(());
        }
        Ok(())
    }

    /// A claim that waited has no key any more.
    async fn is_not_there(&self, id: ClaimId, known: &Known) -> Result<()> {
        if self.known(&known.name, id).is_none_or(|now| now.key != known.key || now.created != known.created) {
            // It has joined what its owner holds, or was claimed anew, while this looked.
            return Ok(());
        }
        // Its own lease has ended, or it was broken, which is told apart.
        let loss = match self.note(id, Some(known.number)).await? {
            Some(note) => Loss::Broken { by: note.by.to_string(), reason: note.reason.to_string() },
            None => Loss::Gone,
        };
        self.ended(id, known.number, loss);
        Ok(())
    }

    fn granted(&self, id: ClaimId, grant: Grant, number: u64) {
        self.ear.tell(Event::Granted { id, grant, number });
    }

    /// Adds a claim to the key that holds for its owner, and takes its own key away. None if one of them changed meanwhile.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the claim is found again by its id.
    pub(super) async fn join(
        &self,
        name: &Name,
        outer: &Entry,
        mut part: Part,
        own: Option<&Entry>,
        line: &Line,
    ) -> Result<Option<Grant>> {
        let id = part.id;
        let mut value = outer.value.clone().ok_or_else(odd)?;
        // It keeps the number it has; one that comes now counts as appended after all that was seen.
        let number =
            own.map_or_else(|| super::entry::revision(line.revision).saturating_add(1), |own| own.number_of(&part));
        part.number = Some(number);
        let (since, ttl) = (part.since, Duration::from_micros(part.ttl));
        let lived = value.lived();
        value.claims.push(part);
        let mut compare = vec![Compare::modified(&outer.key, outer.modified)];
        let mut success = vec![put_again(&outer.key, value.encode())];
        if let Some(own) = own {
            compare.push(Compare::modified(&own.key, own.modified));
            success.push(delete(&own.key));
        }
        if !self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?.succeeded {
            return Ok(None);
        }
        let lease = self.leases.of_key(outer.lease, lived);
        self.ear.forget(id);
        self.remember(
            id,
            Known {
                name: name.clone(),
                key: outer.key.clone(),
                lease,
                created: outer.created,
                number,
                holds: true,
                asked: self.clock.now(),
                ttl,
                repeated: true,
            },
        );
        let token = Token(super::entry::revision(outer.created));
        Ok(Some(Grant { token, block_end: token, at: since }))
    }

    /// What remains of a claim that was broken.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn note(&self, id: ClaimId, number: Option<u64>) -> Result<Option<Note>> {
        let found = self.range(only(&self.keys.note(id))).await?;
        let note = found.kvs.first().and_then(|kv| serde_json::from_slice::<Note>(&kv.value).ok());
        Ok(note.filter(|note| number.is_none_or(|number| number == note.number)))
    }
}

/// The own key and the line of a transaction that read both, in this order.
pub(super) fn own_and_line(under: &[u8], found: TxnResponse) -> Result<(Option<Entry>, Line)> {
    let revision = found.header().revision;
    let mut ranges = found.into_ranges();
    let (own, front) = (ranges.next().ok_or_else(odd)?, ranges.next().ok_or_else(odd)?);
    let own = own.kvs.into_iter().next().map(Entry::of);
    Ok((own, Line::of(under, front.kvs, front.more, revision)))
}

pub(super) fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    Request::Put(PutRequest { key: key.to_vec(), value, lease, ignore_lease: false }).into()
}

/// Puts another value, and leaves the lease as it is.
pub(super) fn put_again(key: &[u8], value: Vec<u8>) -> RequestOp {
    Request::Put(PutRequest { key: key.to_vec(), value, lease: 0, ignore_lease: true }).into()
}

pub(super) fn delete(key: &[u8]) -> RequestOp {
    Request::Delete(DeleteRequest { key: key.to_vec() }).into()
}
