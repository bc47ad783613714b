//! The lease, as a value.

use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use crate::clock::Moment;
use crate::engine::Lease;
use crate::error::{Loss, Result};
use crate::fence::{Fence, Refused};
use crate::machine::Shape;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// A lock that is held. Dropping it, on any thread, releases the lock in the background; [`release`](Self::release)
/// waits for that and tells how it went.
///
/// As [`tenure::Guard`](crate::Guard), a guard is a lease that can be lost. Work in steps asks [`check`](Self::check)
/// before each of them; another thread can wait for the loss ([`lost`](Self::lost)).
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let guard = tenure.lock("import").acquire()?;
/// for row in 0..3 {
///     guard.check()?; // the lease was lost: stop
///     println!("row {row}");
/// }
/// guard.release()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock at once"]
#[clippy::has_significant_drop]
pub struct Guard {
    /// Before the client's thread, which ends with the last of its values.
    pub(super) inner: crate::Guard,
    pub(super) background: Arc<Background>,
}

impl Guard {
    pub(super) fn new(inner: crate::Guard, background: &Arc<Background>) -> Self {
        Self { inner, background: background.clone() }
    }

    /// What is locked.
    pub fn name(&self) -> &Name {
        self.inner.name()
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        self.inner.owner()
    }

    /// The claim's id.
    pub fn claim_id(&self) -> ClaimId {
        self.inner.claim_id()
    }

    /// Its owner and its id as views show them.
    pub fn shown(&self) -> (Owner, ClaimId) {
        self.inner.shown()
    }

    /// The fencing token: send it with every operation on what the lock protects.
    pub fn token(&self) -> Option<Token> {
        self.inner.token()
    }

    /// What to show to the resource with each operation: for [`Gate::write_as`](crate::fence::Gate::write_as) and the
    /// other helpers of [`fence`](crate::fence).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let tenure = tenure::blocking::Tenure::connect("memory:")?;
    /// let stock = tenure::fence::Gate::new(10);
    /// let guard = tenure.lock("stock").acquire()?;
    /// stock.write_as(&guard.fence()?, |stock| *stock -= 1)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Refused::Shape`] if it holds permits, [`Refused::NoToken`] if its store has no tokens.
    pub fn fence(&self) -> Result<Fence, Refused> {
        self.inner.fence()
    }

    /// How much of the name it takes.
    pub fn shape(&self) -> Shape {
        self.inner.shape()
    }

    /// Whether the lease can be trusted now. Compares clocks; no I/O.
    pub fn is_held(&self) -> bool {
        self.inner.is_held()
    }

    /// As [`is_held`](Self::is_held), for work in steps: `guard.check()?`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lease is lost.
    pub fn check(&self) -> Result<()> {
        self.inner.check()
    }

    /// How long the lease can be trusted from now on if no renewal succeeds; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.inner.remaining()
    }

    /// The moment [`remaining`](Self::remaining) counts to.
    pub fn deadline(&self) -> Moment {
        self.inner.deadline()
    }

    /// Why the last renewal failed, if it did.
    pub fn renewal_failure(&self) -> Option<String> {
        self.inner.renewal_failure()
    }

    /// Renews the lease now, and answers how long it can be trusted.
    ///
    /// # Errors
    ///
    /// As [`Guard::renew`](crate::Guard::renew). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn renew(&self) -> Result<Duration> {
        self.background.wait(self.inner.renew())
    }

    /// Waits until the lease is lost, and tells why.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn lost(&self) -> Result<Loss> {
        self.background.wait(async { Ok(self.inner.lost().await) })
    }

    /// The same, at most this long: `None` if the lease is not lost by then.
    ///
    /// ```
    /// # fn main() -> Result<(), tenure::Error> {
    /// use std::time::Duration;
    ///
    /// let tenure = tenure::blocking::Tenure::connect("memory:")?;
    /// let guard = tenure.lock("report").acquire()?;
    /// assert_eq!(guard.lost_within(Duration::from_millis(10))?, None);
    ///
    /// tenure.break_holders("report", None, "to show it")?;
    /// assert!(guard.lost_within(Duration::from_secs(60))?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<Loss>> {
        self.background.wait(async { Ok(self.inner.lost_within(limit).await) })
    }

    /// Runs `work` under the lease. Nothing stops it when the lease is lost, so that long work asks
    /// [`check`](Self::check) between its steps.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lease is lost before the work begins, which then does not
    /// run; or was lost by the time it has ended: the work may have overlapped with the next holder's.
    pub fn protect<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        self.check()?;
        let output = work();
        self.check().map(|()| output)
    }

    /// Writes the memo of the name, and answers its version.
    ///
    /// # Errors
    ///
    /// As [`Guard::write_memo`](crate::Guard::write_memo). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async
    /// code.
    pub fn write_memo(&self, bytes: impl AsRef<[u8]>) -> Result<u64> {
        self.background.wait(self.inner.write_memo(bytes))
    }

    /// As [`write_memo`](Self::write_memo); the memo ends after `keep`.
    ///
    /// # Errors
    ///
    /// As [`write_memo`](Self::write_memo).
    pub fn write_memo_for(&self, bytes: impl AsRef<[u8]>, keep: Duration) -> Result<u64> {
        self.background.wait(self.inner.write_memo_for(bytes, keep))
    }

    /// Releases the lock and waits for the store's answer.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](crate::Guard::release). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code:
    /// the lock is then released in the background.
    pub fn release(self) -> Result<()> {
        self.background.wait(self.inner.release())
    }

    /// Leaves the claim to live on without this guard, until its ttl.
    pub fn leave(self) -> Lease {
        self.inner.leave()
    }
}
