//! tenure as what is measured.

use std::time::Duration;

use tenure::{Guard, Tenure};

use crate::locker::{BoxError, Locker};
use crate::order::Target;

/// A client of tenure.
#[derive(Clone, Debug)]
pub struct TenureLocker {
    tenure: Tenure,
    ttl: Duration,
}

impl TenureLocker {
    /// Locks of this client, with this ttl.
    pub fn new(tenure: Tenure, ttl: Duration) -> Self {
        Self { tenure, ttl }
    }

    /// Connects to the store of an order: `redlock` with all of its URLs, any other store with the one it has.
    ///
    /// # Errors
    ///
    /// tenure's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is held yet.
    pub async fn connect(target: &Target) -> Result<Self, BoxError> {
        let url = match (target.store.as_str(), target.urls.as_slice()) {
            ("redlock", urls) => {
                let hosts: Vec<&str> = urls.iter().map(|url| url.trim_start_matches("redis://")).collect();
                format!("redlock://{}", hosts.join(","))
            }
            (_, [url]) => url.clone(),
            (store, urls) => return Err(format!("{store} has one URL, not {}", urls.len()).into()),
        };
        Ok(Self::new(Tenure::connect(url).await?, Duration::from_millis(target.ttl_ms)))
    }

    /// The client.
    pub fn tenure(&self) -> &Tenure {
        &self.tenure
    }
}

impl Locker for TenureLocker {
    type Held = Guard;

    async fn acquire(&self, name: &str) -> Result<Guard, BoxError> {
        Ok(self.tenure.lock(name).ttl(self.ttl).acquire().await?)
    }

    async fn release(&self, held: Guard) -> Result<(), BoxError> {
        Ok(held.release().await?)
    }

    fn is_held(&self, held: &Guard) -> bool {
        held.is_held()
    }
}
