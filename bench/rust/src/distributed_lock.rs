//! distributed-lock-redis, as its README has it: one provider, a lock for each name, `acquire` and an awaited
//! `release`.

use std::sync::Arc;
use std::time::Duration;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock as _, LockHandle as _, LockProvider as _};
use distributed_lock_redis::{RedisLockHandle, RedisLockProvider};
use tenure_load::order::{Listing, Target};
use tenure_load::{BoxError, Locker};

/// Its documentation names no pause; this is the default of redis-py.
const AGAIN: Duration = Duration::from_millis(100);

pub(crate) fn listing(store: &str) -> Listing {
    let settings = "tokio with one thread; expiry as asked, extended every third of it, validity of nine tenths (the defaults' proportions); \
        its acquire answers at once that the lock is held, whatever its timeout: it is called again 100 ms later";
    // Over several servers the task that extends panics at its first extension (JoinHandle polled after completion).
    crate::listing("distributed-lock", store, "0.2.0", settings, store == "redis")
}

#[derive(Clone)]
pub(crate) struct DistributedLock {
    provider: Arc<RedisLockProvider>,
}

impl DistributedLock {
    pub(crate) async fn connect(target: &Target) -> Result<Self, BoxError> {
        let ttl = Duration::from_millis(target.ttl_ms);
        let provider = RedisLockProvider::builder()
            .urls(&target.urls)
            .expiry(ttl)
            .extension_cadence(ttl / 3)
            .min_validity(ttl * 9 / 10)
            .build()
            .await?;
        Ok(Self { provider: Arc::new(provider) })
    }
}

impl Locker for DistributedLock {
    type Held = RedisLockHandle;

    async fn acquire(&self, name: &str) -> Result<RedisLockHandle, BoxError> {
        let lock = self.provider.create_lock(name);
        loop {
            match lock.acquire(None).await {
                Err(LockError::Timeout(_)) => tokio::time::sleep(AGAIN).await,
                outcome => return Ok(outcome?),
            }
        }
    }

    async fn release(&self, held: RedisLockHandle) -> Result<(), BoxError> {
        Ok(held.release().await?)
    }

    fn is_held(&self, held: &RedisLockHandle) -> bool {
        // Without a sender, nobody extends it any more.
        held.lost_token().has_changed().is_ok() && !*held.lost_token().borrow()
    }
}
