//! A fleet whose every node has a bad network of its own.

use super::fleet::Fleet;
use super::proxy::Proxy;
use super::redis::Redis;

/// A [`Fleet`] with a [`Proxy`] in front of each node; see [`Fleet::proxied`].
pub struct ProxiedFleet {
    proxies: Vec<Proxy>,
    fleet: Fleet,
}

impl ProxiedFleet {
    pub(super) async fn to(fleet: Fleet) -> Self {
        let mut proxies = Vec::new();
        for node in fleet.nodes() {
            proxies.push(Proxy::to(node.address()).await);
        }
        Self { proxies, fleet }
    }

    /// The fleet itself, on a good network.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// All nodes, in the order of the URL.
    pub fn nodes(&self) -> &[Redis] {
        self.fleet.nodes()
    }

    /// The proxies of the nodes, in the same order.
    pub fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }

    /// [`Fleet::url`], through the proxies.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// [`Fleet::url_with`], through the proxies.
    pub fn url_with(&self, options: &str) -> String {
        self.fleet.url_of(self.proxies.iter().map(Proxy::address), options)
    }

    /// [`Proxy::heal`] for each.
    ///
    /// # Cancel safety
    ///
    /// Some may be healed, and others not.
    pub async fn heal(&self) {
        for proxy in &self.proxies {
            proxy.heal().await;
        }
    }
}
