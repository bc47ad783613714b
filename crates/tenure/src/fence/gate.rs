//! The fence for resources within the process.

use std::borrow::Cow;
use std::sync::{Mutex, PoisonError};

use super::carried::Fence;
use super::rule::{Accepted, Refused, accept};
use crate::engine::Guard;
use crate::observe::fence_refused;

/// A resource that only the newest holder of a lock may touch.
///
/// Check and effect are one step: the work runs while the gate is locked. What is accepted is said at [`Fence`].
///
/// Permits limit load, they do not order writes: a semaphore's guard is refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::fence::Gate;
///
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let stock = Gate::new(10);
///
/// let first = tenure.lock("stock").acquire().await?;
/// stock.write(&first, |stock| *stock -= 1)?;
///
/// tenure.break_holders("stock", None, "demonstration").await?;
/// let second = tenure.lock("stock").acquire().await?;
/// stock.write(&second, |stock| *stock -= 1)?;
///
/// // The first holder is late, and is refused.
/// assert!(stock.write(&first, |stock| *stock -= 1).is_err());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Gate<T> {
    /// What metrics call it.
    name: Cow<'static, str>,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    resource: T,
    accepted: Accepted,
}

impl<T> Gate<T> {
    /// Puts a resource behind a gate.
    pub fn new(resource: T) -> Self {
        let inner = Mutex::new(Inner { resource, accepted: Accepted::default() });
        Self { name: "gate".into(), inner }
    }

    /// What metrics call it: the label `resource` of `tenure_fence_refused_total`. `gate` by default.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    fn accept(&self, accepted: &Accepted, fence: &Fence) -> Result<Accepted, Refused> {
        accept(accepted, fence).inspect_err(|_| fence_refused(self.name.clone()))
    }

    /// Works on the resource under an exclusive lock.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer holder has been here, or the lock orders no such operation. The work did not run.
    pub fn write<R>(&self, guard: &Guard, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        self.write_as(&guard.fence()?, work)
    }

    /// Looks at the resource under an exclusive or a shared lock.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer writer has been here, or the lock orders no such operation. The work did not run.
    pub fn read<R>(&self, guard: &Guard, work: impl FnOnce(&T) -> R) -> Result<R, Refused> {
        self.read_as(&guard.fence()?, work)
    }

    /// As [`write`](Self::write), for a fence that came over the wire.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer holder has been here, or the fence is a reader's. The work did not run.
    pub fn write_as<R>(&self, fence: &Fence, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        let fence = fence.writer()?;
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.accepted = self.accept(&inner.accepted, fence)?;
        Ok(work(&mut inner.resource))
    }

    /// As [`read`](Self::read), for a fence that came over the wire.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer writer has been here. The work did not run.
    pub fn read_as<R>(&self, fence: &Fence, work: impl FnOnce(&T) -> R) -> Result<R, Refused> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.accepted = self.accept(&inner.accepted, fence)?;
        Ok(work(&inner.resource))
    }

    /// Whether an operation would be refused by now. It may still be refused later: only [`write`](Self::write) and
    /// [`read`](Self::read) check and work in one step.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer holder has been here.
    pub fn look(&self, fence: &Fence) -> Result<(), Refused> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.accept(&inner.accepted, fence).map(drop)
    }

    /// Takes the resource back.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).resource
    }
}
