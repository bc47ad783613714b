//! One owner for several claims.

use std::sync::Arc;

use super::core::Core;
use super::lock::Lock;
use crate::machine::Shape;
use crate::owner::Owner;

/// One owner for several claims: within a session, locks re-enter.
///
/// A claim of an owner that holds the name already is granted at once, past any waiter, in the same or a
/// weaker shape, with the same token; the name is free when the last guard is gone. An upgrade from shared
/// to exclusive, and permits within permits, are refused.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let session = tenure.session();
/// let outer = session.lock("a").acquire().await?;
/// let inner = session.lock("a").acquire().await?;
/// assert_eq!(outer.token(), inner.token());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Session {
    core: Arc<Core>,
    owner: Owner,
    refuse_deadlock: bool,
}

impl Session {
    pub(crate) fn new(core: Arc<Core>, owner: Owner) -> Self {
        Self { core, owner, refuse_deadlock: false }
    }

    /// Refuses an acquire that waits in a deadlock ([`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock), naming the
    /// cycle), instead of letting it wait for ever. Of several in one cycle that asked for this, the one that came
    /// last is refused.
    ///
    /// The store is looked at after one second of waiting, then at doubling pauses of up to a minute: at the names
    /// that somebody waits for, once for all waiting acquires of a client. What [`deadlocks`](crate::deadlocks) cannot
    /// see is not refused. Of a session that several tasks use, one task's wait counts as the session's, also while
    /// another works on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let (one, other) = (tenure.session(), tenure.session().refuse_deadlock());
    /// let (_a, b) = (one.lock("a").acquire().await?, other.lock("b").acquire().await?);
    /// let waits = tokio::spawn(async move { one.lock("b").acquire().await });
    /// let refused = other.lock("a").acquire().await.unwrap_err();
    /// assert_eq!(refused.kind(), tenure::ErrorKind::Deadlock);
    /// b.release().await?; // what it held, so that the other goes on
    /// waits.await.unwrap()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn refuse_deadlock(mut self) -> Self {
        self.refuse_deadlock = true;
        self
    }

    /// The session's owner: pass it to another process to re-enter there
    /// ([`Tenure::session_as`](crate::Tenure::session_as)).
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// A mutex of this session.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.claim(name, Shape::Exclusive)
    }

    /// A read-write lock of this session.
    pub fn rwlock(&self, name: impl AsRef<str>) -> crate::RwLock {
        crate::RwLock::new(self.claim(&name, Shape::Shared), self.claim(&name, Shape::Exclusive))
    }

    /// A semaphore of this session.
    pub fn semaphore(&self, name: impl AsRef<str>, permits: u32) -> Lock {
        self.claim(name, Shape::Permits { units: 1, of: permits })
    }

    /// Several mutexes of this session, held together or not at all. One that it holds already is entered once more.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> crate::MultiLock {
        crate::MultiLock::new(names, |name| self.lock(name))
    }

    fn claim(&self, name: impl AsRef<str>, shape: Shape) -> Lock {
        let lock = Lock::new(&self.core, name.as_ref(), shape, Some(self.owner.clone()));
        lock.refuse_deadlock(self.refuse_deadlock)
    }
}
