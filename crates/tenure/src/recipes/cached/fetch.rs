//! How the one caller that asks the store gets a value: found there, or computed under the lock.

use std::sync::Arc;
use std::time::Duration;

use tracing::warn;

use super::error::CachedError;
use super::value::{Value, Wanted};
use crate::engine::{Guard, Tenure};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::memo::{MEMO_BYTES_MAX, MemoKind};
use crate::name::Name;

/// The largest value that is shared over etcd, which keeps all revisions of a key until they are compacted.
const ETCD_BYTES_MAX: usize = 4 * 1024;
/// A value that is to be kept for longer is kept for ever in the store: no store counts so far.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How a value was come by.
pub(super) struct Fetched<E> {
    pub(super) outcome: Result<Value, CachedError<E>>,
    /// What is still held of the name, to be given back once the value is told.
    pub(super) held: Option<Guard>,
}

/// What a look, and a claim if need be, come to.
enum Claimed {
    /// A value, and what is held of the name by now.
    Found(Value, Option<Guard>),
    /// There is none, and nobody else computes it.
    Ours(Guard),
}

/// The largest value that is shared over this store.
fn bytes_max(store: &str) -> usize {
    if store == "etcd" { ETCD_BYTES_MAX } else { MEMO_BYTES_MAX }
}

impl Tenure {
    /// Gets a value from the store, or computes it.
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops the computation where it stands. Claims are ended in the background, or by their ttl.
    pub(super) async fn fetch<W, V, E>(
        &self,
        (short, name): (&str, &Name),
        wanted: &Wanted,
        compute: impl FnOnce() -> W,
    ) -> Fetched<E>
    where
        W: Future<Output = Result<V, E>>,
        V: Into<Vec<u8>>,
    {
        let guard = match self.look_or_claim(short, name, wanted).await {
            Ok(Claimed::Ours(guard)) => guard,
            Ok(Claimed::Found(value, held)) => return Fetched { outcome: Ok(value), held },
            Err(error) => return Fetched { outcome: Err(error.into()), held: None },
        };
        let bytes: Vec<u8> = match compute().await {
            Ok(bytes) => bytes.into(),
            Err(error) => return Fetched { outcome: Err(CachedError::Compute(Arc::new(error))), held: Some(guard) },
        };
        // Before it is written: it is not to look younger here than in the store.
        let at = self.clock().now();
        let bytes_max = bytes_max(self.guarantees().store);
        if bytes.len() > bytes_max {
            warn!(%name, bytes = bytes.len(), bytes_max, "the value is too large for the store");
        } else {
            let keep = Some(wanted.keep).filter(|keep| *keep <= KEEP_MAX);
            // The value is good whatever becomes of it in the store. If the lease was lost meanwhile the store refuses
            // it, and whoever holds the name by now computes another.
            if let Err(error) = guard.write_memo_as(MemoKind::Cached, &bytes, keep).await {
                warn!(%error, "the value is not in the store: other clients compute it");
            }
        }
        Fetched { outcome: Ok(Value { bytes: bytes.into(), age: Duration::ZERO, at }), held: Some(guard) }
    }

    /// Refuses stores over which values cannot go from client to client. Without a queue a reader could not append its
    /// claim before it leaves.
    pub(super) fn check_store_shares(&self, name: &Name) -> Result<()> {
        let store = self.capabilities();
        if store.memos && store.tokens && store.shared && store.queue {
            return Ok(());
        }
        let problem = "this store keeps no memos, so every client would compute: use another store for cached values";
        Err(Error::new(ErrorKind::Invalid, problem).at(Step::Memo).about(name).in_store(self.url()))
    }

    /// Looks for a value. If there is none, takes the name if it is free. Otherwise somebody computes: waits for that
    /// as a reader, since all readers go on at once. A reader that finds no value appends its claim to compute before
    /// it gives its place up: the other way round, readers that come and go could keep everybody from computing for
    /// ever.
    ///
    /// # Cancel safety
    ///
    /// Cancelling loses the place in the queue. Claims are ended in the background, or by their ttl.
    async fn look_or_claim(&self, short: &str, name: &Name, wanted: &Wanted) -> Result<Claimed> {
        if let Some(value) = self.look(short, name, wanted).await? {
            return Ok(Claimed::Found(value, None));
        }
        // Each has a claim of its own, whoever else of this client locks the name.
        let exclusive = self.lock(short).strict_fifo();
        let guard = match exclusive.try_acquire().await? {
            Some(guard) => guard,
            None => {
                let reads = self.rwlock(short).read().acquire().await?;
                if let Some(value) = self.look(short, name, wanted).await? {
                    return Ok(Claimed::Found(value, Some(reads)));
                }
                exclusive.acquire_after(reads).await?
            }
        };
        // Somebody may have computed it since the last look.
        Ok(match self.look(short, name, wanted).await? {
            Some(value) => Claimed::Found(value, Some(guard)),
            None => Claimed::Ours(guard),
        })
    }

    /// The value in the store, if the caller takes it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    async fn look(&self, short: &str, name: &Name, wanted: &Wanted) -> Result<Option<Value>> {
        let at = self.clock().now();
        let Some(memo) = self.memo(short).await? else { return Ok(None) };
        if memo.kind != MemoKind::Cached {
            let message = format!("a memo of the kind {} is kept with this name: use another name", memo.kind);
            return Err(Error::new(ErrorKind::Conflict, message).at(Step::Memo).about(name).in_store(self.url()));
        }
        let value = Value { bytes: memo.bytes, age: memo.age, at };
        Ok(Some(value).filter(|value| wanted.takes(value, self.clock().now())))
    }
}
