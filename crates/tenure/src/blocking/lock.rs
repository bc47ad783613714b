//! A lock: a name and how to hold it.

use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use super::guard::Guard;
use crate::backend::Replicas;
use crate::engine::WaitStrategy;
use crate::error::Result;
use crate::owner::Owner;
use crate::token::Token;

/// A name and how to hold it. Made by [`Tenure::lock`](super::Tenure::lock) and its siblings; nothing is sent before
/// one of the `acquire` methods is called.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
///
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let lock = tenure.lock("orders/42").ttl(Duration::from_secs(5));
/// let guard = lock.acquire()?;
/// assert!(lock.try_acquire()?.is_none());
/// assert!(lock.acquire_within(Duration::from_millis(10)).is_err());
/// guard.release()?;
/// assert!(lock.try_acquire()?.is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    pub(super) inner: crate::Lock,
    pub(super) background: Arc<Background>,
}

impl Lock {
    pub(super) fn new(inner: crate::Lock, background: &Arc<Background>) -> Self {
        Self { inner, background: background.clone() }
    }

    fn with(self, option: impl FnOnce(crate::Lock) -> crate::Lock) -> Self {
        Self { inner: option(self.inner), background: self.background }
    }

    pub(super) fn hold(&self, guard: crate::Guard) -> Guard {
        Guard::new(guard, &self.background)
    }

    /// As [`Lock::ttl`](crate::Lock::ttl).
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|lock| lock.ttl(ttl))
    }

    /// As [`Lock::no_renewal`](crate::Lock::no_renewal).
    pub fn no_renewal(self) -> Self {
        self.with(crate::Lock::no_renewal)
    }

    /// As [`Lock::max_hold`](crate::Lock::max_hold).
    pub fn max_hold(self, limit: Duration) -> Self {
        self.with(|lock| lock.max_hold(limit))
    }

    /// As [`Lock::warn_after`](crate::Lock::warn_after).
    pub fn warn_after(self, limit: Duration) -> Self {
        self.with(|lock| lock.warn_after(limit))
    }

    /// As [`Lock::label`](crate::Lock::label).
    pub fn label(self, label: impl AsRef<str>) -> Self {
        self.with(|lock| lock.label(label))
    }

    /// As [`Lock::strict_fifo`](crate::Lock::strict_fifo).
    pub fn strict_fifo(self) -> Self {
        self.with(crate::Lock::strict_fifo)
    }

    /// As [`Lock::min_replicas`](crate::Lock::min_replicas).
    pub fn min_replicas(self, replicas: impl Into<Replicas>) -> Self {
        self.with(|lock| lock.min_replicas(replicas))
    }

    /// As [`Lock::wait_strategy`](crate::Lock::wait_strategy).
    pub fn wait_strategy(self, strategy: WaitStrategy) -> Self {
        self.with(|lock| lock.wait_strategy(strategy))
    }

    /// As [`Lock::units`](crate::Lock::units).
    pub fn units(self, units: u32) -> Self {
        self.with(|lock| lock.units(units))
    }

    /// As [`Lock::within`](crate::Lock::within).
    pub fn within(self, owners: impl IntoIterator<Item = Owner>) -> Self {
        self.with(|lock| lock.within(owners))
    }

    /// As [`Lock::reenter`](crate::Lock::reenter).
    pub fn reenter(self, token: Token) -> Self {
        self.with(|lock| lock.reenter(token))
    }

    /// As [`Lock::repeatable`](crate::Lock::repeatable).
    pub fn repeatable(self) -> Self {
        self.with(crate::Lock::repeatable)
    }

    /// Waits for the lock, for ever.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn acquire(&self) -> Result<Guard> {
        self.background.wait(self.inner.acquire()).map(|guard| self.hold(guard))
    }

    /// Waits for the lock, at most this long.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_within`](crate::Lock::acquire_within). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in
    /// async code.
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.background.wait(self.inner.acquire_within(limit)).map(|guard| self.hold(guard))
    }

    /// Takes the lock if it is free; `None` if it is not.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async
    /// code.
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(self.background.wait(self.inner.try_acquire())?.map(|guard| self.hold(guard)))
    }
}
