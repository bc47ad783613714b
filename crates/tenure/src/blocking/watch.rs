//! What changes, as an iterator.

use std::sync::Arc;
use std::time::Duration;

use super::background::Background;
use crate::error::Result;
use crate::machine::NameView;
use crate::watch::Change;

/// What changes among the names with a prefix: an iterator that waits for the next change and never ends. Made by
/// [`Tenure::watch`](super::Tenure::watch).
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// use std::time::Duration;
///
/// let tenure = tenure::blocking::Tenure::connect("memory:")?;
/// let watch = tenure.watch("orders/").every(Duration::from_millis(50)).from_empty();
/// let guard = tenure.lock("orders/42").acquire()?;
/// for change in watch.take(1) {
///     println!("{:?}", change?); // granted
/// }
/// # drop(guard);
/// # Ok(()) }
/// ```
///
/// An item is an error if the store could not be looked at; the next one looks again, after the interval.
#[derive(Debug)]
pub struct Watch {
    inner: crate::Watch,
    background: Arc<Background>,
}

impl Watch {
    pub(super) fn new(inner: crate::Watch, background: &Arc<Background>) -> Self {
        Self { inner, background: background.clone() }
    }

    /// As [`Watch::every`](crate::Watch::every).
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        Self { inner: self.inner.every(interval), ..self }
    }

    /// As [`Watch::from_empty`](crate::Watch::from_empty).
    #[must_use]
    pub fn from_empty(self) -> Self {
        Self { inner: self.inner.from_empty(), ..self }
    }

    /// How far apart two looks are.
    pub fn interval(&self) -> Duration {
        self.inner.interval()
    }

    /// The names in use, as the last look saw them, in byte order.
    pub fn names(&self) -> &[NameView] {
        self.inner.names()
    }

    /// The changes that looks have brought and that nobody has asked for yet, in order. Does not wait.
    pub fn changes(&mut self) -> impl Iterator<Item = Change> + '_ {
        self.inner.changes()
    }

    /// Whether there were more names than the last look read.
    pub fn is_cut(&self) -> bool {
        self.inner.is_cut()
    }

    /// Looks once, when it is time, and answers how many changes there are.
    ///
    /// # Errors
    ///
    /// As [`Watch::look`](crate::Watch::look). [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) in async code.
    pub fn look(&mut self) -> Result<usize> {
        self.background.wait(self.inner.look())
    }
}

impl Iterator for Watch {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Result<Change>> {
        Some(self.background.wait(self.inner.next()))
    }
}
