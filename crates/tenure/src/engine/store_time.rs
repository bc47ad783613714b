//! The time, as the store tells it.

use std::time::SystemTime;

use super::client::Tenure;
use crate::error::{Error, ErrorKind, Result, Step};

impl Tenure {
    /// The store's wall clock: one for all hosts, whatever their own clocks show.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] where the store has none ([`Capabilities::time`](crate::backend::Capabilities)); store
    /// errors.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub async fn time(&self) -> Result<SystemTime> {
        if !self.capabilities().time {
            let error = Error::new(ErrorKind::Invalid, "this store does not tell the time");
            return Err(error.at(Step::Inspect).in_store(self.url()));
        }
        self.answer(Step::Inspect, self.core.backend.time()).await
    }
}
