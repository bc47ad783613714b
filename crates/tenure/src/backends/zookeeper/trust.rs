//! Whether a session still has the timeout that it was given.
//!
//! It is agreed on with each connection anew, by the limits of the server that it is made to, and the client library does not
//! tell with which outcome. So what is answered over a new connection counts only once the servers were asked for their limits
//! since.

use futures_util::FutureExt as _;
use zookeeper_client::{SessionState, StateWatcher};

/// The connections of a session, and up to which of them its timeout is known.
#[derive(Debug)]
pub(super) struct Trust {
    states: StateWatcher,
    connections: Count,
}

impl Trust {
    /// Of a session that has just been made: its timeout is known.
    pub(super) fn new(mut states: StateWatcher) -> Self {
        states.state();
        Self { states, connections: Count::default() }
    }

    /// The latest connection, if its timeout is not known. What is answered over a connection is answered after this has
    /// seen it.
    pub(super) fn doubt(&mut self) -> Option<u64> {
        while let Some(state) = self.states.changed().now_or_never() {
            if state == SessionState::SyncConnected {
                self.connections.made += 1;
            }
        }
        self.connections.doubt()
    }

    /// As if it had connected anew.
    #[cfg(test)]
    pub(super) fn reconnect(&mut self) {
        self.connections.made += 1;
    }

    /// The timeout is known to be the same up to this connection.
    pub(super) fn settle(&mut self, connection: u64) {
        self.connections.settle(connection);
    }
}

#[derive(Debug, Default)]
struct Count {
    made: u64,
    known: u64,
}

impl Count {
    fn doubt(&self) -> Option<u64> {
        (self.made > self.known).then_some(self.made)
    }

    fn settle(&mut self, connection: u64) {
        self.known = self.known.max(connection);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learnt_before_a_connection_says_nothing_of_it() {
        let mut count = Count::default();
        assert_eq!(count.doubt(), None);
        count.made = 1;
        assert_eq!(count.doubt(), Some(1));
        count.made = 2;
        count.settle(1);
        assert_eq!(count.doubt(), Some(2), "the servers were asked before the second one was made");
        count.settle(2);
        count.settle(1);
        assert_eq!(count.doubt(), None);
    }
}
