//! PURE: which operations a resource accepts. Statements and scripts say the same in their languages, and one table of
//! cases is tried against all of them.

use std::fmt;

use super::carried::{Fence, OwnerHash};
use crate::machine::Shape;
use crate::token::Token;

/// A holder's token, and whose it is.
type Mark = (Token, OwnerHash);

/// What a resource keeps of the operations that it has accepted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accepted {
    /// The highest token.
    highest: Option<Mark>,
    /// The highest token of an exclusive holder.
    writer: Option<Mark>,
}

/// What is kept once this operation is accepted.
pub(super) fn accept(accepted: &Accepted, fence: &Fence) -> Result<Accepted, Refused> {
    let shared = fence.shape() == Shape::Shared;
    let (token, owner) = (fence.token(), fence.owner());
    match if shared { accepted.writer } else { accepted.highest } {
        // An equal token of another owner was repeated after a loss of data: two holders' writes must not mix.
        Some((newer, holder)) if token < newer || (token == newer && owner != holder) => {
            Err(Refused::Stale { token, newer })
        }
        _ if !shared => Ok(Accepted { highest: Some((token, owner)), writer: Some((token, owner)) }),
        _ => {
            let highest = accepted.highest.filter(|(highest, _)| *highest >= token);
            Ok(Accepted { highest: highest.or(Some((token, owner))), ..*accepted })
        }
    }
}

/// The refusal of an operation at a resource in a store, counted.
#[cfg(any(feature = "fence-postgres", feature = "fence-redis", feature = "fence-sqlite"))]
pub(super) fn stale<E>(resource: &str, fence: &Fence, newer: Token) -> Failure<E> {
    crate::observe::fence_refused_at(resource);
    Failure::Refused(Refused::Stale { token: fence.token(), newer })
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
    /// The token is above 2⁶³ - 1, which databases cannot keep. No store grants such a token.
    TokenTooLarge(Token),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stale { token, newer } => write!(f, "token {token} is stale: {newer} has been accepted"),
            Self::NoToken => f.write_str("the lock has no fencing token"),
            Self::Shape(shape) => write!(f, "a lock that is held {shape} does not order this operation"),
            Self::TokenTooLarge(token) => write!(f, "token {token} is above {}: no store grants it", i64::MAX),
        }
    }
}

impl std::error::Error for Refused {}

/// Why an operation at a resource in a store did not happen.
#[derive(Debug)]
pub enum Failure<E> {
    /// The resource refused it.
    Refused(Refused),
    /// The store failed. Whether the operation happened is for its transaction to say.
    Store(E),
}

impl<E> From<Refused> for Failure<E> {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl<E: fmt::Display> fmt::Display for Failure<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refused) => refused.fmt(f),
            Self::Store(error) => write!(f, "the resource's store failed: {error}"),
        }
    }
}

impl<E: std::error::Error + 'static> std::error::Error for Failure<E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(refused) => Some(refused),
            Self::Store(error) => Some(error),
        }
    }
}
