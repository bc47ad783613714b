//! Ending claims: releasing one's own, breaking those of others.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::desk::{Desk, TRIES_MAX, delete, put, put_again};
use super::entry::{Entry, Note, only};
use super::error::odd;
use super::table::Known;
use super::wire::{Compare, Request, RequestOp, TxnRequest};
use crate::backend::{BreakRequest, Released};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Claim;
use crate::name::Name;
use crate::owner::ClaimId;

/// For how long a note of a break stays at least.
const NOTE_MIN: Duration = Duration::from_secs(10);
/// How many notes go into one transaction: etcd takes 128 operations unless told otherwise.
const NOTES_AT_ONCE: usize = 64;

impl Desk {
    /// Ends a claim, waiting or holding; with `number`, only if it has that number.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it, or leave the claim to its ttl.
    pub(super) async fn release(&self, name: &Name, id: ClaimId, number: Option<u64>) -> Result<Released> {
        let known = self.leave(name, id, number);
        let released = match known {
            // Where nobody else can have asked for it: it waited to be sent, and is not any more.
            Some(known) if !known.sent && !known.elsewhere => {
                self.forget_seen(id, &known);
                self.leases.give_back(known.lease);
                return Ok(Released::NotFound);
            }
            Some(known) => self.release_known(name, id, number, known).await?,
            None => self.release_found(name, id, number).await?,
        };
        // One with another number is another claim, and goes on.
        let own = self.known(name, id).is_some_and(|known| number.is_none_or(|number| number == known.number));
        if own {
            self.forget(id);
        }
        Ok(released)
    }

    /// By its key and the revision that made it, as long as nobody has joined it: one round trip.
    async fn release_known(&self, name: &Name, id: ClaimId, number: Option<u64>, known: Known) -> Result<Released> {
        let mut compare = vec![Compare::unchanged(&known.key)];
        if known.created != 0 {
            compare.push(Compare::created(&known.key, known.created));
        } else if let Some(number) = number {
            compare.push(Compare::created(&known.key, i64::try_from(number).unwrap_or(i64::MAX)));
        }
        let failure = vec![Request::Range(only(&known.key)).into()];
        let request = TxnRequest { compare, success: vec![delete(&known.key)], failure };
        // What it ends is there for sure, and others wait for that: it goes before what is asked for. One whose key
        // may yet be asked for goes behind that.
        let found = if known.created != 0 && !known.unanswered && !known.repeated {
            self.convoy.urgent(name, request).await?
        } else {
            self.convoy.txn(name, request).await?
        };
        if found.succeeded {
            self.forget(id);
            self.spare_lease_of(Some(known));
            return Ok(Released::Yes);
        }
        let own = found.into_ranges().next().ok_or_else(odd)?.kvs.into_iter().next().map(Entry::of);
        match own {
            Some(own) if own.part(id).is_some() => self.remove(name, id, number, own).await,
            // It may have joined what its owner holds, unanswered. To look for it reads all of the queue.
            _ if known.elsewhere => self.release_found(name, id, number).await,
            _ => self.not_there(id, number).await,
        }
    }

    async fn release_found(&self, name: &Name, id: ClaimId, number: Option<u64>) -> Result<Released> {
        match self.line(name).await?.find(id) {
            Some(found) => self.remove(name, id, number, found.clone()).await,
            None => self.not_there(id, number).await,
        }
    }

    /// Takes one claim out of a key, and the key away with its last one.
    async fn remove(&self, name: &Name, id: ClaimId, number: Option<u64>, mut found: Entry) -> Result<Released> {
        for _ in 0..TRIES_MAX {
            let Some(part) = found.part(id) else { return self.not_there(id, number).await };
            if number.is_some_and(|number| number != found.number_of(part)) {
                return Ok(Released::NotFound);
            }
            let mut value = found.value.clone().ok_or_else(odd)?;
            value.claims.retain(|part| part.id != id);
            let change =
                if value.claims.is_empty() { delete(&found.key) } else { put_again(&found.key, value.encode()) };
            let compare = vec![Compare::modified(&found.key, found.modified)];
            if self.txn(TxnRequest { compare, success: vec![change], failure: Vec::new() }).await?.succeeded {
                return Ok(Released::Yes);
            }
            match self.line(name).await?.find(id) {
                Some(now) => found = now.clone(),
                None => return self.not_there(id, number).await,
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the claim changes faster than it can be ended"))
    }

    /// What became of a claim that etcd does not have.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn not_there(&self, id: ClaimId, number: Option<u64>) -> Result<Released> {
        let note = self.note(id, number).await?;
        Ok(note.map_or(Released::NotFound, |note| Released::Broken { by: note.by, reason: note.reason }))
    }

    /// Takes back a key that was made in vain.
    ///
    /// # Cancel safety
    ///
    /// As [`withdraw`](Self::withdraw).
    pub(super) async fn take_back(&self, id: ClaimId, own: &Entry) -> Result<()> {
        if !self.withdraw(own, None).await? {
            // Somebody took it over, and lives by its lease.
            self.update(id, &own.key, |known| (known.repeated, known.elsewhere) = (true, true));
        }
        Ok(())
    }

    /// Takes back a key, unless it has changed, or the one that makes it needless.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: it ends with its lease.
    pub(super) async fn withdraw(&self, own: &Entry, needless_by: Option<&Entry>) -> Result<bool> {
        let unchanged = |entry: &Entry| Compare::modified(&entry.key, entry.modified);
        let compare = std::iter::once(own).chain(needless_by).map(unchanged).collect();
        let request = TxnRequest { compare, success: vec![delete(&own.key)], failure: Vec::new() };
        Ok(self.txn(request).await?.succeeded)
    }

    /// Ends all holders' claims, or those that are meant; how many.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: look again.
    pub(super) async fn break_holders(&self, name: &Name, request: &BreakRequest) -> Result<usize> {
        let BreakRequest { owner, up_to, by, reason } = request;
        // A key's token is that of its creation: whoever has one that is too high keeps it.
        let is_meant = |held: &&Claim| {
            owner.as_ref().is_none_or(|owner| *owner == held.owner)
                && up_to.is_none_or(|token| held.grant.is_some_and(|grant| grant.token <= token))
        };
        let mut meant: Option<HashSet<i64>> = None;
        let mut ended = 0;
        for _ in 0..TRIES_MAX {
            // What was ended before stays so, whatever fails later.
            let line = self.line(name).await.map_err(|error| error.unknown_if(ended > 0))?;
            let queue = line.queue(self.wall());
            let holding = queue.holders().filter(is_meant);
            let holding: Vec<&Entry> = holding.filter_map(|held| line.holding(held)).collect();
            // Those who come to hold by this very break are not meant.
            let meant = meant.get_or_insert_with(|| holding.iter().map(|entry| entry.created).collect());
            let mut left: Vec<&Entry> = holding.into_iter().filter(|entry| meant.contains(&entry.created)).collect();
            left.dedup_by_key(|entry| entry.created);
            if left.is_empty() {
                return Ok(ended);
            }
            for entry in left {
                ended += self.evict(entry, by, reason).await.map_err(|error| error.unknown_if(ended > 0))?;
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the holders change faster than they can be broken"))
    }

    /// What leaves a note for a claim with this ttl.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst a lease was made, which ends by itself.
    pub(super) async fn note_for(&self, id: ClaimId, ttl: Duration, note: &Note) -> Result<RequestOp> {
        let lease = self.leases.own(&self.road, ttl.max(NOTE_MIN)).await?;
        self.note_under(id, note, lease.id)
    }

    fn note_under(&self, id: ClaimId, note: &Note, lease: i64) -> Result<RequestOp> {
        let note = serde_json::to_vec(note).map_err(|error| odd().because(error))?;
        Ok(put(&self.keys.note(id), note, lease))
    }

    /// Takes a key away, and leaves a note for each of its claims; how many, none if it changed meanwhile.
    async fn evict(&self, entry: &Entry, by: &Arc<str>, reason: &Arc<str>) -> Result<usize> {
        let mut notes = Vec::new();
        if let Some(value) = &entry.value {
            // Its holder asks again within a ttl, or is dead.
            let lease = self.leases.own(&self.road, value.lived().max(NOTE_MIN)).await?;
            for part in &value.claims {
                let note = Note { by: by.clone(), reason: reason.clone(), number: entry.number_of(part) };
                notes.push(self.note_under(part.id, &note, lease.id)?);
            }
        }
        let mut notes = notes.chunks(NOTES_AT_ONCE);
        let mut success = vec![delete(&entry.key)];
        success.extend_from_slice(notes.next().unwrap_or_default());
        let compare = vec![Compare::modified(&entry.key, entry.modified)];
        if !self.txn(TxnRequest { compare, success, failure: Vec::new() }).await?.succeeded {
            return Ok(0);
        }
        for more in notes {
            // Without its note a claim is told that it is gone, not by whom: that is no reason to fail.
            let _ = self.txn(TxnRequest { success: more.to_vec(), ..TxnRequest::default() }).await;
        }
        Ok(entry.value.as_ref().map_or(1, |value| value.claims.len()))
    }
}
