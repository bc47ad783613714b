//! Redis servers that know nothing of each other, as Redlock wants them.

use std::fs;

use tempfile::TempDir;

use super::builder::Builder;
use super::leftovers::leftovers;
use super::proxied::ProxiedFleet;
use super::redis::Redis;
use super::scratch;

/// Several masters, independent of each other.
pub struct Fleet {
    nodes: Vec<Redis>,
    /// The authorities of all nodes in one file, if they have TLS.
    authorities: Option<TempDir>,
}

/// A fleet to be started; see [`Fleet::builder`].
#[derive(Clone)]
pub struct FleetBuilder {
    nodes: Vec<Builder>,
}

impl Fleet {
    /// Servers that keep nothing on disk: one that is restarted has forgotten all.
    ///
    /// # Panics
    ///
    /// If they do not start.
    #[must_use]
    pub fn start(size: usize) -> Self {
        Self::builder(size).start()
    }

    /// Servers that have written to disk whatever they have said yes to: one that is killed and restarted knows all.
    ///
    /// # Panics
    ///
    /// If they do not start.
    #[must_use]
    pub fn durable(size: usize) -> Self {
        Self::builder(size).each(|node| node.config("appendonly", "yes").config("appendfsync", "always")).start()
    }

    /// A fleet to one's taste; as [`start`](Self::start) has it unless told otherwise.
    #[must_use]
    pub fn builder(size: usize) -> FleetBuilder {
        FleetBuilder { nodes: vec![Redis::builder(); size] }
    }

    /// [`start`](Self::start), each node behind a proxy of its own.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left of it.
    pub async fn proxied(size: usize) -> ProxiedFleet {
        Self::start(size).behind_proxies().await
    }

    /// Puts a proxy in front of each node.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left of it, nor of the fleet.
    pub async fn behind_proxies(self) -> ProxiedFleet {
        ProxiedFleet::to(self).await
    }

    /// All nodes, in the order of the URL.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// `redlock://127.0.0.1:P1,127.0.0.1:P2,...`, with the login and the database of the first node, and `tls` and `ca`
    /// if it has TLS.
    pub fn url(&self) -> String {
        self.url_with("")
    }

    /// [`url`](Self::url) with more options, such as `node_timeout=100ms&layout=plain`.
    pub fn url_with(&self, options: &str) -> String {
        self.url_of(self.nodes.iter().map(Redis::address), options)
    }

    /// What [`leftovers`] finds in each node, with the address of the node.
    ///
    /// # Panics
    ///
    /// If a node does not answer.
    pub fn leftovers(&self) -> Vec<String> {
        let at = |node: &Redis| {
            let address = node.address();
            leftovers(node).into_iter().map(move |left| format!("{address}: {left}"))
        };
        self.nodes.iter().flat_map(at).collect()
    }

    /// A URL of the same fleet by other addresses.
    pub(super) fn url_of(&self, addresses: impl Iterator<Item = String>, options: &str) -> String {
        let first = &self.nodes[0];
        // What stands around the address in its own URL: scheme and login, database and options.
        let (before, after) = first.url().split_once(&first.address()).expect("a URL with the address");
        let login = before.split_once("://").map_or("", |(_, login)| login);
        let database = after.split_once('?').map_or(after, |(database, _)| database);
        let ca = self.authorities.as_ref().map(|folder| folder.path().join("authorities.crt"));
        let tls = ca.map(|file| format!("tls=true&ca={}", file.display()));
        let options: Vec<&str> = tls.as_deref().into_iter().chain([options]).filter(|all| !all.is_empty()).collect();
        let mark = if options.is_empty() { "" } else { "?" };
        let addresses = addresses.collect::<Vec<_>>().join(",");
        format!("redlock://{login}{addresses}{database}{mark}{}", options.join("&"))
    }
}

impl FleetBuilder {
    /// Changes how every node is to be.
    #[must_use]
    pub fn each(self, change: impl FnMut(Builder) -> Builder) -> Self {
        Self { nodes: self.nodes.into_iter().map(change).collect() }
    }

    /// Changes how one node is to be; the first is 0.
    ///
    /// # Panics
    ///
    /// If there is no such node.
    #[must_use]
    pub fn node(mut self, index: usize, change: impl FnOnce(Builder) -> Builder) -> Self {
        let node = self.nodes.get_mut(index).unwrap_or_else(|| panic!("no node {index}"));
        *node = change(node.clone());
        self
    }

    /// Starts all nodes, and returns when they answer.
    ///
    /// # Panics
    ///
    /// If they do not start, or there is none.
    #[must_use]
    pub fn start(self) -> Fleet {
        assert!(!self.nodes.is_empty(), "a fleet of no nodes");
        let nodes: Vec<Redis> = self.nodes.into_iter().map(Builder::start).collect();
        let authorities = nodes[0].url().starts_with("rediss:").then(|| together(&nodes));
        Fleet { nodes, authorities }
    }
}

/// Every node has an authority of its own, and a URL has room for one file.
fn together(nodes: &[Redis]) -> TempDir {
    let read = |node: &Redis| fs::read_to_string(node.ca_path()).expect("an authority");
    let folder = scratch::directory();
    let authorities: String = nodes.iter().map(read).collect();
    fs::write(folder.path().join("authorities.crt"), authorities).expect("the authorities");
    folder
}
