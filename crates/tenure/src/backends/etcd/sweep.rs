//! Ending what lives by a shared lease without being asked for: claims that nobody renews, and keys that landed late.
//!
//! What is to be ended is marked first, where all look before they trust a claim, and its key is then deleted as it
//! was read. So no delete that is under way can meet a key that somebody trusts.

use std::sync::Arc;

use futures_util::StreamExt as _;

use super::desk::{Desk, TRIES_MAX};
use super::entry::{Entry, only};
use super::lease::Lease;
use super::table::Known;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::owner::ClaimId;

/// How many keys are ended at a time.
const ENDS_MAX: usize = 32;

impl Desk {
    /// Looks after a lease in the background, if it is time to.
    pub(super) fn tidy(self: &Arc<Self>, lease: &Arc<Lease>, now: Moment) {
        if !lease.shared || lease.is_gone() {
            return;
        }
        if lease.is_to_be_swept(now) {
            let overdue = self.end_overdue(lease.id, now);
            if !overdue.is_empty() {
                let desk = self.clone();
                self.runtime.spawn(async move { desk.end_all(overdue).await });
            }
        }
        if lease.is_to_be_compared(now) {
            let (desk, lease) = (self.clone(), lease.clone());
            self.runtime.spawn(async move { desk.compare(&lease).await });
        }
    }

    /// Ends the leases that no claim lives by: there will be no other claim.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is left ends after its ttl.
    pub(super) async fn revoke_unused(&self) {
        let unused = self.leases.take_unused(|lease| self.has_claims(lease.id)).await;
        let unused: Vec<i64> = unused.into_iter().filter(|lease| lease.lose()).map(|lease| lease.id).collect();
        let ends = futures_util::stream::iter(unused).for_each_concurrent(ENDS_MAX, |id| async move {
            let _ = self.road.ask(|link| async move { link.revoke(id).await }).await;
        });
        ends.await;
    }

    /// Ends the keys of a lease that are no claim of this client: what was given up before it arrived.
    async fn compare(&self, lease: &Arc<Lease>) {
        let id = lease.id;
        let Ok(found) = self.road.ask(|link| async move { link.time_to_live(id, true).await }).await else { return };
        // Looked at after the keys: what is claimed meanwhile is known before it has a key.
        let orphans = found.keys.into_iter().filter_map(|key| {
            let (name, id) = self.keys.claim_of(&key)?;
            let orphan = Known {
                name,
                key,
                lease: lease.clone(),
                created: 0,
                number: 0,
                holds: false,
                asked: self.clock.now(),
                ttl: lease.ttl(),
                sent: true,
                unanswered: true,
                repeated: true,
                elsewhere: true,
                leaving: false,
                ending: true,
            };
            self.end_orphan(id, orphan)
        });
        self.end_all(orphans.collect()).await;
    }

    async fn end_all(&self, claims: Vec<(ClaimId, Known)>) {
        let ends = futures_util::stream::iter(claims).for_each_concurrent(ENDS_MAX, |(id, known)| async move {
            if let Err(error) = self.end(id, &known).await {
                tracing::debug!(%error, name = %known.name, "a claim that nobody asks for could not be ended");
            }
        });
        ends.await;
    }

    /// Deletes the key of a claim that is being ended, and forgets it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it is being ended until this was done to the end.
    pub(super) async fn end(&self, id: ClaimId, known: &Known) -> Result<()> {
        for _ in 0..TRIES_MAX {
            let found = self.range(only(&known.key)).await?.kvs.into_iter().next().map(Entry::of);
            if !self.is_ending(id, &known.key) {
                // Somebody else has ended it. The key that was read may be that of a claim which came afterwards.
                return Ok(());
            }
            let made = |entry: &Entry| known.created == 0 || entry.created == known.created;
            let gone = match found.filter(made) {
                Some(entry) => self.withdraw(&entry, None).await?,
                None => true,
            };
            if gone {
                self.forget_seen(id, known);
                return Ok(());
            }
        }
        Err(Error::new(ErrorKind::Unavailable, "the claim changes faster than it can be ended"))
    }
}
