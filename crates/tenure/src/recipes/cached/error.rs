//! Why there is no value.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// Why [`Tenure::cached`](crate::Tenure::cached) has no value. All callers of a client that waited for the same
/// computation share one error, so it is behind an [`Arc`].
pub enum CachedError<E> {
    /// The value could not be computed: this is what `compute` returned, here or for another caller of this client.
    Compute(Arc<E>),
    /// The store could not be asked, or refused: nothing was computed.
    Store(Arc<Error>),
}

impl<E> CachedError<E> {
    /// What kind of error the store's is; `None` if it was the computation that failed.
    pub fn kind(&self) -> Option<ErrorKind> {
        match self {
            Self::Compute(_) => None,
            Self::Store(error) => Some(error.kind()),
        }
    }
}

impl<E> Clone for CachedError<E> {
    fn clone(&self) -> Self {
        match self {
            Self::Compute(error) => Self::Compute(error.clone()),
            Self::Store(error) => Self::Store(error.clone()),
        }
    }
}

impl<E> From<Error> for CachedError<E> {
    fn from(error: Error) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl<E: fmt::Debug> fmt::Debug for CachedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(error) => f.debug_tuple("Compute").field(error).finish(),
            Self::Store(error) => f.debug_tuple("Store").field(error).finish(),
        }
    }
}

impl<E: fmt::Display> fmt::Display for CachedError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compute(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl<E: StdError> StdError for CachedError<E> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Compute(error) => error.source(),
            Self::Store(error) => error.source(),
        }
    }
}
