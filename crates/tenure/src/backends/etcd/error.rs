//! What etcd's refusals mean to a user.

use tonic::{Code, Status};

use crate::error::{Certainty, Error, ErrorKind, with_causes};

/// Whether the lease that a request names is gone.
pub(super) fn is_missing_lease(status: &Status) -> bool {
    status.code() == Code::NotFound && status.message().contains("lease not found")
}

/// Whether the login has run out, and a new one may be taken.
pub(super) fn is_stale_login(status: &Status) -> bool {
    let told = status.message();
    (status.code() == Code::Unauthenticated && told.contains("invalid auth token"))
        || told.contains("revision of auth store is old")
}

/// Whether another member may answer where this one did not.
pub(super) fn is_of_the_member(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal
    )
}

/// Translates a refusal, or that there was no answer.
pub(super) fn translate(status: &Status) -> Error {
    let told = status.message();
    let (kind, message, certainty) = match status.code() {
        Code::Unauthenticated => (ErrorKind::Denied, "etcd refused the user or password", Certainty::NotApplied),
        Code::PermissionDenied => (
            ErrorKind::Denied,
            "the user lacks a right: it needs reading and writing on the prefix that ?prefix= names (docs/backends/etcd.md)",
            Certainty::NotApplied,
        ),
        Code::InvalidArgument if told.contains("user name is empty") => {
            (ErrorKind::Denied, "etcd wants a login: write etcd://USER:PASSWORD@HOST", Certainty::NotApplied)
        }
        Code::InvalidArgument if told.contains("authentication failed") => {
            (ErrorKind::Denied, "etcd refused the user or password", Certainty::NotApplied)
        }
        Code::FailedPrecondition if told.contains("authentication is not enabled") => {
            (ErrorKind::Denied, "etcd takes no logins: leave USER:PASSWORD@ out", Certainty::NotApplied)
        }
        Code::ResourceExhausted if told.contains("space") => (
            ErrorKind::Store,
            "etcd has no space left: compact, defragment and disarm its alarm",
            Certainty::NotApplied,
        ),
        Code::ResourceExhausted => (ErrorKind::Unavailable, "etcd has too much to do", Certainty::NotApplied),
        Code::Unavailable if told.contains("no leader") => {
            (ErrorKind::Unavailable, "etcd has no leader: too few members reach each other", Certainty::NotApplied)
        }
        code if is_of_the_member(&Status::new(code, "")) => {
            (ErrorKind::Unavailable, "no answer from etcd", Certainty::Unknown)
        }
        _ => (ErrorKind::Store, "etcd refused", Certainty::Unknown),
    };
    Error::new(kind, message).with_certainty(certainty).because(in_words(status))
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer from etcd").with_certainty(Certainty::Unknown)
}

/// An answer that does not fit its question.
pub(super) fn odd() -> Error {
    Error::new(ErrorKind::Store, "etcd's answer cannot be understood")
}

/// A connection that cannot be used.
pub(super) fn unconnected(error: &tonic::transport::Error) -> Status {
    // Made into a status by the library, it would lose its causes.
    Status::unavailable(with_causes(error))
}

/// What was told, and its causes.
pub(super) fn in_words(status: &Status) -> String {
    let message = if status.message().is_empty() { status.code().description() } else { status.message() };
    match std::error::Error::source(status).map(with_causes) {
        Some(causes) if causes.starts_with(message) => causes,
        Some(causes) => format!("{message}: {causes}"),
        None => message.to_owned(),
    }
}
