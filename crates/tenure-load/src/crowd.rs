//! Tasks that work at the same time.

use tokio::task::JoinSet;

use crate::locker::BoxError;

/// Tasks that work at the same time. Dropped, they are ended soon; [`Crowd::end`] waits for it.
#[derive(Debug)]
pub struct Crowd<T = ()>(JoinSet<Result<T, BoxError>>);

impl<T: Send + 'static> Crowd<T> {
    pub(crate) fn of<F>(tasks: impl IntoIterator<Item = F>) -> Self
    where
        F: Future<Output = Result<T, BoxError>> + Send + 'static,
    {
        Self(tasks.into_iter().collect())
    }

    /// Waits for `over`, or for the first task that fails. What tasks that ended meanwhile returned goes to `done`.
    pub(crate) async fn until<O>(&mut self, done: &mut Vec<T>, over: impl Future<Output = O>) -> Result<O, BoxError> {
        let mut over = std::pin::pin!(over);
        loop {
            tokio::select! {
                biased;
                over = &mut over => return Ok(over),
                Some(ended) = self.0.join_next() => done.push(ended??),
            }
        }
    }

    /// Waits until all have ended, or one has failed.
    pub(crate) async fn finish(&mut self, done: &mut Vec<T>) -> Result<(), BoxError> {
        while let Some(ended) = self.0.join_next().await {
            done.push(ended??);
        }
        Ok(())
    }

    /// Drops every task where it waits, and returns once they are gone with all they held.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves tasks that end soon.
    pub async fn end(mut self) {
        self.0.shutdown().await;
    }
}
