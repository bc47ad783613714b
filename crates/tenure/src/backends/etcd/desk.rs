//! What one client knows of its claims, and the steps that all operations share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::convoy::Convoy;
use super::ear::Ear;
use super::entry::{Entry, Keys, Line, Note, Part, all, head, is_claim_under, only};
use super::error::odd;
use super::glance::Glances;
use super::lease::Leases;
use super::road::Road;
use super::table::{Claims, Known};
use super::url::Settings;
use super::versions::Versions;
use super::wire::{
    Answered as _, Compare, DeleteRequest, PutRequest, RangeRequest, RangeResponse, Request, RequestOp, TxnRequest,
    TxnResponse,
};
use crate::backend::{Event, Standing};
use crate::backends::kit::wall::StoreWall;
use crate::clock::{Clock, Moment};
use crate::error::{Loss, Result};
use crate::machine::{Grant, Queue};
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How often an operation is begun anew because a queue changed under it.
pub(super) const TRIES_MAX: usize = 16;

/// How many reads go into one transaction: etcd takes 128 unless told otherwise.
pub(super) const READS_MAX: usize = 64;

pub(super) struct Desk {
    pub(super) road: Arc<Road>,
    pub(super) convoy: Arc<Convoy>,
    pub(super) keys: Keys,
    pub(super) leases: Leases,
    pub(super) ear: Ear,
    pub(super) versions: Versions,
    pub(super) clock: Arc<dyn Clock>,
    /// Where what is done in the background runs.
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) claims: Mutex<Claims>,
    pub(super) glances: Glances,
    pub(super) wall_told: StoreWall,
}

/// How a claim stands, seen from one of its keys.
pub(super) enum Stood {
    Here(Standing),
    /// By an earlier key, in this queue: another try, of this or another process, got through as well. What that one
    /// has is not this one's.
    Elsewhere(Line),
}

impl Desk {
    /// Called on the runtime that the client lives on.
    pub(super) fn new(settings: Settings, clock: Arc<dyn Clock>) -> Self {
        let runtime = tokio::runtime::Handle::current();
        let keys = Keys::new(settings.prefix.clone());
        let road = Arc::new(Road::new(settings, clock.clone()));
        Self {
            keys,
            convoy: Convoy::new(road.clone(), runtime.clone(), clock.clone()),
            road,
            leases: Leases::new(clock.clone()),
            ear: Ear::default(),
            versions: Versions::default(),
            clock,
            runtime,
            claims: Mutex::default(),
            glances: Glances::default(),
            wall_told: StoreWall::default(),
        }
    }

    /// Now, as people and other machines read it.
    pub(super) fn wall(&self) -> Moment {
        Moment(self.clock.wall_micros())
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
        let (own, line) = own_and_line(&under, found)?;
        Ok((own, line.ok_or_else(odd)?))
    }

    /// The front of a queue as it was read; all of it if the front does not tell who holds: names below this one took
    /// the room, or all that were read hold.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn telling(&self, name: &Name, line: Line) -> Result<Line> {
        let tells = !line.more || (!line.mixed && line.queue(self.wall()).waiters().next().is_some());
        if tells { Ok(line) } else { self.line(name).await }
    }

    /// How a claim stands whose key is there; if it waits, it is told of its turn.
    pub(super) fn standing(
        self: &Arc<Self>,
        name: &Name,
        id: ClaimId,
        own: &Entry,
        (line, queue): (&Line, &Queue),
    ) -> Result<Stood> {
        let part = own.part(id).ok_or_else(odd)?;
        let standing = match line.find(id) {
            Some(found) if found.key != own.key => return Ok(Stood::Elsewhere(line.clone())),
            Some(found) if found.created == own.created => queue.standing(id, self.wall()).ok_or_else(odd)?,
            // Too far back to be read with the others: somebody waits before it. Or the queue was looked at before the
            // key was made, and had an earlier one of the same name at best: nobody can say who is before it.
            _ => {
                let (number, ttl) = (own.number_of(part), Duration::from_micros(part.ttl));
                Standing { number, ttl, state: Err(queue.place_at_the_end(self.wall())) }
            }
        };
        match &standing.state {
            Ok(_) => self.ear.watches().stops_waiting(id),
            Err(_) => self.wait_for(name, id, own),
        }
        Ok(Stood::Here(standing))
    }

    fn wait_for(self: &Arc<Self>, name: &Name, id: ClaimId, own: &Entry) {
        let mut more_is_known = false;
        // One that was given up meanwhile must not be watched for ever: whoever forgets it comes before this, or
        // after it.
        self.while_known(id, || {
            more_is_known = self.ear.watches().enter(name, &self.keys.under(name), id, own);
        });
        if more_is_known {
            self.take_turns(name);
        }
    }

    /// Something changed about a claim that waits.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the claim is looked at again by its next renewal.
    pub(super) async fn look_again(self: &Arc<Self>, id: ClaimId) {
        let Some(known) = self.waiting(id) else { return };
        if let Err(error) = self.turn(id, &known).await {
            tracing::debug!(%error, name = %known.name, "a claim that waits could not be looked at");
        }
    }

    /// Looks whether it is a claim's turn, and tells it.
    async fn turn(self: &Arc<Self>, id: ClaimId, known: &Known) -> Result<()> {
        if known.created == 0 {
            // The answer to its claim tells how it stands, and until then it is not known which key to look at.
            return Ok(());
        }
        for _ in 0..TRIES_MAX {
            let (own, line) = self.look(&known.name, &known.key).await?;
            let line = self.telling(&known.name, line).await?;
            let Some(own) = own.filter(|own| own.created == known.created && own.part(id).is_some()) else {
                return self.is_not_there(id, known).await;
            };
            let queue = line.queue(self.wall());
            if let Some(outer) = line.outer_of(&own, id, &queue) {
                // Its owner holds by now, by another lease than this claim is trusted by: it is claimed anew, and
                // re-enters.
                if self.withdraw(&own, Some(outer)).await? {
                    self.ended(id, known, Loss::Gone);
                    return Ok(());
                }
                // That one has ended meanwhile, and it may be this one's turn.
                continue;
            }
            match self.standing(&known.name, id, &own, (&line, &queue))? {
                Stood::Here(standing) => {
                    if let Ok(grant) = standing.state
                        && self.takes_hold(id, &own)
                    {
                        self.granted(id, grant, known.number);
                    }
                    return Ok(());
                }
                // It is claimed anew, by that key.
                Stood::Elsewhere(_) if self.withdraw(&own, None).await? => {
                    self.ended(id, known, Loss::Gone);
                    return Ok(());
                }
                Stood::Elsewhere(_) => {}
            }
        }
        Ok(())
    }

    /// A claim has no key any more, and not by its own client.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it is told by its next renewal.
    pub(super) async fn is_not_there(&self, id: ClaimId, known: &Known) -> Result<()> {
        // Its own lease has ended, or it was broken, which is told apart. Should it have joined what its owner holds,
        // or have been claimed anew, it has another key by now, and goes on.
        let loss = match self.note(id, Some(known.number)).await? {
            Some(note) => Loss::Broken { by: note.by.to_string(), reason: note.reason.to_string() },
            None => Loss::Gone,
        };
        self.ended(id, known, loss);
        Ok(())
    }

    pub(super) fn granted(&self, id: ClaimId, grant: Grant, number: u64) {
        self.ear.tell(Event::Granted { id, grant, number });
    }

    /// Adds a claim to the key that holds for its owner, and takes its own key away. None if one of them changed
    /// meanwhile.
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
        self.may_be_elsewhere(id);
        if !self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?.succeeded {
            return Ok(None);
        }
        let known = Known {
            name: name.clone(),
            key: outer.key.clone(),
            lease: self.leases.of_key(outer.lease, lived),
            created: outer.created,
            number,
            holds: true,
            asked: self.clock.now(),
            ttl,
            sent: true,
            unanswered: false,
            repeated: true,
            elsewhere: true,
            leaving: false,
            ending: false,
        };
        // Its own key, if it had one, is gone.
        self.spare_lease_of(self.moved(id, known).filter(|before| before.key != outer.key));
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

/// The own key and, if it was read too, the line of a transaction that read both, in this order.
pub(super) fn own_and_line(under: &[u8], found: TxnResponse) -> Result<(Option<Entry>, Option<Line>)> {
    let revision = found.header().revision;
    let mut ranges = found.into_ranges();
    let own = ranges.next().ok_or_else(odd)?;
    let own = own.kvs.into_iter().find(|kv| is_claim_under(under, kv)).map(Entry::of);
    Ok((own, ranges.next().map(|front| Line::of(under, front.kvs, front.more, revision))))
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

#[cfg(test)]
mod tests {
    use super::super::entry::Value;
    use super::super::wire::KeyValue;
    use super::*;
    use crate::backend::Shape;
    use crate::clock::SystemClock;
    use crate::owner::Owner;

    #[tokio::test]
    async fn a_queue_that_was_looked_at_before_a_key_was_made_grants_it_nothing() {
        let settings = Settings::parse("etcd://127.0.0.1:1").unwrap();
        let desk = Arc::new(Desk::new(settings, Arc::new(SystemClock)));
        let (name, id) = (Name::new("x").unwrap(), ClaimId(7));
        let part = Part {
            id,
            label: "".into(),
            shape: Shape::Exclusive,
            ttl: 10_000_000,
            since: Moment(5),
            number: None,
            attempt: 0,
            within: Vec::new(),
        };
        let value = Value { owner: Owner::random(), solo: true, claims: vec![part] }.encode();
        let made = |revision: i64| KeyValue {
            key: desk.keys.claim(&name, 1, id),
            value: value.clone(),
            lease: 1,
            create_revision: revision,
            mod_revision: revision,
            ..KeyValue::default()
        };
        let held = |own: i64| {
            let line = Line::of(&desk.keys.under(&name), vec![made(5)], false, 6);
            match desk.standing(&name, id, &Entry::of(made(own)), (&line, &line.queue(Moment(0)))).unwrap() {
                Stood::Here(standing) => standing.state.is_ok(),
                Stood::Elsewhere(_) => panic!("it has one key"),
            }
        };
        assert!(held(5));
        assert!(!held(9), "the key that was seen is gone, and others may have come before this one");
    }
}
