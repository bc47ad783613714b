//! What SQLite's refusals mean to a user.

use rusqlite::ErrorCode;

use crate::error::{Certainty, Error, ErrorKind};
use crate::machine::Unreadable;

/// Translates an error of a statement that ran before the commit: nothing of it was applied.
pub(super) fn before_commit(error: rusqlite::Error) -> Error {
    translate(error).with_certainty(Certainty::NotApplied)
}

/// Translates an error of the commit itself: it was rolled back only where SQLite says so.
pub(super) fn at_commit(error: rusqlite::Error) -> Error {
    let rolled_back = matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DiskFull));
    let certainty = if rolled_back { Certainty::NotApplied } else { Certainty::Unknown };
    translate(error).with_certainty(certainty)
}

fn translate(error: rusqlite::Error) -> Error {
    let (kind, message) = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => (
            ErrorKind::Unavailable,
            "another process has kept the store busy for too long; is one stopped in the middle of a write?",
        ),
        Some(ErrorCode::DiskFull) => (ErrorKind::Store, "the disk is full; free some space"),
        Some(ErrorCode::ReadOnly) => {
            (ErrorKind::Store, "the store is read-only; make the file and its directory writable for this user")
        }
        Some(ErrorCode::NotADatabase) => (ErrorKind::Store, "the file is not a tenure store; name another file"),
        Some(ErrorCode::DatabaseCorrupt) => {
            (ErrorKind::Store, "the file is corrupt; when nothing uses it, move it away and a new one is made")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            (ErrorKind::Store, "the file cannot be opened; check that its directory exists and is writable")
        }
        Some(ErrorCode::SystemIoFailure) => (ErrorKind::Store, "the disk failed"),
        _ => (ErrorKind::Store, "the embedded store failed"),
    };
    // Its own text has it all; the error beneath says the same again.
    Error::new(kind, message).because(error.to_string())
}

/// A row that this version cannot read.
pub(super) fn unreadable(name: &str, error: Unreadable) -> Error {
    Error::new(ErrorKind::Store, format!("the row of {name:?} is damaged"))
        .because(error)
        .with_certainty(Certainty::NotApplied)
}
