//! Whether statements are prepared: only on connections that are known to be the server's own.
//!
//! A pooler may run each transaction on another connection, which has other clients' statements under the same names:
//! what was meant to renew a claim could end it. So a connection prepares nothing until another one to the same host
//! has proved to be direct, and nothing ever again once it has lost a statement. The hosts of a URL need not be
//! alike: one may be a server and the next a pooler, so what one of them has proved says nothing of another.

use std::sync::atomic::{AtomicU8, Ordering};

pub(super) const UNDECIDED: u8 = 0;
pub(super) const ON: u8 = 1;
pub(super) const OFF: u8 = 2;
/// A statement was lost on the way to this host: whatever is heard, a pooler is there.
const LOST: u8 = 3;

/// What is known of each host.
#[derive(Debug)]
pub(super) struct Preparing(Vec<AtomicU8>);

impl Preparing {
    pub(super) fn of(hosts: usize) -> Self {
        Self((0..hosts).map(|_| AtomicU8::new(UNDECIDED)).collect())
    }

    pub(super) fn is_direct(&self, host: usize) -> bool {
        self.0.get(host).is_some_and(|known| known.load(Ordering::Relaxed) == ON)
    }

    /// Whether it is known that a pooler is there.
    pub(super) fn is_refuted(&self, host: usize) -> bool {
        self.0.get(host).is_some_and(|known| matches!(known.load(Ordering::Relaxed), OFF | LOST))
    }

    /// Whether new connections may come to prepare: some host is known to be direct.
    pub(super) fn is_on(&self) -> bool {
        (0..self.0.len()).any(|host| self.is_direct(host))
    }

    /// A connection to this host was seen to be direct.
    pub(super) fn proved(&self, host: usize) {
        self.set(host, ON);
    }

    /// A connection to this host was seen not to be direct.
    pub(super) fn refuted(&self, host: usize) {
        self.set(host, OFF);
    }

    /// The connection that proved it has ended: who answers there now is not known.
    pub(super) fn doubt(&self, host: usize) {
        self.set(host, UNDECIDED);
    }

    /// A connection to this host has lost a statement.
    pub(super) fn lost(&self, host: usize) {
        if let Some(known) = self.0.get(host)
            && known.swap(LOST, Ordering::Relaxed) != LOST
        {
            tracing::info!("PostgreSQL is behind a pooler of transactions: statements are not prepared");
        }
    }

    fn set(&self, host: usize, to: u8) {
        if let Some(known) = self.0.get(host) {
            let _ = known.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| (now != LOST).then_some(to));
        }
    }
}
