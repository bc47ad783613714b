//! What a lock library must be able to do to be measured.

/// Whatever went wrong in a library.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A lock library, connected to its store. Clones share the connection.
pub trait Locker: Clone + Send + Sync + 'static {
    /// What shows that a lock is held. If it is dropped instead of released, the library does what it does then.
    type Held: Send + 'static;

    /// Waits for the lock of this name, for ever.
    ///
    /// # Errors
    ///
    /// Whatever the library reports, but not that somebody else holds it.
    fn acquire(&self, name: &str) -> impl Future<Output = Result<Self::Held, BoxError>> + Send;

    /// Gives a lock back, and returns once the store has confirmed it.
    ///
    /// # Errors
    ///
    /// Whatever the library reports.
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), BoxError>> + Send;

    /// Whether it is still held; true if the library cannot tell.
    fn is_held(&self, held: &Self::Held) -> bool;
}
