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
}

impl Session {
    pub(crate) fn new(core: Arc<Core>, owner: Owner) -> Self {
        Self { core, owner }
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
        Lock::new(&self.core, name.as_ref(), shape, Some(self.owner.clone()))
    }
}
