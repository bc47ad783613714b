//! Finds watches that tell nothing any more although their stream lives: once per ttl the keys that hold, as far as
//! is known, are read. So news that were missed cost about a ttl, and not the name.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::desk::{Desk, READS_MAX};
use super::entry::{Entry, only};
use super::wire::{Request, TxnRequest};
use crate::error::Result;
use crate::name::Name;
use crate::owner::ClaimId;

/// How long etcd may take to tell what can be read already.
const GRACE: Duration = Duration::from_secs(1);

/// What is known of a name by its watch, and has to be so if the watch still tells.
#[derive(Debug)]
pub(super) struct Belief {
    pub(super) name: Name,
    /// The watch's.
    pub(super) number: i64,
    /// The keys that hold.
    pub(super) holding: Vec<Entry>,
    /// Waiters whose own keys were not told yet.
    pub(super) untold: Vec<ClaimId>,
}

impl Desk {
    /// Looks in the background at the names for which that is due.
    pub(super) fn check_watches(self: &Arc<Self>) {
        let due = self.ear.watches().take_due_checks(self.wall());
        if !due.is_empty() {
            let desk = self.clone();
            self.runtime.spawn(async move { desk.check(due).await });
        }
    }

    async fn check(self: &Arc<Self>, beliefs: Vec<Belief>) {
        let mut doubted = Vec::new();
        for belief in beliefs {
            match self.changed(&belief.holding).await {
                Ok(changed) if changed.is_empty() && belief.untold.is_empty() => {}
                Ok(changed) => doubted.push(Belief { holding: changed, ..belief }),
                Err(error) => tracing::debug!(%error, name = %belief.name, "who holds could not be looked at"),
            }
        }
        if doubted.is_empty() {
            return;
        }
        // What was read may be on its way.
        let _ = timeout(GRACE, pending::<()>()).await;
        for belief in doubted {
            if self.ear.watches().begin_anew_if_believed(&belief) {
                tracing::warn!(name = %belief.name, "a watch told nothing of what had changed: it is made anew");
            }
        }
    }

    /// Those of the keys that are gone or have changed.
    async fn changed(&self, entries: &[Entry]) -> Result<Vec<Entry>> {
        let mut changed = Vec::new();
        for some in entries.chunks(READS_MAX) {
            let success = some.iter().map(|entry| Request::Range(only(&entry.key)).into()).collect();
            let found = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
            for (entry, found) in some.iter().zip(found.into_ranges()) {
                if !found.kvs.iter().any(|kv| kv.mod_revision == entry.modified) {
                    changed.push(entry.clone());
                }
            }
        }
        Ok(changed)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // real servers take real time
pub(super) mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::super::EtcdBackend;
    use super::super::watched::Watched;
    use super::*;
    use crate::backend::{Backend as _, Claimed, Event, ReleaseRequest, RenewRequest, Shape};
    use crate::clock::SystemClock;
    use crate::machine::ClaimRequest;
    use crate::owner::Owner;

    const TTL: Duration = Duration::from_secs(6);
    /// How long a name may take to be watched.
    const WATCHED_MAX: Duration = Duration::from_secs(60);

    pub(in super::super) fn claim() -> ClaimRequest {
        ClaimRequest {
            id: ClaimId::random(),
            owner: Owner::random(),
            label: "".into(),
            shape: Shape::Exclusive,
            ttl: TTL,
            queue: true,
            block: 1,
            strict: false,
            inbox: "".into(),
            within: Vec::new(),
            reenter: None,
            solo: true,
            attempt: 0,
            presumed: Duration::ZERO,
        }
    }

    /// A watch falls silent while its stream goes on telling of others. Its waiter is granted the name all the same.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_that_falls_silent_wedges_no_name() {
        let url = tenure_testkit::servers::shared::etcd().url();
        let [holder, waiter] = [
            EtcdBackend::open(&url, Arc::new(SystemClock)).await.unwrap(),
            EtcdBackend::open(&url, Arc::new(SystemClock)).await.unwrap(),
        ];
        let (tell, told) = mpsc::channel();
        waiter.listen(Arc::new(move |event| drop(tell.send(event))));
        let name = Name::new(format!("silent/{:016x}", rand::random::<u64>())).unwrap();
        let (held, waits) = (claim(), claim());
        let id = waits.id;
        holder.claim(&name, held.clone()).await.unwrap();
        let begun = Instant::now();
        let stands = |claimed: &Claimed| matches!(claimed, Claimed::Stands(standing) if standing.state.is_err());
        assert!(stands(&waiter.claim(&name, waits.clone()).await.unwrap().value));
        // One more behind it: that it is told shows that the watch is served at once, and the queue is not read again
        // and again.
        holder.claim(&name, claim()).await.unwrap();
        let is_told = || {
            let told = |watched: &mut Watched| watched.is_told(id) && !watched.may_lag();
            waiter.desk.ear.watches().name(&name).is_some_and(told)
        };
        let renewal = |claim: &ClaimRequest| vec![RenewRequest::of(&name, claim)];
        while !is_told() {
            assert!(begun.elapsed() < WATCHED_MAX, "the name is not watched");
            // On a busy machine that may take longer than the claims live by themselves.
            holder.renew(renewal(&held), false).await.unwrap();
            waiter.renew(renewal(&waits), false).await.unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A last read of the queue that is under way would show the release.
        tokio::time::sleep(Duration::from_millis(200)).await;
        waiter.desk.ear.watches().fall_silent(&name);
        holder.release(&name, ReleaseRequest::of(&held)).await.unwrap();
        let released = Instant::now();
        let is_granted = |event: Event| matches!(event, Event::Granted { id: granted, .. } if granted == id);
        while !told.try_iter().any(is_granted) {
            assert!(released.elapsed() < 2 * TTL + GRACE, "the name is wedged");
            // By its watch the renewal knows no better.
            waiter.renew(renewal(&waits), false).await.unwrap();
            tokio::time::sleep(TTL / 8).await;
        }
    }
}
