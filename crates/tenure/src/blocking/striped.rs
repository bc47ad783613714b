//! A fixed number of locks for any number of keys.

use std::fmt::Display;
use std::sync::Arc;

use super::background::Background;
use super::lock::Lock;

/// A fixed number of locks for any number of keys. Made by [`Tenure::striped`](super::Tenure::striped).
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let carts = tenure.striped("cart", 64);
/// let guard = carts.of("user-4711").acquire()?;
/// assert!(carts.of("user-4711").try_acquire()?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Striped {
    inner: crate::Striped,
    background: Arc<Background>,
}

impl Striped {
    pub(super) fn new(inner: crate::Striped, background: &Arc<Background>) -> Self {
        Self { inner, background: background.clone() }
    }

    /// The lock of a key, by its text.
    pub fn of(&self, key: impl Display) -> Lock {
        Lock::new(self.inner.of(key), &self.background)
    }
}
