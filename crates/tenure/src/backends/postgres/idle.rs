//! Connections without work.

use std::time::Duration;

use super::link::Link;

/// The one that was used last is used next, so those that were not needed for a while lie below.
#[derive(Default)]
pub(super) struct Idle {
    links: Vec<Link>,
    /// So many of the first were not needed since they were last looked through.
    unneeded: usize,
}

impl Idle {
    pub(super) fn push(&mut self, link: Link) {
        if !link.is_closed() {
            self.links.push(link);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Link> {
        let link = self.links.pop();
        self.unneeded = self.unneeded.min(self.links.len());
        link.filter(|link| !link.is_closed())
    }

    /// Closes those on which nothing was heard for so long.
    pub(super) fn close_silent(&mut self, time: Duration) {
        self.links.retain(|link| link.was_heard_within(time));
        self.unneeded = 0;
    }

    /// Closes those that were not needed since this was called before.
    pub(super) fn close_unneeded(&mut self) {
        self.links.drain(..self.unneeded.min(self.links.len()));
        self.unneeded = self.links.len();
    }
}
