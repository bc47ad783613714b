//! Many readers, or one writer.

use std::sync::Arc;

use super::background::Background;
use super::guard::Guard;
use super::lock::Lock;
use crate::error::Result;

/// A read-write lock: many readers, or one writer, in the order they came.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let table = tenure.rwlock("table");
/// let one = table.read().acquire()?;
/// let two = table.read().acquire()?;
/// assert!(table.write().try_acquire()?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    inner: crate::RwLock,
    background: Arc<Background>,
}

impl RwLock {
    pub(super) fn new(inner: crate::RwLock, background: &Arc<Background>) -> Self {
        Self { inner, background: background.clone() }
    }

    /// The reader's side: shared with other readers.
    pub fn read(&self) -> Lock {
        Lock::new(self.inner.read(), &self.background)
    }

    /// The writer's side: exclusive.
    pub fn write(&self) -> Lock {
        Lock::new(self.inner.write(), &self.background)
    }

    /// Makes a reader of a writer of a session, without a gap in which another writer could come.
    ///
    /// # Errors
    ///
    /// As [`RwLock::downgrade`](crate::RwLock::downgrade).
    pub fn downgrade(&self, writer: Guard) -> Result<Guard> {
        let reader = self.background.wait(self.inner.downgrade(writer.inner))?;
        Ok(Guard::new(reader, &self.background))
    }
}
