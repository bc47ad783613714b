//! What people see of their locks: metrics, spans and the flight recorder. The engine tells what happens; nothing
//! here decides anything.

mod groups;
mod metrics;
mod recent;
mod served;
mod span;
mod story;
mod tally;

pub(crate) use groups::Groups;
#[cfg(any(feature = "fence-postgres", feature = "fence-redis", feature = "fence-sqlite"))]
pub(crate) use metrics::fence_refused_at;
pub(crate) use metrics::{HandOver, Metrics, Operation, Renewal, Trip, fence_refused};
pub use recent::{Ended, Recent};
pub use served::{Asked, Asking, Sent, Served};
pub(crate) use span::Spans;
pub(crate) use story::{Story, Wish};

use std::sync::Arc;

use recent::Ring;
use tokio::sync::Notify;

use crate::clock::Moment;

/// The scheme of a store's URL: the label `store`.
pub(crate) fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

/// What one client tells.
pub(crate) struct Observer {
    pub(crate) metrics: Metrics,
    ring: Ring,
}

impl Observer {
    /// `store` is the scheme of its URL, `prefix` what all its names begin with.
    /// `bell` is rung when there is something to tell: see [`Metrics::tell`].
    pub(crate) fn new(store: &str, groups: Groups, prefix: &str, bell: Arc<Notify>) -> Self {
        Self { metrics: Metrics::new(store, groups, prefix, bell), ring: Ring::default() }
    }

    /// The claims that ended last, the latest first.
    pub(crate) fn recent(&self, now: Moment) -> Vec<Recent> {
        self.ring.recent(now)
    }
}
