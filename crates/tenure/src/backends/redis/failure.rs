//! What a server answered, or why it did not.

use redis::{RedisError, Value};
use smallvec::SmallVec;

use super::error::of_command;
use super::url::Address;
use crate::clock::Moment;
use crate::error::Error;

/// One value for each operation of a call; most calls have one.
pub(in crate::backends) type Values = SmallVec<[Value; 1]>;

/// What the server answered: its time, and one value for each operation.
pub(in crate::backends) struct Reply {
    pub(in crate::backends) now: Moment,
    pub(in crate::backends) values: Values,
    /// Whether it may have been done before: it was sent again over another connection.
    pub(in crate::backends) again: bool,
}

/// Why there is no answer.
pub(in crate::backends) struct Failure {
    pub(in crate::backends) error: Error,
    /// Where a cluster has the name instead.
    pub(in crate::backends) redirect: Option<Redirect>,
}

/// What a cluster says of a name that is elsewhere.
#[derive(Clone, Debug)]
pub(in crate::backends) enum Redirect {
    /// It has moved, to here if the server knows the address: look at the whole map again.
    Moved(Option<Address>),
    /// It is moving: for this once, ask there.
    Ask(Address),
    /// It is moving: ask again.
    TryAgain,
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        failure.error
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, redirect: None }
    }
}

impl Failure {
    pub(super) fn of(error: &RedisError) -> Self {
        let address = || error.redirect_node().and_then(|(address, _)| Address::parse(address));
        let redirect = match error.code() {
            Some("MOVED") => Some(Redirect::Moved(address())),
            Some("TRYAGAIN") => Some(Redirect::TryAgain),
            Some("ASK") => address().map(Redirect::Ask),
            _ => None,
        };
        Self { error: of_command(error), redirect }
    }

    pub(super) fn again(&self) -> Self {
        Self { error: self.error.again(), redirect: self.redirect.clone() }
    }
}

pub(super) type Answered = std::result::Result<Reply, Failure>;
