//! Ending a claim only if it still waits.
//!
//! Who holds follows from the order of the keys, so no key says that a claim waits. But a few others do, as long as
//! they stay as they are ([`Queue::blockers`]): the transaction that ends the claim compares them.

use super::desk::{Desk, TRIES_MAX, delete, put_again};
use super::entry::{Entry, Line, Note};
use super::error::odd;
use super::wire::{Compare, RequestOp, TxnRequest};
use crate::backend::{Released, WaiterBreak};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{Claim, Queue};
use crate::name::Name;
use crate::owner::ClaimId;

/// How many keys are compared at most: etcd takes 128 in a transaction unless told otherwise.
const COMPARED_MAX: usize = 100;

impl Desk {
    /// Ends a claim that waits, if it has this number; one that holds stays.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it, or leave the claim to its ttl.
    pub(super) async fn release_unless_held(&self, name: &Name, id: ClaimId, number: Option<u64>) -> Result<Released> {
        self.end_unless_held(name, id, number, None).await
    }

    /// Ends a claim that waits, and leaves a note for its client; false if it holds, or is not there.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it.
    pub(super) async fn break_waiter(&self, name: &Name, request: &WaiterBreak) -> Result<bool> {
        let WaiterBreak { id, number, by, reason } = request;
        let note = Note { by: by.clone(), reason: reason.clone(), number: *number };
        Ok(self.end_unless_held(name, *id, Some(*number), Some(&note)).await? == Released::Yes)
    }

    async fn end_unless_held(
        &self,
        name: &Name,
        id: ClaimId,
        number: Option<u64>,
        note: Option<&Note>,
    ) -> Result<Released> {
        for _ in 0..TRIES_MAX {
            let Some((own, line)) = self.own_among_others(name, id).await? else {
                return self.not_there(id, number).await;
            };
            let part = own.part(id).ok_or_else(odd)?;
            if number.is_some_and(|number| number != own.number_of(part)) {
                return Ok(Released::NotFound);
            }
            let queue = line.queue(self.wall());
            if queue.find(id).is_some_and(|claim| claim.grant.is_some()) {
                return Ok(Released::Holds);
            }
            let compare = blocking(&line, &queue, &own, id, self.wall()).ok_or_else(too_many)?;
            if let Some(note) = note {
                // Its client is told, also if it is this one.
                let left = self.note_for(id, own.value.as_ref().ok_or_else(odd)?.lived(), note).await?;
                if self.end_if(&own, id, compare, Some(left)).await? {
                    return Ok(Released::Yes);
                }
                continue;
            }
            let leaving = Leaving::begin(self, id, &own.key);
            if self.end_if(&own, id, compare, None).await? {
                let known = self.known(name, id).filter(|known| known.key == own.key);
                if let Some(known) = known {
                    self.forget(id);
                    self.spare_lease_of(Some(known));
                }
                drop(leaving);
                return Ok(Released::Yes);
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the queue changes faster than it can be left"))
    }

    /// Takes a claim out of its key, if that is as it was seen, and so is the rest.
    async fn end_if(
        &self,
        own: &Entry,
        id: ClaimId,
        mut compare: Vec<Compare>,
        note: Option<RequestOp>,
    ) -> Result<bool> {
        compare.push(Compare::modified(&own.key, own.modified));
        let mut value = own.value.clone().ok_or_else(odd)?;
        value.claims.retain(|part| part.id != id);
        let change = if value.claims.is_empty() { delete(&own.key) } else { put_again(&own.key, value.encode()) };
        let success = std::iter::once(change).chain(note).collect();
        Ok(self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?.succeeded)
    }

    /// The key of a claim, and the queue that it stands in, or the front of that.
    async fn own_among_others(&self, name: &Name, id: ClaimId) -> Result<Option<(Entry, Line)>> {
        let has = |own: &Entry| own.part(id).is_some();
        let known = self.known(name, id).filter(|known| known.created != 0 && !known.repeated && !known.elsewhere);
        if let Some(known) = known
            && let (Some(own), line) = self.look(name, &known.key).await?
            && has(&own)
        {
            return Ok(Some((own, self.telling(name, line).await?)));
        }
        let line = self.line(name).await?;
        Ok(line.find(id).cloned().map(|own| (own, line)))
    }
}

fn too_many() -> Error {
    Error::new(ErrorKind::Unavailable, format!("it waits for more than {COMPARED_MAX} holders together"))
}

/// What makes it certain that a claim waits: these keys are as they were seen. None if they are too many.
fn blocking(line: &Line, queue: &Queue, own: &Entry, id: ClaimId, now: Moment) -> Option<Vec<Compare>> {
    let value = own.value.as_ref()?;
    let kept = queue.blockers((id, &value.owner))?;
    let compare = |claim: &&Claim| {
        let entry = line.entries.iter().find(|entry| entry.has(claim, now))?;
        // One that came later would not keep it waiting.
        (entry.created <= own.created).then(|| Compare::modified(&entry.key, entry.modified))
    };
    let compared: Option<Vec<Compare>> = kept.iter().map(compare).collect();
    compared.filter(|compared| compared.len() <= COMPARED_MAX)
}

/// A claim that this client may be about to end: that its key goes is no news meanwhile.
struct Leaving<'a> {
    desk: &'a Desk,
    id: ClaimId,
    key: &'a [u8],
    /// What it was before: another request may end it, too.
    was: bool,
}

impl<'a> Leaving<'a> {
    fn begin(desk: &'a Desk, id: ClaimId, key: &'a [u8]) -> Self {
        let mut was = false;
        desk.update(id, key, |known| was = std::mem::replace(&mut known.leaving, true));
        Self { desk, id, key, was }
    }
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.desk.update(self.id, self.key, |known| known.leaving = self.was);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::EtcdBackend;
    use super::super::silence::tests::claim;
    use super::*;
    use crate::backend::{Backend as _, ReleaseRequest};
    use crate::clock::SystemClock;
    use crate::machine::Shape;

    /// What is ended by what was seen a moment ago.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_claim_whose_turn_has_come_since_it_was_seen_to_wait_is_not_ended() {
        let url = tenure_testkit::servers::shared::etcd().url();
        let store = EtcdBackend::open(&url, Arc::new(SystemClock)).await.unwrap();
        let name = Name::new(format!("unless-held/{:016x}", rand::random::<u64>())).unwrap();
        let permits = |units| crate::machine::ClaimRequest { shape: Shape::Permits { units, of: 3 }, ..claim() };
        let (one, two, waits, behind) = (permits(2), permits(1), permits(1), permits(3));
        for request in [&one, &two, &waits, &behind] {
            store.claim(&name, request.clone()).await.unwrap();
        }
        let seen = async |id| {
            let (own, line) = store.desk.own_among_others(&name, id).await.unwrap().unwrap();
            let compare = blocking(&line, &line.queue(Moment(0)), &own, id, Moment(0)).unwrap();
            (own, compare)
        };
        let [(own, by_both), (last, by_three)] = [seen(waits.id).await, seen(behind.id).await];
        assert_eq!((by_both.len(), by_three.len()), (2, 3), "holders, and the first who waits");
        store.release(&name, ReleaseRequest::of(&two)).await.unwrap();
        assert!(!store.desk.end_if(&own, waits.id, by_both, None).await.unwrap(), "it holds");
        assert!(!store.desk.end_if(&last, behind.id, by_three, None).await.unwrap(), "it may hold");
        let waiting_only = |request| ReleaseRequest { waiting_only: true, ..ReleaseRequest::of(request) };
        assert_eq!(store.release(&name, waiting_only(&waits)).await.unwrap(), Released::Holds);
        assert_eq!(store.release(&name, waiting_only(&behind)).await.unwrap(), Released::Yes);
    }
}
