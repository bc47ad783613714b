//! What people see of their locks: metrics, spans and the flight recorder. The engine tells what happens; nothing
//! here decides anything.

mod groups;
mod metrics;
mod recent;
mod span;
mod story;

pub(crate) use groups::Groups;
pub(crate) use metrics::{HandOver, Metrics, Operation, Renewal, fence_refused};
pub use recent::{Ended, Recent};
pub(crate) use span::Spans;
pub(crate) use story::{Story, Wish};

use recent::Ring;

use crate::clock::Moment;

/// What one client tells.
pub(crate) struct Observer {
    pub(crate) metrics: Metrics,
    ring: Ring,
}

impl Observer {
    /// `store` is the scheme of its URL, `prefix` what all its names begin with.
    pub(crate) fn new(store: &str, groups: Groups, prefix: &str) -> Self {
        Self { metrics: Metrics::new(store, groups, prefix), ring: Ring::default() }
    }

    /// The claims that ended last, the latest first.
    pub(crate) fn recent(&self, now: Moment) -> Vec<Recent> {
        self.ring.recent(now)
    }
}
