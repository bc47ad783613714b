//! What these tests share: nodes that are looked through for what was left there, clients, and bounded waits.

use std::ops::Deref;
use std::time::{Duration, Instant};

use tenure::{Error, ErrorKind, Guard, Lock, Tenure};
use tenure_testkit::servers::{Fleet, ProxiedFleet, Redis, without_expiry};
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine; a wait that gets here has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// The ttl of most claims here.
pub(crate) const TTL: Duration = Duration::from_secs(2);
/// The ttl of a claim that is renewed here and must not be lost, though the machine be busy for seconds.
pub(crate) const KEPT: Duration = Duration::from_secs(6);
/// A ttl that never runs out by itself here: what is gone was ended.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// On a busy machine a node needs longer than on a good one.
pub(crate) const PATIENT: &str = "node_timeout=250ms";

/// A fleet, on a good network or a bad one.
pub(crate) trait Servers {
    fn fleet(&self) -> &Fleet;
    fn url_with(&self, options: &str) -> String;
}

impl Servers for Fleet {
    fn fleet(&self) -> &Fleet {
        self
    }

    fn url_with(&self, options: &str) -> String {
        Fleet::url_with(self, options)
    }
}

impl Servers for ProxiedFleet {
    fn fleet(&self) -> &Fleet {
        self.fleet()
    }

    fn url_with(&self, options: &str) -> String {
        ProxiedFleet::url_with(self, options)
    }
}

/// The nodes of one test. Declared before its clients, so that it is dropped after them: then nothing of tenure's must
/// be left on any node, once what goes on in the background has ended.
pub(crate) struct Nodes<S: Servers>(pub(crate) S);

impl Nodes<Fleet> {
    pub(crate) fn start() -> Self {
        Self(Fleet::start(5))
    }

    /// Nodes that know all when they come back.
    pub(crate) fn durable() -> Self {
        Self(Fleet::durable(5))
    }
}

impl Nodes<ProxiedFleet> {
    pub(crate) async fn proxied() -> Self {
        Self(Fleet::proxied(5).await)
    }
}

impl<S: Servers> Nodes<S> {
    pub(crate) fn patient_url(&self) -> String {
        self.0.url_with(PATIENT)
    }

    pub(crate) async fn client(&self) -> Tenure {
        connect(&self.patient_url()).await
    }

    /// What every node has of a name: the record of its holder, or nothing.
    pub(crate) fn records(&self, name: &str) -> Vec<String> {
        self.fleet().nodes().iter().map(|node| record(node, name)).collect()
    }

    /// Keys that nodes have and should not: who listens does not count.
    pub(crate) fn keys_left(&self) -> Vec<String> {
        self.fleet().leftovers().into_iter().filter(|left| !left.contains(": channel ")).collect()
    }

    pub(crate) async fn no_keys_left(&self) {
        let mut left = Vec::new();
        let gone = async {
            loop {
                left = self.keys_left();
                if left.is_empty() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let gone = tokio::time::timeout(LIMIT / 2, gone).await;
        assert!(gone.is_ok(), "left behind: {left:#?}");
    }

    /// Returns when a claim of this client reaches all nodes: those that were away take part again.
    pub(crate) async fn all_take_part(&self, client: &Tenure) {
        until("all nodes take part again", async || {
            let Ok(Some(guard)) = client.lock("all").ttl(TTL).try_acquire().await else { return false };
            let mut stored = 0;
            for _ in 0..10 {
                stored = self.records("all").iter().filter(|record| record.starts_with(['-', 'w'])).count();
                if stored == self.fleet().nodes().len() {
                    break;
                }
            }
            guard.release().await.is_ok() && stored == self.fleet().nodes().len()
        })
        .await;
    }

    fn check(&self) {
        let limit = Instant::now() + LIMIT / 2;
        loop {
            let left = self.fleet().leftovers();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < limit, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        for node in self.fleet().nodes() {
            let forever = without_expiry(node);
            assert!(forever.is_empty(), "for ever: {forever:#?}");
        }
    }
}

impl<S: Servers> Deref for Nodes<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Servers> Drop for Nodes<S> {
    fn drop(&mut self) {
        // A test that failed has clients still.
        if !std::thread::panicking() {
            self.check();
        }
    }
}

/// The record of a name's holder on this node.
pub(crate) fn record(node: &Redis, name: &str) -> String {
    node.cli(&["get", &key(name)])
}

pub(crate) fn key(name: &str) -> String {
    format!("tenure:redlock:{{:{name}}}")
}

/// What a node says of itself.
pub(crate) fn own(node: &Redis, field: &str) -> String {
    node.cli(&["hget", "tenure:redlock", field])
}

pub(crate) async fn connect(url: &str) -> Tenure {
    patiently("a connection", Tenure::connect(url)).await.unwrap()
}

/// Awaits what must happen, but not for ever.
pub(crate) async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    patiently(what, async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// The answer of a quorum: when too few nodes have answered in time, all are asked again.
pub(crate) async fn answered<T>(what: &str, ask: impl AsyncFn() -> Result<T, Error>) -> T {
    patiently(what, async {
        loop {
            match ask().await {
                Err(error) if error.kind() == ErrorKind::Quorum => tokio::time::sleep(Duration::from_millis(5)).await,
                answer => return answer.unwrap(),
            }
        }
    })
    .await
}

/// Waits until so many wait for a name.
pub(crate) async fn waiters(client: &Tenure, name: &str, count: usize) {
    let look = async || matches!(client.inspect(name).await, Ok(view) if view.waiters.len() == count);
    until(&format!("{count} wait for {name}"), look).await;
}

/// Waits for a lock, in a task.
pub(crate) fn waits(lock: &Lock) -> JoinHandle<Result<Guard, Error>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await })
}

/// The guard a task waited for.
pub(crate) async fn granted(task: JoinHandle<Result<Guard, Error>>) -> Guard {
    patiently("the grant", task).await.unwrap().unwrap()
}

/// Takes a lock that is free, whatever a node or two are doing just now.
pub(crate) async fn take(lock: &Lock) -> Guard {
    patiently("a free lock", lock.acquire()).await.unwrap()
}
