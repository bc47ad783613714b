//! Several locks at once, or none of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use super::guard::Guard;
use super::lock::Lock;
use crate::error::{Loss, Result};
use crate::recipes::{first_lost, in_order};

/// Several locks, held together or not at all. Made by [`Tenure::lock_all`](super::Tenure::lock_all), or of several
/// clients by [`of`](Self::of).
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let both = tenure.lock_all(["account/7", "account/3"]).acquire()?;
/// assert!(tenure.lock("account/3").try_acquire()?.is_none());
/// both.release()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct MultiLock {
    /// In the order in which they are taken.
    locks: Vec<Lock>,
}

/// Several locks that are held. Dropping it releases them all.
#[derive(Debug)]
#[must_use = "dropping a guard releases the locks at once"]
#[clippy::has_significant_drop]
pub struct MultiGuard {
    guards: Vec<Guard>,
}

impl MultiLock {
    pub(super) fn new(inner: crate::MultiLock, background: &Arc<Background>) -> Self {
        Self { locks: inner.into_locks().into_iter().map(|lock| Lock::new(lock, background)).collect() }
    }

    /// Locks of any clients and stores: as [`MultiLock::of`](crate::MultiLock::of).
    pub fn of(locks: impl IntoIterator<Item = Lock>) -> Self {
        Self { locks: in_order(locks, |lock| &lock.inner) }
    }

    /// Sets an option of every lock: `lock_all(names).each(|lock| lock.ttl(minute))`.
    pub fn each(mut self, option: impl Fn(Lock) -> Lock) -> Self {
        self.locks = self.locks.into_iter().map(option).collect();
        self
    }

    fn inner(&self) -> crate::MultiLock {
        crate::MultiLock::taken_in(self.locks.iter().map(|lock| lock.inner.clone()).collect())
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        Background::wait_with(self.locks.first().map(|lock| &*lock.background), work)
    }

    fn hold(&self, held: crate::MultiGuard) -> MultiGuard {
        let guards = held.into_guards().into_iter();
        MultiGuard { guards: self.locks.iter().zip(guards).map(|(lock, guard)| lock.hold(guard)).collect() }
    }

    /// Waits for all, for ever.
    ///
    /// # Errors
    ///
    /// As [`MultiLock::acquire`](crate::MultiLock::acquire); nothing is held then.
    pub fn acquire(&self) -> Result<MultiGuard> {
        self.wait(self.inner().acquire()).map(|held| self.hold(held))
    }

    /// Waits for all, at most this long in all.
    ///
    /// # Errors
    ///
    /// As [`MultiLock::acquire_within`](crate::MultiLock::acquire_within); nothing is held then.
    pub fn acquire_within(&self, limit: Duration) -> Result<MultiGuard> {
        self.wait(self.inner().acquire_within(limit)).map(|held| self.hold(held))
    }

    /// Takes all if all are free; `None`, and nothing held, if one is not.
    ///
    /// # Errors
    ///
    /// As [`MultiLock::try_acquire`](crate::MultiLock::try_acquire); nothing is held then.
    pub fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        Ok(self.wait(self.inner().try_acquire())?.map(|held| self.hold(held)))
    }
}

impl MultiGuard {
    /// The guards, in the order in which they were taken: each has its own token.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether every lease can be trusted now.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// As [`is_held`](Self::is_held), for work in steps: `guard.check()?`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), naming the lock, if a lease is lost.
    pub fn check(&self) -> Result<()> {
        self.guards.iter().try_for_each(Guard::check)
    }

    /// Waits until the first of the leases is lost, and tells which and why.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn lost(&self) -> Result<(&Guard, Loss)> {
        let (index, loss) = self.wait(async { Ok(first_lost(self.inner()).await) })?;
        Ok((&self.guards[index], loss))
    }

    /// The same, at most this long: `None` if no lease is lost by then.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn lost_within(&self, limit: Duration) -> Result<Option<(&Guard, Loss)>> {
        let Some(first) = self.guards.first() else { return Ok(None) };
        let lost = self.wait(async { Ok(first.inner.within(limit, pin!(first_lost(self.inner()))).await) })?;
        Ok(lost.map(|(index, loss)| (&self.guards[index], loss)))
    }

    /// Runs `work` under all leases: as [`Guard::protect`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), as [`Guard::protect`], naming the lock.
    pub fn protect<R>(&self, work: impl FnOnce() -> R) -> Result<R> {
        self.check()?;
        let output = work();
        self.check().map(|()| output)
    }

    /// Releases all, in the reverse order, and waits for the stores' answers.
    ///
    /// # Errors
    ///
    /// The first failure, as [`Guard::release`]; the others are released all the same.
    pub fn release(self) -> Result<()> {
        // The threads of the clients go on until all is released.
        let (guards, threads): (Vec<_>, Vec<_>) =
            self.guards.into_iter().map(|guard| (guard.inner, guard.background)).unzip();
        Background::wait_with(threads.first().map(|first| &**first), crate::MultiGuard::over(guards).release())
    }

    fn inner(&self) -> impl Iterator<Item = &crate::Guard> {
        self.guards.iter().map(|guard| &guard.inner)
    }

    fn wait<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        Background::wait_with(self.guards.first().map(|guard| &*guard.background), work)
    }
}
