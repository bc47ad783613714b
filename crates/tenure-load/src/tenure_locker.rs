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
            ("redlock", urls) => fleet_url(urls)?,
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

/// One URL for all servers of a fleet.
fn fleet_url(urls: &[String]) -> Result<String, BoxError> {
    for (each, all) in [("redis://", "redlock://"), ("rediss://", "redlocks://")] {
        if let Some(hosts) = urls.iter().map(|url| url.strip_prefix(each)).collect::<Option<Vec<_>>>() {
            return Ok(format!("{all}{}", hosts.join(",")));
        }
    }
    Err("the servers of a fleet have URLs of one kind, redis:// or rediss://".into())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_has_one_url_with_tls_if_its_servers_have_it() {
        let url = |urls: &[&str]| fleet_url(&urls.iter().map(|url| (*url).to_owned()).collect::<Vec<_>>());
        assert_eq!(url(&["redis://a:1", "redis://b:2"]).unwrap(), "redlock://a:1,b:2");
        assert_eq!(url(&["rediss://a:1", "rediss://b:2"]).unwrap(), "redlocks://a:1,b:2");
        assert!(url(&["rediss://a:1", "redis://b:2"]).is_err());
    }
}
