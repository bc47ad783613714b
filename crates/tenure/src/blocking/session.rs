//! One owner for several claims.

use std::sync::Arc;

use super::background::Background;
use super::lock::Lock;
use super::multi::MultiLock;
use super::rwlock::RwLock;
use crate::owner::Owner;

/// One owner for several claims: within a session, locks re-enter.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let session = tenure.session();
/// let outer = session.lock("a").acquire()?;
/// let inner = session.lock("a").acquire()?;
/// assert_eq!(outer.token(), inner.token());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    inner: crate::Session,
    background: Arc<Background>,
}

impl Session {
    pub(super) fn new(inner: crate::Session, background: &Arc<Background>) -> Self {
        Self { inner, background: background.clone() }
    }

    /// Answers [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock) instead of waiting in one.
    #[must_use]
    pub fn refuse_deadlock(self) -> Self {
        Self { inner: self.inner.refuse_deadlock(), ..self }
    }

    /// The session's owner: pass it to another process to re-enter there.
    pub fn owner(&self) -> &Owner {
        self.inner.owner()
    }

    /// A mutex of this session.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.inner.lock(name), &self.background)
    }

    /// A read-write lock of this session.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock::new(self.inner.rwlock(name), &self.background)
    }

    /// A semaphore of this session.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        Lock::new(self.inner.semaphore(name, permits), &self.background)
    }

    /// Several mutexes of this session, held together or not at all.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> MultiLock {
        MultiLock::new(self.inner.lock_all(names), &self.background)
    }
}
