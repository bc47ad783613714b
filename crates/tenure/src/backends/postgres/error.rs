//! What PostgreSQL's refusals mean to a user.

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Certainty, Error, ErrorKind, with_causes};

/// Whether the statement or transaction was undone because of somebody else's, and may be tried again.
pub(super) fn is_collision(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED))
}

/// Whether the statement was undone because somebody else had something locked for long.
pub(super) fn is_held_up(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE)
}

/// Whether a pooler between us and the server mixed up prepared statements: it ran none of this.
pub(super) fn is_lost_statement(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::INVALID_SQL_STATEMENT_NAME | &SqlState::DUPLICATE_PSTATEMENT))
}

/// Whether a table was changed since the statement was prepared: it ran nothing.
pub(super) fn is_stale_statement(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::FEATURE_NOT_SUPPORTED)
        && error.as_db_error().is_some_and(|told| told.routine() == Some("RevalidateCachedQuery"))
}

/// Whether a server said it, and not the way to it.
pub(super) fn is_answer(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some() || takes_no_writes(error) || is_handshake(error)
}

/// Whether a server has no TLS, where the URL insists on it.
pub(super) fn has_no_tls(error: &tokio_postgres::Error) -> bool {
    with_causes(error).contains("server does not support TLS")
}

/// Whether TLS failed, on either side.
pub(super) fn is_handshake(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_none() && error.to_string().contains("TLS handshake")
}

/// Whether nobody gets in this way, whatever the password: with TLS, without it, or from there. Poolers say it by a
/// code of their own.
pub(super) fn is_turned_away(error: &tokio_postgres::Error) -> bool {
    let by_pooler = |told: &DbError| told.code().code() == "08P01" && told.message().contains("SSL required");
    error.as_db_error().is_some_and(|told| {
        let by_server = told.code() == &SqlState::INVALID_AUTHORIZATION_SPECIFICATION;
        (by_server && told.routine() == Some("ClientAuthentication")) || by_pooler(told)
    })
}

/// What is said of a server that answers and is a standby.
fn takes_no_writes(error: &tokio_postgres::Error) -> bool {
    with_causes(error).contains("does not allow writes")
}

/// Whether too much is waiting to be heard by somebody who does not listen.
pub(super) fn is_full(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::PROGRAM_LIMIT_EXCEEDED)
}

/// Whether the tables are not there.
pub(super) fn is_missing_table(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME))
}

/// Whether the user lacks a right.
pub(super) fn is_denied(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE)
}

/// Whether this server takes no writes (any more).
pub(super) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Whether it is about the connection, of which a pooler speaks like this too: the server may have done what was asked.
fn is_of_the_connection(told: &DbError) -> bool {
    let ends_it = matches!(told.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
        && told.code() != &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT;
    ends_it || told.code().code().starts_with("08")
}

/// Translates an error of a statement. What the server refused was not applied; what it did not answer may have been.
pub(super) fn of_statement(error: tokio_postgres::Error) -> Error {
    let refused = error.as_db_error().is_some_and(|told| !is_of_the_connection(told));
    let certainty = if refused { Certainty::NotApplied } else { Certainty::Unknown };
    translate(error).with_certainty(certainty)
}

/// Translates an error from before anything was asked.
pub(super) fn of_connecting(error: tokio_postgres::Error) -> Error {
    translate(error).with_certainty(Certainty::NotApplied)
}

pub(super) fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::NotApplied)
}

pub(super) fn no_answer() -> Error {
    Error::new(ErrorKind::Unavailable, "no answer from PostgreSQL").with_certainty(Certainty::Unknown)
}

fn translate(error: tokio_postgres::Error) -> Error {
    let Some(told) = error.as_db_error() else {
        if with_causes(&error).contains("password missing") {
            return Error::new(
                ErrorKind::Denied,
                "PostgreSQL wants a password: write postgres://USER:PASSWORD@HOST/DATABASE",
            );
        }
        let message = if takes_no_writes(&error) {
            "no server takes writes: only a standby answers, or one with default_transaction_read_only, which take no locks"
        } else {
            "the connection to PostgreSQL failed"
        };
        return Error::new(ErrorKind::Unavailable, message).because(with_causes(&error));
    };
    let (kind, message) = match told.code() {
        &SqlState::READ_ONLY_SQL_TRANSACTION => {
            (ErrorKind::Unavailable, "this PostgreSQL is a standby: only the primary takes locks")
        }
        &SqlState::INVALID_AUTHORIZATION_SPECIFICATION if told.message().contains("client certificate") => {
            (ErrorKind::Denied, "PostgreSQL wants a certificate of this user: name one by sslcert=FILE&sslkey=FILE")
        }
        &SqlState::INVALID_PASSWORD | &SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            (ErrorKind::Denied, "PostgreSQL refused the user or password")
        }
        &SqlState::INSUFFICIENT_PRIVILEGE => {
            (ErrorKind::Denied, "the user lacks a right: GRANT it what docs/backends/postgres.md lists")
        }
        &SqlState::INVALID_CATALOG_NAME => (ErrorKind::Store, "there is no such database"),
        &SqlState::DISK_FULL => (ErrorKind::Store, "the disk of PostgreSQL is full"),
        &SqlState::TOO_MANY_CONNECTIONS => (
            ErrorKind::Unavailable,
            "PostgreSQL has no connection left (max_connections, or the limit of the role or database)",
        ),
        &SqlState::CANNOT_CONNECT_NOW => (ErrorKind::Unavailable, "PostgreSQL is starting or stopping"),
        &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN => (ErrorKind::Unavailable, "PostgreSQL is stopping"),
        &SqlState::LOCK_NOT_AVAILABLE => (
            ErrorKind::Unavailable,
            "the name's row stays locked: by another transaction, or by a commit that waits for a standby (`tenure doctor` tells)",
        ),
        &SqlState::QUERY_CANCELED => {
            (ErrorKind::Unavailable, "PostgreSQL cancelled a statement (statement_timeout, or by hand)")
        }
        &SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT => {
            (ErrorKind::Unavailable, "PostgreSQL ended a transaction of this client's that stood still")
        }
        &SqlState::PROGRAM_LIMIT_EXCEEDED => (
            ErrorKind::Store,
            "PostgreSQL is at a limit: a client that listens and does not read may hold notifications up",
        ),
        &SqlState::UNDEFINED_TABLE | &SqlState::INVALID_SCHEMA_NAME | &SqlState::UNDEFINED_COLUMN => {
            (ErrorKind::Store, "tenure's tables are not there, or not as they were made")
        }
        &SqlState::T_R_SERIALIZATION_FAILURE | &SqlState::T_R_DEADLOCK_DETECTED => {
            (ErrorKind::Unavailable, "other transactions were in the way again and again")
        }
        // A pooler's way to say it.
        code if code.code() == "08P01" && told.message().contains("authentication failed") => {
            (ErrorKind::Denied, "PostgreSQL refused the user or password")
        }
        code if code.code().starts_with("08") => (ErrorKind::Unavailable, "the connection to PostgreSQL failed"),
        // Out of something, or told to stop: it may be otherwise in a moment.
        code if matches!(code.code().get(..2), Some("53" | "57")) => {
            (ErrorKind::Unavailable, "PostgreSQL cannot do it at the moment")
        }
        // Whatever ends a connection that had begun, or a pooler's way to say so; but not what the URL asks for in
        // vain.
        code if is_of_the_connection(told) && !matches!(code.code().get(..2), Some("0A" | "22" | "42")) => {
            (ErrorKind::Unavailable, "PostgreSQL ended the connection")
        }
        _ => (ErrorKind::Store, "PostgreSQL refused"),
    };
    Error::new(kind, message).because(with_causes(&error))
}
