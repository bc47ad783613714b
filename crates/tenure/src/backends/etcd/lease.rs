//! Leases: what keeps keys alive, and since when that may be trusted.
//!
//! A keep-alive is answered by whichever member believes to lead, also by one that was deposed or stands still. It
//! therefore counts only between two answers that the whole cluster stands behind, from the same member in the same
//! term: then the leader of that term took it while it led. What lies behind one keep-alive is what lies before the
//! next.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tonic::Status;

use super::link::Link;
use super::road::{Failure, Road};
use super::window::Gate;
use super::wire::{Answered as _, Header, KeepAliveResponse};
use crate::clock::{Clock, Moment, micros};
use crate::error::{Error, ErrorKind, Result};

/// How many leases without a claim are kept for the next one.
const SPARE_MAX: usize = 64;
/// How many leases are made at a time, at least and at most.
const MAKING: (usize, usize) = (2, 16);

/// The longest lease that etcd makes, in seconds.
const SECONDS_MAX: i64 = 9_000_000_000;

/// One lease of etcd, as this client knows it.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    /// In microseconds: whole seconds. What etcd told last, and for one that another client made a guess before that.
    ttl: AtomicU64,
    /// Whether claims of many names live by it.
    pub(super) shared: bool,
    counted_from: AtomicU64,
    gone: AtomicBool,
    /// When its keys were last compared with the claims that live by it.
    compared: AtomicU64,
    /// When its claims were last looked at for those that nobody renews.
    swept: AtomicU64,
}

impl Lease {
    pub(super) fn new(id: i64, ttl: Duration, shared: bool, counted_from: Moment) -> Arc<Self> {
        Arc::new(Self {
            id,
            ttl: AtomicU64::new(micros(ttl)),
            shared,
            counted_from: AtomicU64::new(counted_from.as_micros()),
            gone: AtomicBool::new(false),
            compared: AtomicU64::new(counted_from.as_micros()),
            swept: AtomicU64::new(counted_from.as_micros()),
        })
    }

    /// How long etcd keeps it after a keep-alive.
    pub(super) fn ttl(&self) -> Duration {
        Duration::from_micros(self.ttl.load(Ordering::Acquire))
    }

    /// From when its ttl surely counts.
    pub(super) fn counted_from(&self) -> Moment {
        Moment(self.counted_from.load(Ordering::Acquire))
    }

    fn count(&self, from: Moment) {
        self.counted_from.fetch_max(from.as_micros(), Ordering::AcqRel);
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// etcd no longer has it. True if that is news.
    pub(super) fn lose(&self) -> bool {
        !self.gone.swap(true, Ordering::AcqRel)
    }

    fn is_young(&self, now: Moment) -> bool {
        !self.is_gone() && now.since(self.counted_from()) < self.ttl() / 2
    }

    /// Whether it is time to look for claims that nobody renews: some times per ttl, however many batches its claims
    /// come in.
    pub(super) fn is_to_be_swept(&self, now: Moment) -> bool {
        let last = self.swept.load(Ordering::Acquire);
        now.since(Moment(last)) >= self.ttl() / 8
            && self.swept.compare_exchange(last, now.as_micros(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether it is time to compare its keys with the claims that live by it: once per ttl.
    pub(super) fn is_to_be_compared(&self, now: Moment) -> bool {
        let last = self.compared.load(Ordering::Acquire);
        now.since(Moment(last)) >= self.ttl()
            && self.compared.compare_exchange(last, now.as_micros(), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// What became of a keep-alive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// Read before it was sent.
    sent: Moment,
    before: Header,
    answer: Header,
    /// How long etcd keeps the lease; zero or less if it has none.
    pub(super) seconds: i64,
}

impl Kept {
    /// Whether it counts, given a later answer that the cluster stands behind.
    pub(super) fn counts(&self, after: Header) -> bool {
        let same = |other: Header| {
            other.member_id == self.before.member_id
                && other.cluster_id == self.before.cluster_id
                && other.raft_term == self.before.raft_term
        };
        // An answer without a header tells nothing.
        let told = self.before.member_id != 0 && self.before.raft_term != 0;
        told && self.seconds > 0 && same(self.answer) && same(after)
    }

    /// Counts it. What etcd says of the lease's length is so, whoever made it.
    pub(super) fn count(&self, lease: &Lease) {
        let seconds = u64::try_from(self.seconds).unwrap_or(0);
        lease.ttl.store(seconds.saturating_mul(1_000_000), Ordering::Release);
        lease.count(self.sent);
    }
}

/// The leases of one client.
#[derive(Debug)]
pub(super) struct Leases {
    clock: Arc<dyn Clock>,
    /// One for each ttl, for claims that nobody else can join. Held while one is made.
    shared: tokio::sync::Mutex<HashMap<u64, Arc<Lease>>>,
    /// Alive, and without a claim: for the next claim that has a lease of its own.
    spare: Mutex<HashMap<u64, Vec<Arc<Lease>>>>,
    /// All that some claim lives by, also those that other clients made.
    by_id: Mutex<HashMap<i64, Weak<Lease>>>,
    /// For those that are made at the same time: thousands that are asked for at once keep etcd from all else.
    making: Gate,
}

impl Leases {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            making: Gate::new(MAKING.0, MAKING.1, clock.clone()),
            clock,
            shared: tokio::sync::Mutex::default(),
            spare: Mutex::default(),
            by_id: Mutex::default(),
        }
    }

    /// The lease that all claims with this ttl share which nobody else can join.
    ///
    /// # Cancel safety
    ///
    /// At worst a lease was made that nobody uses; it ends after its ttl.
    pub(super) async fn shared(&self, road: &Road, ttl: Duration) -> Result<Arc<Lease>> {
        let seconds = whole_seconds(ttl);
        let mut shared = self.shared.lock().await;
        if let Some(lease) = shared.get(&seconds) {
            if lease.is_young(self.clock.now()) {
                return Ok(lease.clone());
            }
            // Old, perhaps gone: kept alive first, so that no claim begins with half of its time over.
            let old = !lease.is_gone() && self.clock.now().since(lease.counted_from()) < lease.ttl();
            if old && self.keep(road, lease).await? {
                return Ok(lease.clone());
            }
        }
        let lease = self.make(road, seconds, ttl, true).await?;
        shared.insert(seconds, lease.clone());
        Ok(lease)
    }

    /// A lease for one claim.
    ///
    /// # Cancel safety
    ///
    /// As [`shared`](Self::shared).
    pub(super) async fn own(&self, road: &Road, ttl: Duration) -> Result<Arc<Lease>> {
        let seconds = whole_seconds(ttl);
        let now = self.clock.now();
        let spare = self.spares().get_mut(&seconds).and_then(|spare| {
            spare.retain(|lease| lease.is_young(now));
            spare.pop()
        });
        match spare {
            Some(lease) => Ok(lease),
            None => self.make(road, seconds, ttl, false).await,
        }
    }

    /// A lease for one claim that nothing lived by before, so that its whole ttl is ahead.
    ///
    /// # Cancel safety
    ///
    /// As [`shared`](Self::shared).
    pub(super) async fn fresh(&self, road: &Road, ttl: Duration) -> Result<Arc<Lease>> {
        self.make(road, whole_seconds(ttl), ttl, false).await
    }

    /// A lease for data that are to be kept so long: that nobody keeps alive, nor holds anything by. It may be longer
    /// than asked for, as etcd has a shortest one.
    ///
    /// # Cancel safety
    ///
    /// As [`shared`](Self::shared).
    pub(super) async fn for_data(&self, road: &Road, keep: Duration) -> Result<i64> {
        let _pass = self.making.enter().await;
        let asked = i64::try_from(whole_seconds(keep)).unwrap_or(i64::MAX).min(SECONDS_MAX);
        let granted = road.ask(|link| async move { link.grant(asked).await }).await?;
        if granted.error.is_empty() && granted.ttl >= asked {
            return Ok(granted.id);
        }
        let told = format!("{} s of {asked}: {}", granted.ttl, granted.error);
        Err(Error::new(ErrorKind::Store, "etcd makes no such lease").because(told))
    }

    /// Nothing lives by this lease any more, for sure.
    pub(super) fn give_back(&self, lease: Arc<Lease>) {
        if lease.shared || !lease.is_young(self.clock.now()) {
            return;
        }
        let mut spares = self.spares();
        let spare = spares.entry(lease.ttl().as_secs()).or_default();
        if spare.len() < SPARE_MAX {
            spare.push(lease);
        }
    }

    /// All that no claim lives by, as this tells: nobody gets them any more.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only waits.
    pub(super) async fn take_unused(&self, is_used: impl Fn(&Lease) -> bool) -> Vec<Arc<Lease>> {
        let mut unused: Vec<_> = self.spares().drain().flat_map(|(_, spare)| spare).collect();
        let mut shared = self.shared.lock().await;
        unused.extend(shared.extract_if(|_, lease| !is_used(lease)).map(|(_, lease)| lease));
        unused
    }

    fn spares(&self) -> MutexGuard<'_, HashMap<u64, Vec<Arc<Lease>>>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lease of a key that was found. If another client made it, nothing is known of it before it was kept alive.
    pub(super) fn of_key(&self, id: i64, ttl: Duration) -> Arc<Lease> {
        let mut by_id = self.by_id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = by_id.get(&id).and_then(Weak::upgrade) {
            return lease;
        }
        let lease = Lease::new(id, Duration::from_secs(whole_seconds(ttl)), false, Moment(0));
        register(&mut by_id, &lease);
        lease
    }

    /// A lease of exactly so many seconds.
    async fn make(&self, road: &Road, seconds: u64, ttl: Duration, shared: bool) -> Result<Arc<Lease>> {
        let _pass = self.making.enter().await;
        let sent = self.clock.now();
        let asked = i64::try_from(seconds).unwrap_or(i64::MAX);
        let granted = road.ask(|link| async move { link.grant(asked).await }).await?;
        if !granted.error.is_empty() {
            return Err(Error::new(ErrorKind::Store, "etcd makes no lease").because(granted.error));
        }
        if let Some(error) = not_as_asked(asked, granted.ttl, ttl) {
            let id = granted.id;
            let _ = road.ask(|link| async move { link.revoke(id).await }).await;
            return Err(error);
        }
        let lease = Lease::new(granted.id, Duration::from_secs(seconds), shared, sent);
        register(&mut self.by_id.lock().unwrap_or_else(PoisonError::into_inner), &lease);
        Ok(lease)
    }

    /// Sends keep-alives; the answers in the same order. They count once a later answer shows it ([`Kept::counts`]).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the leases live longer.
    pub(super) async fn send(&self, link: &Link, leases: &[i64]) -> std::result::Result<Vec<Kept>, Status> {
        let before = match link.seen() {
            Some(seen) => seen,
            None => link.look().await?,
        };
        let sent = self.clock.now();
        let answers = link.keep_alive(leases).await?;
        let kept = |answer: KeepAliveResponse| Kept { sent, before, answer: answer.header(), seconds: answer.ttl };
        Ok(answers.into_iter().map(kept).collect())
    }

    /// Keeps a lease alive for sure; false if etcd no longer has it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the lease lives longer.
    pub(super) async fn keep(&self, road: &Road, lease: &Lease) -> Result<bool> {
        // A change of the leader may lie between; the second time that would be the second change.
        let mut missing = false;
        for _ in 0..3 {
            let link = road.link().await?;
            let kept = road.judged(&link, self.send(&link, &[lease.id]).await)?;
            let kept = kept.first().ok_or_else(super::error::odd)?;
            if kept.seconds <= 0 && missing {
                return Ok(false);
            }
            // A member that lags may not know it yet; after the next look it does.
            missing = kept.seconds <= 0;
            let after = road.judged(&link, link.look().await)?;
            if kept.counts(after) {
                kept.count(lease);
                return Ok(true);
            }
        }
        Err(super::error::no_answer().because("the leader of etcd changes again and again"))
    }
}

/// What is wrong with a lease that etcd keeps for `granted` seconds, for a claim with this ttl.
fn not_as_asked(asked: i64, granted: i64, ttl: Duration) -> Option<Error> {
    match granted.cmp(&asked) {
        std::cmp::Ordering::Equal => None,
        // A holder that dies would keep the name for longer than it promised.
        std::cmp::Ordering::Greater => Some(Error::new(
            ErrorKind::Invalid,
            format!(
                "a ttl of {ttl:?} is too short for this etcd: it keeps leases for {granted} s at least (1.5 times its election timeout)"
            ),
        )),
        // A holder would trust it for longer than it lives.
        std::cmp::Ordering::Less => Some(Error::new(
            ErrorKind::Store,
            format!("etcd keeps a lease for {granted} s only, and {asked} s were asked for"),
        )),
    }
}

fn register(by_id: &mut HashMap<i64, Weak<Lease>>, lease: &Arc<Lease>) {
    if by_id.len() == by_id.capacity() {
        // Before the table grows, what nobody uses goes.
        by_id.retain(|_, lease| lease.strong_count() > 0);
    }
    by_id.insert(lease.id, Arc::downgrade(lease));
}

/// etcd counts in seconds.
fn whole_seconds(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(u64::MAX).max(1)
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Told(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(member_id: u64, raft_term: u64) -> Header {
        Header { cluster_id: 1, member_id, revision: 9, raft_term }
    }

    fn kept(before: Header, answer: Header, seconds: i64) -> Kept {
        Kept { sent: Moment(5), before, answer, seconds }
    }

    #[test]
    fn a_keep_alive_counts_only_within_one_term_of_one_member() {
        let steady = header(1, 7);
        assert!(kept(steady, steady, 10).counts(steady));
        for (before, answer, after) in [
            (header(1, 6), steady, steady),
            (steady, header(1, 6), steady),
            (steady, steady, header(1, 8)),
            (steady, steady, header(2, 7)),
            (steady, header(2, 7), steady),
        ] {
            assert!(!kept(before, answer, 10).counts(after), "{before:?} {answer:?} {after:?}");
        }
        assert!(!kept(steady, steady, 0).counts(steady), "etcd has no such lease");
    }

    #[test]
    fn a_lease_of_another_length_than_was_asked_for_is_refused() {
        let ttl = Duration::from_secs(10);
        assert!(not_as_asked(10, 10, ttl).is_none());
        let longer = not_as_asked(10, 15, ttl).unwrap();
        assert!(longer.kind() == ErrorKind::Invalid && longer.to_string().contains("15 s at least"), "{longer}");
        let shorter = not_as_asked(10, 3, ttl).unwrap();
        assert!(shorter.kind() == ErrorKind::Store && shorter.to_string().contains("3 s only"), "{shorter}");
    }

    #[test]
    fn leases_have_whole_seconds_and_are_never_shorter_than_the_ttl() {
        for (millis, seconds) in [(100, 1), (1000, 1), (1001, 2), (10_000, 10)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
    }
}
