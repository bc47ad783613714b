//! The servers' wall clock: a znode tells when it was last written, by the leader's clock.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::desk::Desk;
use super::error::of_request;
use super::session::{Answered, Session};
use crate::error::Result;

/// The leader's wall clock.
///
/// # Cancel safety
///
/// Cancel safe: at worst a session lives longer.
pub(super) async fn time(desk: Arc<Desk>) -> Result<SystemTime> {
    let session = desk.usual().await?;
    let wall = desk.ask_time(&session).await.map_err(of_request)?;
    Ok(UNIX_EPOCH + Duration::from_micros(wall))
}

impl Desk {
    /// The same in microseconds, by a write.
    async fn ask_time(&self, session: &Session) -> Answered<u64> {
        let asked = self.clock.now();
        let wall = u64::try_from(session.written_at().await?).unwrap_or(0).saturating_mul(1000);
        self.wall_told.tell(asked, wall);
        Ok(wall)
    }

    /// The leader's wall clock, as it was told a short while ago or is asked for now: not each look at a memo is to
    /// be a write.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst a session lives longer.
    pub(super) async fn store_wall(&self, session: &Session) -> Answered<u64> {
        match self.wall_told.at(self.clock.now()) {
            Some(wall) => Ok(wall),
            None => self.ask_time(session).await,
        }
    }
}
