//! Whether a session still has the timeout that it was given.
//!
//! It is agreed on with each connection anew, by the limits of the server that it is made to, and the client library
//! does not tell with which outcome. So what is answered over a new connection counts only once the servers were
//! asked for their limits since.

use futures_util::FutureExt as _;
use zookeeper_client::{SessionState, StateWatcher};

/// The connections of a session, and up to which of them its timeout is known.
#[derive(Debug)]
pub(super) struct Trust {
    states: StateWatcher,
    connections: Count,
}

impl Trust {
    /// Of a session that has just been made: its timeout is known. What `states` has not told yet is told here.
    pub(super) fn new(states: StateWatcher) -> Self {
        Self { states, connections: Count::default() }
    }

    /// The latest connection, if its timeout is not known. What is answered over a connection is answered after this
    /// has seen it.
    pub(super) fn doubt(&mut self) -> Option<u64> {
        while let Some(state) = self.states.changed().now_or_never() {
            if state == SessionState::SyncConnected {
                self.connections.connect();
            }
        }
        self.connections.doubt()
    }

    /// Whether nobody will ever know: it connected anew while it was in doubt.
    pub(super) fn is_spoilt(&mut self) -> bool {
        self.doubt();
        self.connections.spoilt
    }

    /// As if it had connected anew.
    #[cfg(test)]
    pub(super) fn reconnect(&mut self) {
        self.connections.connect();
    }

    /// The timeout is known to be the same over this connection, if it is the latest. Whether it is.
    pub(super) fn settle(&mut self, connection: u64) -> bool {
        self.doubt();
        self.connections.settle(connection)
    }
}

#[derive(Debug, Default)]
struct Count {
    made: u64,
    known: u64,
    spoilt: bool,
}

impl Count {
    fn connect(&mut self) {
        // The client library asks each server for what the one before gave. So had that one shortened the timeout,
        // all later ones do as well, whatever they would give to others.
        self.spoilt |= self.doubt().is_some();
        self.made += 1;
    }

    fn doubt(&self) -> Option<u64> {
        (self.spoilt || self.made > self.known).then_some(self.made)
    }

    fn settle(&mut self, connection: u64) -> bool {
        if connection == self.made && !self.spoilt {
            self.known = connection;
        }
        self.doubt().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_learnt_before_a_connection_says_nothing_of_it() {
        let mut count = Count::default();
        assert_eq!(count.doubt(), None);
        for connection in 1..4 {
            count.connect();
            assert_eq!(count.doubt(), Some(connection));
            assert!(!count.settle(connection - 1), "the servers were asked before it was made");
            assert!(count.settle(connection) && count.doubt().is_none());
        }
    }

    #[test]
    fn a_connection_that_ended_in_doubt_is_never_settled() {
        let mut count = Count::default();
        count.connect();
        count.connect();
        assert!(count.spoilt);
        assert!(!count.settle(1) && !count.settle(2));
        assert_eq!(count.doubt(), Some(2));
    }
}
