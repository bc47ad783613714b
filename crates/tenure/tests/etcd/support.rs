//! What these tests share.

use std::time::Duration;

use tenure::{Guard, Tenure};

/// Longer than any test waits.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) async fn connect(url: &str) -> Tenure {
    soon("connecting", Tenure::connect(url)).await.unwrap()
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

/// A task that waits for a name.
pub(crate) fn waiting(tenure: &Tenure, name: &str, ttl: Duration) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    let lock = tenure.lock(name).ttl(ttl);
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) async fn until_waiting(tenure: &Tenure, name: &str, count: usize) {
    until("they wait", async || tenure.inspect(name).await.is_ok_and(|view| view.waiters.len() == count)).await;
}

/// What a task that waited was given.
pub(crate) async fn turn(waiting: tokio::task::JoinHandle<tenure::Result<Guard>>) -> Guard {
    soon("the waiter's turn", waiting).await.unwrap().unwrap()
}
