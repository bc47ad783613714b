//! rslock, as its README has it: one `LockManager`, `acquire` and an awaited `release`.

use std::time::Duration;

use ::rslock::{LockGuard, LockManager};
use tenure_load::order::{Listing, Target};
use tenure_load::{BoxError, Locker};

pub(crate) const PEER: &str = "rslock";

pub(crate) fn listing(store: &str) -> Listing {
    let settings = "tokio with one thread; the defaults (pauses of 0 to 200 ms at random; acquire goes on for ever)";
    crate::listing(PEER, store, "0.10.0", settings, false)
}

#[derive(Clone)]
pub(crate) struct Rslock {
    manager: LockManager,
    ttl: Duration,
}

impl Rslock {
    pub(crate) async fn connect(target: &Target) -> Result<Self, BoxError> {
        let manager = LockManager::new(target.urls.iter().map(String::as_str).collect());
        let this = Self { manager, ttl: Duration::from_millis(target.ttl_ms) };
        // It connects to the servers with its first lock: one of its own, so that `take` is connected when it asks.
        let own = this.acquire(&format!("connect-{}", std::process::id())).await?;
        this.release(own).await?;
        Ok(this)
    }
}

impl Locker for Rslock {
    type Held = LockGuard;

    async fn acquire(&self, name: &str) -> Result<LockGuard, BoxError> {
        Ok(self.manager.acquire(name.as_bytes(), self.ttl).await?)
    }

    async fn release(&self, held: LockGuard) -> Result<(), BoxError> {
        held.release().await;
        Ok(())
    }

    fn is_held(&self, _held: &LockGuard) -> bool {
        true
    }
}
