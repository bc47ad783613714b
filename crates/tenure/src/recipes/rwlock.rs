//! Many readers, or one writer.

use crate::engine::Lock;

/// A read-write lock: many readers, or one writer, in the order they came, so neither starves.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let table = tenure.rwlock("table");
/// let one = table.read().acquire().await?;
/// let two = table.read().acquire().await?;
/// assert!(table.write().try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    read: Lock,
    write: Lock,
}

impl RwLock {
    pub(crate) fn new(read: Lock, write: Lock) -> Self {
        Self { read, write }
    }

    /// The reader's side: shared with other readers.
    pub fn read(&self) -> Lock {
        self.read.clone()
    }

    /// The writer's side: exclusive, the same as [`Tenure::lock`](crate::Tenure::lock) of this name.
    pub fn write(&self) -> Lock {
        self.write.clone()
    }
}
