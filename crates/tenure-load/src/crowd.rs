//! Tasks that work at the same time.

use tokio::task::JoinSet;

use crate::locker::BoxError;

/// Tasks that work at the same time. Dropped, they are ended soon; [`Crowd::end`] waits for it.
#[derive(Debug)]
pub struct Crowd(JoinSet<Result<(), BoxError>>);

impl Crowd {
    pub(crate) fn of<F>(tasks: impl IntoIterator<Item = F>) -> Self
    where
        F: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        Self(tasks.into_iter().collect())
    }

    /// Waits for `over`, or for the first task that fails.
    pub(crate) async fn until<O>(&mut self, over: impl Future<Output = O>) -> Result<O, BoxError> {
        let mut over = std::pin::pin!(over);
        loop {
            tokio::select! {
                biased;
                over = &mut over => return Ok(over),
                Some(ended) = self.0.join_next() => ended??,
            }
        }
    }

    /// Waits until all have ended, or one has failed.
    pub(crate) async fn finish(&mut self) -> Result<(), BoxError> {
        while let Some(ended) = self.0.join_next().await {
            ended??;
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
