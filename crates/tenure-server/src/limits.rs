//! What the service allows at once. `tenure serve --help` lists these numbers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tenure::Name;

use crate::problem::{Answer, Problem};

/// The longest that an acquire waits: proxies give up at 60 s.
pub const WAIT_MAX: Duration = Duration::from_secs(50);
/// How many claims one renewal may name.
pub const RENEWALS_MAX: usize = 1_000;
/// The largest body of most requests.
pub const BODY_BYTES_MAX: usize = 128 * 1024;
/// The largest body of a renewal of many claims.
pub const RENEWAL_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The largest body of a memo: 64 KiB in base64, also where each `/` in it is escaped.
pub const MEMO_BODY_BYTES_MAX: usize = 256 * 1024;
/// How long a request's body may take to arrive, and a caller to agree on TLS.
pub const ARRIVAL_MAX: Duration = Duration::from_secs(10);
/// How long a request's head may take to arrive. It is also how long an idle connection is kept, and one whose caller
/// does not read what it is sent.
pub const IDLE_MAX: Duration = Duration::from_secs(60);
/// The largest head of a request.
pub const HEAD_BYTES_MAX: usize = 16 * 1024;
/// How many requests may be under way on one HTTP/2 connection.
pub const STREAMS_MAX: u32 = 256;
/// How many owners a claim may name that it runs within.
pub(crate) const WITHIN_MAX: usize = 16;
/// The longest label, in bytes.
pub const LABEL_BYTES_MAX: usize = 256;
/// The longest `claim` of a client, in bytes.
pub(crate) const CLAIM_BYTES_MAX: usize = 128;
/// How many names one page lists.
pub const PAGE_MAX: usize = 1_000;

/// What may be set where the service is started.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// Acquires that wait, in all: with the streams never more than three quarters of the connections.
    pub waiters: usize,
    /// Of one caller.
    pub waiters_of_caller: usize,
    /// For one name.
    pub waiters_for_name: usize,
    /// Streams of events.
    pub streams: usize,
    /// How long a connection is kept on which no head of a request arrives, or nothing of an answer is taken.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            waiters: 12_032,
            waiters_of_caller: 12_032,
            waiters_for_name: 12_032,
            streams: 256,
            idle: IDLE_MAX,
        }
    }
}

impl Limits {
    /// The same, with room for others than waiters and streams whatever was asked for.
    #[must_use]
    pub fn consistent(mut self) -> Self {
        let most = self.connections / 4 * 3;
        self.streams = self.streams.min(most / 4);
        self.waiters = self.waiters.min(most.saturating_sub(self.streams));
        self
    }
}

/// Who waits now.
#[derive(Debug)]
pub(crate) struct Waiters {
    limits: Limits,
    now: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of_caller: HashMap<Arc<str>, usize>,
    for_name: HashMap<Name, usize>,
}

/// Permission to wait; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct WaitPermit {
    waiters: Arc<Waiters>,
    caller: Arc<str>,
    name: Name,
}

impl Waiters {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { limits, now: Mutex::default() })
    }

    /// How many may wait for one name.
    pub(crate) fn for_name_max(&self) -> usize {
        self.limits.waiters_for_name
    }

    /// Lets a caller wait for a name, unless a limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, caller: &Arc<str>, name: &Name) -> Answer<WaitPermit> {
        let limits = &self.limits;
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |count: Option<&usize>, most| count.is_some_and(|count| *count >= most);
        let what = if now.all >= limits.waiters {
            format!("{} acquires wait here already", limits.waiters)
        } else if full(now.of_caller.get(caller), limits.waiters_of_caller) {
            format!("{} acquires of yours wait here already", limits.waiters_of_caller)
        } else if full(now.for_name.get(name), limits.waiters_for_name) {
            format!("{} acquires wait here for this name already", limits.waiters_for_name)
        } else {
            now.all += 1;
            *now.of_caller.entry(caller.clone()).or_default() += 1;
            *now.for_name.entry(name.clone()).or_default() += 1;
            return Ok(WaitPermit { waiters: self.clone(), caller: caller.clone(), name: name.clone() });
        };
        Err(Problem::too_many(what).hint("ask again later, at another instance, or without wait_ms"))
    }
}

impl Drop for WaitPermit {
    fn drop(&mut self) {
        let mut now = self.waiters.now.lock().unwrap_or_else(PoisonError::into_inner);
        now.all = now.all.saturating_sub(1);
        less(&mut now.of_caller, &self.caller);
        less(&mut now.for_name, &self.name);
    }
}

fn less<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_are_bounded_in_all_by_caller_and_by_name_and_leave_no_trace() {
        let limits = Limits { waiters: 3, waiters_of_caller: 2, waiters_for_name: 2, ..Limits::default() };
        let waiters = Waiters::new(limits);
        let caller = |name: &str| Arc::<str>::from(name);
        let name = |name: &str| Name::new(name).unwrap();
        let first = waiters.enter(&caller("a"), &name("x")).unwrap();
        let second = waiters.enter(&caller("a"), &name("y")).unwrap();
        assert!(waiters.enter(&caller("a"), &name("z")).is_err(), "two of a's wait");
        let third = waiters.enter(&caller("b"), &name("x")).unwrap();
        assert!(waiters.enter(&caller("c"), &name("z")).is_err(), "three wait");
        drop(second);
        assert!(waiters.enter(&caller("c"), &name("x")).is_err(), "two wait for x");
        drop((first, third));
        let now = waiters.now.lock().unwrap();
        assert_eq!((now.all, now.of_caller.len(), now.for_name.len()), (0, 0, 0));
    }

    #[test]
    fn the_defaults_are_what_they_say() {
        let (told, is) = (Limits::default(), Limits::default().consistent());
        assert_eq!((told.waiters, told.streams), (is.waiters, is.streams));
    }

    #[test]
    fn whatever_is_asked_for_a_quarter_of_the_connections_is_for_neither_waiters_nor_streams() {
        let asked = Limits { connections: 100, waiters: 1_000, streams: 1_000, ..Limits::default() };
        let limits = asked.consistent();
        assert!(limits.waiters + limits.streams <= 75, "{limits:?}");
    }
}
