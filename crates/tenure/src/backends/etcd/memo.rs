//! Memos: one key for each name, outside of the keys that make its queue.
//!
//! Whoever holds follows from the order of the keys, and stays so while its key stands: nothing is ever put before
//! it. So one look shows that the claim holds, and the transaction that writes compares what was seen of its key and
//! of the memo. A memo's version is the revision that wrote it, which never comes again.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::desk::{Desk, TRIES_MAX, put};
use super::entry::{Entry, Line, head, only, revision};
use super::error::{is_missing_lease, odd};
use super::road::Failure;
use super::wire::{Answered as _, Compare, KeyValue, Request, RequestOp, TxnRequest};
use crate::backend::{Memo, MemoWrite, MemoWritten};
use crate::backends::kit::memo::{answer_without_writing, decode, encode};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::MemoRecord;
use crate::name::Name;

/// How long a write or a read waits for etcd's time. Without it our own clock stands for it.
const TIME_MAX: Duration = Duration::from_secs(1);

impl Desk {
    /// Writes a memo.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat the same write, and the answer is the same. At worst a lease is
    /// left that ends when the memo would have.
    pub(super) async fn write_memo(self: &Arc<Self>, name: &Name, write: &MemoWrite) -> Result<MemoWritten> {
        let key = self.keys.memo(name);
        let mut lease = None;
        let answer = self.look_and_write(name, (&key, write), &mut lease).await;
        if let Some(unused) = lease {
            self.revoke_later(unused);
        }
        answer
    }

    /// `lease` is the one that was made for the memo, as long as it is certain that the memo does not have it.
    async fn look_and_write(
        self: &Arc<Self>,
        name: &Name,
        (key, write): (&[u8], &MemoWrite),
        lease: &mut Option<i64>,
    ) -> Result<MemoWritten> {
        for _ in 0..TRIES_MAX {
            let (found, line) = self.memo_and_line(name, key).await.map_err(not_written)?;
            let wall = self.etcd_wall().await;
            let present = found.as_ref().map(record).transpose().map_err(|error| error.about(name))?;
            let queue = line.queue(self.wall());
            if let Some(answer) = answer_without_writing(&queue, present.as_ref(), write, self.wall(), wall) {
                return Ok(answer);
            }
            // A claim that is to join its owner's key has that one's token, and is not told that it holds before it
            // has joined.
            let Some(holding) = line.entries.iter().find(|entry| is_by(entry, write)) else {
                return Ok(MemoWritten::NotHolder);
            };
            if let (None, Some(keep)) = (&lease, write.keep) {
                *lease = Some(self.leases.for_data(&self.road, keep).await.map_err(not_written)?);
            }
            let bound_to = lease.take();
            let change = put(key, encode(write, Some(wall)), bound_to.unwrap_or(0));
            match self.road.txn(&if_as_seen(holding, (key, found.as_ref()), change)).await {
                Ok(done) if done.succeeded => {
                    if let Some(before) = found.filter(|found| found.lease != 0) {
                        // Nothing lives by it any more, and it may have been made for years.
                        self.revoke_later(before.lease);
                    }
                    return Ok(MemoWritten::Done { version: revision(done.header().revision) });
                }
                Ok(_) => *lease = bound_to,
                // It ended before it was used: another one is made.
                Err(Failure::Told(status)) if is_missing_lease(&status) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
        let message = "the claim or its memo changes faster than it can be written";
        Err(not_written(Error::new(ErrorKind::Unavailable, message)))
    }

    /// The memo of a name.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn memo(&self, name: &Name) -> Result<Option<Memo>> {
        let found = self.range(only(&self.keys.memo(name))).await?;
        let Some(found) = found.kvs.first() else { return Ok(None) };
        let memo = record(found).map_err(|error| error.about(name))?;
        Ok(memo.seen(self.etcd_wall().await))
    }

    /// The key of a memo, and the queue of its name, or the front of that.
    async fn memo_and_line(&self, name: &Name, key: &[u8]) -> Result<(Option<KeyValue>, Line)> {
        let under = self.keys.under(name);
        let success = vec![Request::Range(only(key)).into(), Request::Range(head(&under)).into()];
        let found = self.txn(TxnRequest { success, ..TxnRequest::default() }).await?;
        let at = found.header().revision;
        let mut ranges = found.into_ranges();
        let (memo, front) = ranges.next().zip(ranges.next()).ok_or_else(odd)?;
        let line = self.telling(name, Line::of(&under, front.kvs, front.more, at)).await?;
        Ok((memo.kvs.into_iter().next(), line))
    }

    /// etcd's wall clock; our own where it does not tell: nothing is decided by it but how old a memo looks.
    async fn etcd_wall(&self) -> u64 {
        let asked = self.clock.now();
        if let Some(wall) = self.wall_told.at(asked) {
            return wall;
        }
        if let Ok(Ok(wall)) = timeout(TIME_MAX, self.ask_time()).await {
            return wall;
        }
        // Not asked again for a while: each read would wait for it.
        let own = self.clock.wall_micros();
        self.wall_told.tell(asked, own);
        own
    }

    fn revoke_later(self: &Arc<Self>, lease: i64) {
        let desk = self.clone();
        // If this fails, it ends by itself.
        self.runtime.spawn(async move {
            let _ = desk.road.ask(|link| async move { link.revoke(lease).await }).await;
        });
    }
}

/// Makes this change of a memo's key, if that and the claim's key are as they were seen.
fn if_as_seen(holding: &Entry, (key, found): (&[u8], Option<&KeyValue>), change: RequestOp) -> TxnRequest {
    let compare = vec![
        Compare::modified(&holding.key, holding.modified),
        Compare::modified(key, found.map_or(0, |found| found.mod_revision)),
    ];
    TxnRequest { compare, success: vec![change], failure: Vec::new() }
}

/// Of what comes before the transaction that writes: it was not made.
fn not_written(error: Error) -> Error {
    error.with_certainty(Certainty::NotApplied)
}

/// Whether a key is the one that the writer holds by.
fn is_by(entry: &Entry, write: &MemoWrite) -> bool {
    let is_meant = |number: u64| write.number.is_none_or(|meant| meant == number);
    revision(entry.created) == write.token.get()
        && entry.part(write.id).is_some_and(|part| is_meant(entry.number_of(part)))
}

fn record(kv: &KeyValue) -> Result<MemoRecord> {
    // Its lease ends it.
    Ok(decode(&kv.value)?.record(revision(kv.mod_revision), None))
}

#[cfg(test)]
mod tests {
    use super::super::EtcdBackend;
    use super::super::silence::tests::claim;
    use super::*;
    use crate::backend::{Backend as _, Claimed, MemoKind, ReleaseRequest};
    use crate::clock::SystemClock;
    use crate::machine::ClaimRequest;

    /// What is written by what was seen a moment ago.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nothing_is_written_once_the_claim_or_the_memo_is_not_as_it_was_seen() {
        let url = tenure_testkit::servers::shared::etcd().url();
        let store = EtcdBackend::open(&url, Arc::new(SystemClock)).await.unwrap();
        let name = Name::new(format!("memo-seen/{:016x}", rand::random::<u64>())).unwrap();
        let key = store.desk.keys.memo(&name);
        let session = |solo| ClaimRequest { solo, ttl: Duration::from_secs(60), ..claim() };
        let (outer, next) = (session(false), session(true));
        let holds = async |request: &ClaimRequest| match store.claim(&name, request.clone()).await.unwrap().value {
            Claimed::Stands(standing) => standing.state.unwrap().token,
            other => panic!("{other:?}"),
        };
        let token = holds(&outer).await;
        let seen = async || {
            let (found, line) = store.desk.memo_and_line(&name, &key).await.unwrap();
            if_as_seen(&line.entries[0], (&key, found.as_ref()), put(&key, b"late".to_vec(), 0))
        };
        let is_done = async |txn: TxnRequest| store.desk.txn(txn).await.unwrap().succeeded;

        let before = seen().await;
        let bytes = Arc::from(&b"x"[..]);
        let write = MemoWrite {
            id: outer.id,
            owner: outer.owner.clone(),
            number: None,
            token,
            after: 0,
            write: 1,
            kind: MemoKind::User,
            keep: None,
            bytes,
        };
        let written = store.write_memo(&name, write).await.unwrap();
        assert!(matches!(written, MemoWritten::Done { .. }), "{written:?}");
        assert!(!is_done(before).await, "the memo was written meanwhile");

        let before = seen().await;
        let inner = ClaimRequest { owner: outer.owner.clone(), ..session(false) };
        assert_eq!(holds(&inner).await, token, "it re-enters");
        store.release(&name, ReleaseRequest::of(&outer)).await.unwrap();
        assert!(!is_done(before).await, "another claim of the key's owner holds by it");

        let before = seen().await;
        store.release(&name, ReleaseRequest::of(&inner)).await.unwrap();
        holds(&next).await;
        assert!(!is_done(before).await, "another one holds");
        assert!(is_done(seen().await).await, "what is as it was seen is written");
    }
}
