//! Sessions that wait for each other.

use std::time::Duration;

use tenure::{Error, Guard, Session, Tenure};
use tokio::task::JoinHandle;

type Waiting = JoinHandle<Result<Guard, Error>>;

/// Owners in a ring: each holds a name of its own, and waits for the next one's.
pub(crate) struct Ring {
    pub(crate) names: Vec<String>,
    /// What each holds.
    pub(crate) held: Vec<Option<Guard>>,
    /// What each waits for. The last one came last.
    pub(crate) waiting: Vec<Waiting>,
}

/// Waits for a condition of the store, for a minute of real time at most.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..6_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never happened: {what}");
}

/// A task waits for a name by a session.
pub(crate) fn wait_for(session: &Session, name: &str) -> Waiting {
    let lock = session.lock(name);
    tokio::spawn(async move { lock.acquire().await })
}

impl Ring {
    /// One session of each client.
    pub(crate) async fn of(clients: &[Tenure], group: &str) -> Self {
        let sessions: Vec<Session> = clients.iter().map(Tenure::session).collect();
        Self::among(clients, sessions, group).await
    }

    /// These sessions, each of its client.
    pub(crate) async fn among(clients: &[Tenure], sessions: Vec<Session>, group: &str) -> Self {
        let names: Vec<String> = (0..sessions.len()).map(|number| format!("{group}/{number}")).collect();
        let mut held = Vec::new();
        for (session, name) in sessions.iter().zip(&names) {
            held.push(Some(session.lock(name).acquire().await.unwrap()));
        }
        let mut waiting = Vec::new();
        for (place, session) in sessions.iter().enumerate() {
            let name = &names[(place + 1) % names.len()];
            waiting.push(wait_for(session, name));
            eventually("it waits", async || !clients[0].inspect(name).await.unwrap().waiters.is_empty()).await;
        }
        Self { names, held, waiting }
    }
}

/// The deadlocks among names of this group: others use the store, too.
pub(crate) async fn deadlocks(tenure: &Tenure, group: &str) -> Vec<tenure::Deadlock> {
    let mut found = tenure.deadlocks().await.unwrap();
    found.retain(|deadlock| deadlock.waits.iter().any(|wait| wait.name.as_str().starts_with(group)));
    found
}
