//! Several names at once, or none of them.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::engine::{Guard, Lock};
use crate::error::{Loss, Result};

/// Several names, held together or not at all. Made by [`Tenure::lock_all`](crate::Tenure::lock_all); of several stores
/// by [`of`](Self::of).
///
/// The names are taken one after another in byte order, each once, so that two programs that want the same
/// names in another order cannot block each other. What was taken is released if the rest cannot be.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let both = tenure.lock_all(["account/7", "account/3"]).acquire().await?;
/// assert!(tenure.lock("account/3").try_acquire().await?.is_none());
/// both.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct MultiLock {
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
    pub(crate) fn new<N: AsRef<str>>(names: impl IntoIterator<Item = N>, lock: impl Fn(&str) -> Lock) -> Self {
        let names: BTreeSet<String> = names.into_iter().map(|name| name.as_ref().to_owned()).collect();
        Self { locks: names.iter().map(|name| lock(name)).collect() }
    }

    /// Takes these locks, in this order.
    pub(crate) fn taken_in(locks: Vec<Lock>) -> Self {
        Self { locks }
    }

    pub(crate) fn into_locks(self) -> Vec<Lock> {
        self.locks
    }

    /// Sets an option of every lock: `lock_all(names).each(|lock| lock.ttl(minute))`.
    pub fn each(mut self, option: impl Fn(Lock) -> Lock) -> Self {
        self.locks = self.locks.into_iter().map(option).collect();
        self
    }

    /// Waits for all, for ever.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`], and [`ErrorKind::Lost`](crate::ErrorKind::Lost) if one was lost while another was waited
    /// for; nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// Cancelling releases what was taken and loses the place in the queue of the name that was waited for.
    pub async fn acquire(&self) -> Result<MultiGuard> {
        let mut guards = Vec::with_capacity(self.locks.len());
        for lock in &self.locks {
            guards.push(lock.acquire().await?);
        }
        whole(guards)
    }

    /// Waits for all, at most this long in all.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_within`]; nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// Cancelling releases what was taken and loses the place in the queue of the name that was waited for.
    pub async fn acquire_within(&self, limit: Duration) -> Result<MultiGuard> {
        let mut guards = Vec::with_capacity(self.locks.len());
        // One clock for all: clients may have their own.
        let until = self.locks.first().map(|first| (first, first.now() + limit));
        for lock in &self.locks {
            let left = until.map_or(limit, |(first, until)| until.since(first.now()));
            guards.push(lock.acquire_within(left).await?);
        }
        whole(guards)
    }

    /// Takes all if all are free; `None`, and nothing held, if one is not.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`]; nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: what was taken is released in the background, or by its ttl.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>> {
        let mut guards = Vec::with_capacity(self.locks.len());
        for lock in &self.locks {
            match lock.try_acquire().await? {
                Some(guard) => guards.push(guard),
                None => return Ok(None),
            }
        }
        whole(guards).map(Some)
    }
}

/// All of them or none: one may have been lost while the others were waited for.
fn whole(guards: Vec<Guard>) -> Result<MultiGuard> {
    match guards.iter().find(|guard| !guard.is_held()) {
        Some(lost) => Err(lost.lost_by(lost.loss().unwrap_or(Loss::Expired))),
        None => Ok(MultiGuard { guards }),
    }
}

impl MultiGuard {
    pub(crate) fn over(guards: Vec<Guard>) -> Self {
        Self { guards }
    }

    pub(crate) fn into_guards(self) -> Vec<Guard> {
        self.guards
    }

    /// The guards, in the order in which they were taken (of one store: in byte order of their names): each has its own
    /// token.
    pub fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// Whether every lease can be trusted now.
    pub fn is_held(&self) -> bool {
        self.guards.iter().all(Guard::is_held)
    }

    /// Resolves when the first of the leases is lost, with that one and the reason.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once if a lease was lost meanwhile.
    pub async fn lost(&self) -> (&Guard, Loss) {
        let (index, loss) = first_lost(self.guards.iter()).await;
        (&self.guards[index], loss)
    }

    /// Runs `work` under all leases and drops it the moment one of them is lost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost), as [`Guard::protect`], naming the lock.
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops `work` where it stands; the locks stay held.
    pub async fn protect<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut lost = std::pin::pin!(self.lost());
        let mut work = std::pin::pin!(work);
        let output = poll_fn(|cx| {
            if let Poll::Ready((guard, loss)) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(guard.lost_by(loss)));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await?;
        match self.guards.iter().find(|guard| !guard.is_held()) {
            Some(guard) => Err(guard.lost_by(guard.loss().unwrap_or(Loss::Expired))),
            None => Ok(output),
        }
    }

    /// Releases all, in the reverse order, and waits for the store's answers.
    ///
    /// # Errors
    ///
    /// The first failure, as [`Guard::release`]; the others are released all the same.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once called, all are released in the background if this future is dropped.
    pub async fn release(mut self) -> Result<()> {
        let mut outcome = Ok(());
        while let Some(guard) = self.guards.pop() {
            outcome = outcome.and(guard.release().await);
        }
        outcome
    }
}

/// The first of the leases that is lost, by its place among them, and the reason.
///
/// # Cancel safety
///
/// Cancel safe: a later call resolves at once if a lease was lost meanwhile.
pub(crate) async fn first_lost<'g>(guards: impl Iterator<Item = &'g Guard>) -> (usize, Loss) {
    let watch = |guard| -> Pin<Box<dyn Future<Output = Loss> + Send + 'g>> { Box::pin(Guard::lost(guard)) };
    let mut watched: Vec<_> = guards.map(watch).collect();
    poll_fn(|cx| {
        for (index, lost) in watched.iter_mut().enumerate() {
            if let Poll::Ready(loss) = lost.as_mut().poll(cx) {
                return Poll::Ready((index, loss));
            }
        }
        Poll::Pending
    })
    .await
}
