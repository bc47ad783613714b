//! The fence for resources within the process.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::engine::Guard;
use crate::machine::Shape;
use crate::observe::fence_refused;
use crate::owner::Owner;
use crate::token::Token;

/// A resource that only the newest holder of a lock may touch.
///
/// Check and effect are one step: the work runs while the gate is locked. An operation of a writer is
/// accepted if its token is above the highest accepted one, or equal with the same owner (a token that was
/// repeated after a loss of data cannot mix two holders' writes). A reader is accepted if its token is above
/// the highest *writer's* token accepted, or equal with the same owner.
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
    /// The highest token accepted, and of whom.
    highest: Option<(Token, Owner)>,
    /// The highest writer's token accepted, and of whom.
    highest_writer: Option<(Token, Owner)>,
}

/// Why an operation was refused. It did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// A newer holder has been there.
    Stale {
        /// The token of the operation.
        token: Token,
        /// The token that stands against it.
        newer: Token,
    },
    /// The lock's store has no tokens.
    NoToken,
    /// A lock of this shape does not order this operation: permits order nothing, a shared lock no writes.
    Shape(Shape),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { token, newer } => write!(f, "token {token} is stale: {newer} has been accepted"),
            Self::NoToken => f.write_str("the lock has no fencing token"),
            Self::Shape(shape) => write!(f, "a lock that is held {shape} does not order this operation"),
        }
    }
}

impl std::error::Error for Refused {}

impl<T> Gate<T> {
    /// Puts a resource behind a gate.
    pub fn new(resource: T) -> Self {
        let inner = Mutex::new(Inner { resource, highest: None, highest_writer: None });
        Self { name: "gate".into(), inner }
    }

    /// What metrics call it: the label `resource` of `tenure_fence_refused_total`. `gate` by default.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.name = name.into();
        self
    }

    fn accept(&self, highest: Option<&(Token, Owner)>, token: Token, owner: &Owner) -> Result<(), Refused> {
        match highest {
            Some((newer, holder)) if token < *newer || (token == *newer && owner != holder) => {
                fence_refused(self.name.clone());
                Err(Refused::Stale { token, newer: *newer })
            }
            _ => Ok(()),
        }
    }

    /// Works on the resource under an exclusive lock.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer holder has been here, or the lock orders no such operation. The work did not run.
    pub fn write<R>(&self, guard: &Guard, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        let (token, owner) = parts(guard, &[Shape::Exclusive])?;
        self.write_as(token, owner, work)
    }

    /// Looks at the resource under a shared lock.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer writer has been here, or the lock orders no such operation. The work did not run.
    pub fn read<R>(&self, guard: &Guard, work: impl FnOnce(&T) -> R) -> Result<R, Refused> {
        let (token, owner) = parts(guard, &[Shape::Exclusive, Shape::Shared])?;
        self.read_as(token, owner, work)
    }

    /// As [`write`](Self::write), for a token that came over the wire.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer holder has been here. The work did not run.
    pub fn write_as<R>(&self, token: Token, owner: &Owner, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.accept(inner.highest.as_ref(), token, owner)?;
        inner.highest = Some((token, owner.clone()));
        inner.highest_writer = Some((token, owner.clone()));
        Ok(work(&mut inner.resource))
    }

    /// As [`read`](Self::read), for a token that came over the wire.
    ///
    /// # Errors
    ///
    /// [`Refused`] if a newer writer has been here. The work did not run.
    pub fn read_as<R>(&self, token: Token, owner: &Owner, work: impl FnOnce(&T) -> R) -> Result<R, Refused> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        self.accept(inner.highest_writer.as_ref(), token, owner)?;
        if inner.highest.as_ref().is_none_or(|(highest, _)| *highest < token) {
            inner.highest = Some((token, owner.clone()));
        }
        Ok(work(&inner.resource))
    }

    /// Takes the resource back.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner).resource
    }
}

fn parts<'a>(guard: &'a Guard, shapes: &[Shape]) -> Result<(Token, &'a Owner), Refused> {
    if !shapes.contains(&guard.shape()) {
        return Err(Refused::Shape(guard.shape()));
    }
    let token = guard.token().ok_or(Refused::NoToken)?;
    Ok((token, guard.owner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners() -> (Owner, Owner) {
        (Owner::new("a").unwrap(), Owner::new("b").unwrap())
    }

    #[test]
    fn a_writer_is_accepted_above_the_highest_or_equal_with_the_same_owner() {
        let (a, b) = owners();
        let gate = Gate::new(());
        assert!(gate.write_as(Token(5), &a, |()| ()).is_ok());
        assert!(gate.write_as(Token(5), &a, |()| ()).is_ok());
        assert!(gate.write_as(Token(5), &b, |()| ()).is_err(), "an equal token of another owner");
        assert!(gate.write_as(Token(4), &a, |()| ()).is_err());
        assert!(gate.write_as(Token(6), &b, |()| ()).is_ok());
    }

    #[test]
    fn a_reader_is_measured_against_writers_only_and_holds_older_writers_off() {
        let (a, b) = owners();
        let gate = Gate::new(());
        assert!(gate.write_as(Token(5), &a, |()| ()).is_ok());
        assert!(gate.read_as(Token(8), &a, |()| ()).is_ok());
        assert!(gate.read_as(Token(7), &b, |()| ()).is_ok(), "readers do not order each other");
        assert!(gate.read_as(Token(4), &b, |()| ()).is_err());
        assert!(gate.write_as(Token(6), &b, |()| ()).is_err(), "a writer older than a reader that was here");
    }
}
