//! Who leads, as it changes.

use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;

use super::Election;
use super::card::Leader;
use crate::clock::Moment;
use crate::error::Result;
use crate::token::Token;
use crate::watch::{INTERVAL_DEFAULT, INTERVAL_MIN};

/// Leaders, one after another, each with a higher term than the one before. Made by [`Election::observe`].
///
/// It looks again and again, and reaches the latest leader; one that came and went between two looks may be missing.
/// That nobody leads is not told: an order with an old term is refused by whoever checks the term, and by nobody else.
#[derive(Debug)]
pub struct Leaders {
    election: Election,
    interval: Duration,
    last: Option<Token>,
    /// When to look again.
    due: Moment,
}

impl Leaders {
    pub(super) fn new(election: Election) -> Self {
        Self { election, interval: INTERVAL_DEFAULT, last: None, due: Moment(0) }
    }

    /// Looks this often, but not more often than [`INTERVAL_MIN`]: every half a second by default.
    #[must_use]
    pub fn every(mut self, interval: Duration) -> Self {
        self.interval = interval.max(INTERVAL_MIN);
        self
    }

    /// The next leader; at first the present one.
    ///
    /// # Errors
    ///
    /// As [`Election::leader`]. The next call looks again, after the interval.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a leader that was not returned is returned by the next call.
    pub async fn next(&mut self) -> Result<Leader> {
        loop {
            self.election.tenure.pause_until(self.due).await;
            let looked = self.election.leader().await;
            // Only now: a look that was cut short is made anew at once.
            self.due = self.election.tenure.clock().now() + self.interval;
            if let Some(leader) = looked?.filter(|leader| self.last < Some(leader.term)) {
                self.last = Some(leader.term);
                return Ok(leader);
            }
        }
    }

    /// The same as a stream, which never ends.
    pub fn into_stream(self) -> impl Stream<Item = Result<Leader>> + Send {
        unfold(self, async |mut leaders| {
            let next = leaders.next().await;
            Some((next, leaders))
        })
    }
}
