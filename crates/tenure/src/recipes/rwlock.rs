//! Many readers, or one writer.

use crate::engine::{Guard, Lock};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::machine::Shape;

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

    /// Makes a reader of a writer, without a gap in which another writer could come: readers who wait are let in,
    /// writers wait on. For a writer of a session ([`Session::rwlock`](crate::Session::rwlock)), as it re-enters what
    /// it holds. The other way, from reader to writer, is refused: two readers that did so would wait for each other
    /// for ever.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// let tenure = tenure::Tenure::connect("memory:").await?;
    /// let table = tenure.session().rwlock("table");
    /// let writer = table.write().acquire().await?;
    /// let reader = table.downgrade(writer).await?; // what it wrote is still as it was
    /// assert!(tenure.rwlock("table").read().try_acquire().await?.is_some());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if the guard is no writer of this lock and its session, [`ErrorKind::Lost`] if it was
    /// lost; store errors. Nothing is held then.
    ///
    /// # Cancel safety
    ///
    /// Cancelling releases the lock: in the background, or by its ttl.
    pub async fn downgrade(&self, writer: Guard) -> Result<Guard> {
        if writer.shape() != Shape::Exclusive || !self.read.is_of_session(&writer) {
            let message = "only a writer of this lock and session becomes a reader: take it by session().rwlock(name)";
            return Err(Error::new(ErrorKind::Invalid, message).at(Step::Acquire).about(writer.name()));
        }
        // Re-entered first, so that the name is never free.
        let reader = self.read.clone().reenter(writer.term()).acquire().await?;
        match writer.release().await {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            // What was not confirmed goes on in the background: until then the name stays exclusively its own.
            _ => Ok(reader),
        }
    }
}
