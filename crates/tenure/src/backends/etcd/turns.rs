//! What watches tell, and what follows from it: grants, and ends.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::desk::{Desk, READS_MAX};
use super::entry::{Entry, Line, only};
use super::table::Known;
use super::watched::Watched;
use super::wire::{Request, TxnRequest};
use crate::error::Result;
use crate::machine::Grant;
use crate::name::Name;
use crate::owner::ClaimId;

/// How often a queue is read while its watch may lag: for somewhat longer than etcd takes between two looks at such
/// watches.
const LIST_EVERY: Duration = Duration::from_millis(10);
const LISTS_MAX: u32 = 12;
/// How long a queue may be that is read so often.
const LIST_MAX: usize = 64;

impl Desk {
    /// A watch on a name has begun: its keys are read, and from then on known by what is told.
    ///
    /// If others wrote while it was made, etcd tells nothing before its next look at watches that lag: until then a
    /// short queue is read again.
    pub(super) fn list(self: &Arc<Self>, name: Name, number: i64) {
        let desk = self.clone();
        self.runtime.spawn(async move {
            for _ in 0..LISTS_MAX {
                match desk.line(&name).await {
                    Ok(line) => desk.listed(&name, number, line),
                    Err(error) => {
                        tracing::debug!(%error, %name, "the keys of a name could not be listed");
                        // Its waiters are told by their renewals, the first of which begins anew.
                        return desk.ear.watches().give_up(&name, number);
                    }
                }
                let lags = |watched: &mut Watched| {
                    watched.number == number && watched.may_lag() && watched.length().is_some_and(|it| it <= LIST_MAX)
                };
                if !desk.ear.watches().name(&name).is_some_and(lags) {
                    return;
                }
                let _ = timeout(LIST_EVERY, pending::<()>()).await;
            }
        });
    }

    fn listed(self: &Arc<Self>, name: &Name, number: i64, line: Line) {
        self.told(name, |watched| if watched.number == number { watched.listed(line) } else { Vec::new() });
    }

    /// Something was told of a name: those who were before others are gone.
    pub(super) fn told(self: &Arc<Self>, name: &Name, take: impl FnOnce(&mut Watched) -> Vec<Entry>) {
        let gone = self.ear.watches().name(name).map(take).unwrap_or_default();
        for entry in gone {
            for part in entry.value.iter().flat_map(|value| &value.claims) {
                self.key_is_gone(part.id);
            }
        }
        self.take_turns(name);
    }

    /// Grants what the queue of a name, as far as it is known, shows to be granted.
    pub(super) fn take_turns(self: &Arc<Self>, name: &Name) {
        let turns = self.ear.watches().name(name).and_then(|watched| watched.turns(self.wall()));
        let Some((line, turns)) = turns else { return };
        for (id, own) in turns {
            self.ear.watches().stops_waiting(id);
            match self.plainly_holds(&line, &own, id) {
                Some(grant) => {
                    let number = own.part(id).map(|part| own.number_of(part)).unwrap_or_default();
                    if self.takes_hold(id, &own) {
                        self.granted(id, grant, number);
                    }
                }
                // There is more to it: its owner holds, or it is there by another key as well.
                None => self.look_again_soon(id),
            }
        }
    }

    /// What a claim is given that holds by this key. The key was there when those before it were gone, so it held
    /// from then on; that its lease lives is known since when it was last kept alive, and its deadline counts from
    /// there.
    fn plainly_holds(&self, line: &Line, own: &Entry, id: ClaimId) -> Option<Grant> {
        let first = line.find(id).is_some_and(|found| found.key == own.key);
        let queue = line.queue(self.wall());
        let joins = line.outer_of(own, id, &queue).is_some();
        let standing = queue.standing(id, self.wall()).filter(|_| first && !joins)?;
        standing.state.ok()
    }

    pub(super) fn look_again_soon(self: &Arc<Self>, id: ClaimId) {
        let desk = self.clone();
        self.runtime.spawn(async move { desk.look_again(id).await });
    }

    /// A key of ours was deleted. If that was not by us, the claim has ended.
    pub(super) fn key_is_gone(self: &Arc<Self>, id: ClaimId) {
        let Some(known) = self.untouched(id) else { return };
        let desk = self.clone();
        self.runtime.spawn(async move {
            if known.holds {
                desk.look_at_keys(vec![(id, known)]).await;
            } else {
                desk.look_again(id).await;
            }
        });
    }

    /// Sees to it that keys which are held for a while are watched.
    pub(super) fn look_at_held(self: &Arc<Self>) {
        let due = self.ear.watches().look();
        for id in due {
            let Some(known) = self.untouched(id).filter(|known| known.holds) else { continue };
            self.while_known(id, || self.ear.watches().watch_held(id, &known.key));
        }
        let unseen = self.ear.watches().take_unseen();
        let unseen: Vec<_> = unseen.into_iter().filter_map(|id| Some((id, self.untouched(id)?))).collect();
        if !unseen.is_empty() {
            let desk = self.clone();
            self.runtime.spawn(async move { desk.look_at_keys(unseen).await });
        }
    }

    /// Looks whether the keys of claims are still there, and tells those that ended.
    async fn look_at_keys(self: &Arc<Self>, claims: Vec<(ClaimId, Known)>) {
        for some in claims.chunks(READS_MAX) {
            if let Err(error) = self.look_at_some(some).await {
                tracing::debug!(%error, "keys that are held could not be looked at: their renewals tell");
            }
        }
    }

    async fn look_at_some(&self, claims: &[(ClaimId, Known)]) -> Result<()> {
        let success = claims.iter().map(|(_, known)| Request::Range(only(&known.key)).into()).collect();
        let found = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        for ((id, known), found) in claims.iter().zip(found.into_ranges()) {
            let is_there = |entry: &Entry| entry.created == known.created && entry.part(*id).is_some();
            if !found.kvs.into_iter().map(Entry::of).any(|entry| is_there(&entry)) && self.untouched(*id).is_some() {
                self.is_not_there(*id, known).await?;
            }
        }
        Ok(())
    }
}
