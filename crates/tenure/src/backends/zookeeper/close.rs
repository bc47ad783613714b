//! Closing sessions at the servers, so that nothing is left of a client that has ended.
//!
//! The client library decides when a session is made whether it is closed once nobody uses it any more. Ours are not,
//! for claims may be meant to outlive their process. So a session that has none is taken over by a connection that
//! closes it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use zookeeper_client::Connector;

use super::desk::Desk;
use super::session::Session;
use crate::clock::Moment;

/// How long closing may take. What is not closed by then ends with its timeout.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// How many sessions are to be closed and are not yet.
pub(super) type Closings = Arc<watch::Sender<usize>>;

/// A session that is to be closed, as long as it is not.
#[derive(Debug)]
pub(super) struct Closing(Closings);

impl Closing {
    pub(super) fn new(closings: &Closings) -> Self {
        closings.send_modify(|count| *count += 1);
        Self(closings.clone())
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Closes the session that this connects to.
///
/// # Cancel safety
///
/// Cancelling leaves the outcome unknown: the session ends with its timeout.
pub(super) async fn close(connector: Connector, servers: String, closing: Closing) {
    let closed = async {
        // One that has expired is not to be had, and need not be closed.
        let client = connector.connect(&servers).await?;
        let mut states = client.state_watcher();
        drop(client);
        while !states.changed().await.is_terminated() {}
        Ok::<_, zookeeper_client::Error>(())
    };
    match timeout(CLOSE_MAX, closed).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a ZooKeeper session was not closed"),
        Err(_) => tracing::debug!("closing a ZooKeeper session takes too long"),
    }
    drop(closing);
}

impl Desk {
    /// Closes all sessions that nothing lives by, and waits until they are.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: they are closed in the background.
    pub(super) async fn close(&self) {
        self.let_go_unused();
        let mut closings = self.closings.subscribe();
        let _ = timeout(CLOSE_MAX, closings.wait_for(|count| *count == 0)).await;
    }

    /// Lets go of all sessions that nothing lives by.
    fn let_go_unused(&self) {
        let now = self.clock.now();
        let unused = |session: &Session| self.table.count(session.id) == 0 && !self.has_notes(session.id, now);
        for session in self.take_sessions(unused) {
            self.table.let_go(&session, None, &self.closings);
        }
    }

    /// Whether a session has notes of broken claims that are not to go yet.
    fn has_notes(&self, session: i64, now: Moment) -> bool {
        let notes = self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        notes.iter().any(|(_, writer, until)| writer.id == session && *until > now)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.let_go_unused();
    }
}
