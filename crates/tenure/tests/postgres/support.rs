//! What the tests share: bounded waits, and clients that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::backend::ClaimRequest;
use tenure::{ClaimId, Guard, Name, Tenure};
use tenure_testkit::plain_request;
use tenure_testkit::servers::Postgres;

pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) async fn connect(url: impl AsRef<str>) -> Tenure {
    Tenure::connect(url).await.unwrap()
}

/// Waits for what a server or another task does, for at most a minute.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) fn waiting(tenure: &Tenure, name: &str) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    let lock = tenure.lock(name).ttl(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) async fn until_waiting(tenure: &Tenure, name: &str, count: usize) {
    until("they wait", async || tenure.inspect(name).await.is_ok_and(|view| view.waiters.len() == count)).await;
}

pub(crate) fn rows(server: &Postgres) -> usize {
    server.psql("SELECT count(*) FROM tenure.names").parse().unwrap()
}

/// How many clients listen.
pub(crate) fn ears(server: &Postgres) -> usize {
    server.psql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted").parse().unwrap()
}

/// What a look at the store finds.
pub(crate) async fn findings(tenure: &Tenure) -> Vec<String> {
    tenure.doctor().await.unwrap().findings.into_iter().map(|finding| finding.what).collect()
}

/// Tasks of these clients that want the same names in other orders, and never hold one together.
pub(crate) async fn contend(clients: &[Tenure], turns: usize) {
    const NAMES: usize = 6;
    let inside: Arc<[AtomicU32; NAMES]> = Arc::default();
    let mut tasks = Vec::new();
    for (client, tenure) in clients.iter().enumerate() {
        for task in 0..6 {
            let (tenure, inside) = (tenure.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                for turn in 0..turns {
                    let which = (client * 5 + task * 7 + turn * 11) % NAMES;
                    let lock = tenure.lock(format!("n{which}")).ttl(LONG).strict_fifo();
                    let held = soon("a turn", lock.acquire()).await.unwrap();
                    assert_eq!(inside[which].fetch_add(1, Ordering::AcqRel), 0, "two at once");
                    tokio::task::yield_now().await;
                    assert_eq!(inside[which].fetch_sub(1, Ordering::AcqRel), 1);
                    soon("a release", held.release()).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// A name.
pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A claim that waits.
pub(crate) fn request(id: u64) -> ClaimRequest {
    ClaimRequest { id: ClaimId(id + 1), ttl: LONG, ..plain_request() }
}
