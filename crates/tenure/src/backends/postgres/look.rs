//! Connections that nobody's lease depends on: to look at names with, and to write memos.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::Row;

use super::desk::Desk;
use super::error::unavailable;
use super::link::{Link, Param};
use crate::error::{Certainty, Error, ErrorKind, Result};

/// A connection to look at names or write memos with; given back when dropped.
pub(super) struct Look {
    desk: Arc<Desk>,
    link: Option<Link>,
    _permit: OwnedSemaphorePermit,
}

impl Look {
    /// Runs one statement by itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let link = self.take().await?;
        let rows = link.query(sql, params).await;
        self.put_back(link);
        rows
    }

    /// The connection. Not put back if its user is dropped on the way: the answer would be the next one's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a connection that is not finished is closed.
    pub(super) async fn take(&mut self) -> Result<Link> {
        match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => Ok(link),
            None => self.desk.open_link().await,
        }
    }

    pub(super) fn put_back(&mut self, link: Link) {
        self.link = Some(link);
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        self.desk.give_back(self.link.take());
    }
}

impl Desk {
    /// Refuses what stands between if it shares connections statement by statement: it would do until somebody has to
    /// wait.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the connection is closed.
    pub(super) async fn must_allow_transactions(&self) -> Result<()> {
        let link = self.open_link().await?;
        match link.execute("BEGIN").await {
            Err(error) if error.to_string().contains("statement pooling") => Err(Error::new(
                ErrorKind::Store,
                "a pooler of statements stands before PostgreSQL, and tenure needs transactions: set pool_mode = transaction, or session",
            )
            .with_certainty(Certainty::NotApplied)
            .because(error.to_string())),
            // Whatever else it is, whoever locks will meet it.
            _ => {
                drop(link.execute("ROLLBACK").await);
                Ok(())
            }
        }
    }

    /// A connection to look with, once others have looked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only waits.
    pub(super) async fn look(self: &Arc<Self>) -> Result<Look> {
        self.one_of(&self.looks).await
    }

    /// A connection, once there are fewer than allowed of its kind.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only waits.
    pub(super) async fn one_of(self: &Arc<Self>, kind: &Arc<Semaphore>) -> Result<Look> {
        let permit = kind.clone().acquire_owned().await;
        let permit = permit.map_err(|_| unavailable("the client of PostgreSQL was closed"))?;
        let link = self.state().idle.pop();
        Ok(Look { desk: self.clone(), link, _permit: permit })
    }
}
