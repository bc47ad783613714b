//! The fence for rows in SQLite.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use rusqlite::TransactionBehavior::Immediate;
//! use tenure::fence::{sql, sqlite};
//!
//! let mut database = rusqlite::Connection::open_in_memory()?;
//! database.execute_batch(sql::TABLE)?;
//! database.execute_batch("CREATE TABLE stock (id INTEGER PRIMARY KEY, left_over INTEGER)")?;
//!
//! let tenure = tenure::Tenure::connect("memory:").await?;
//! let guard = tenure.lock("stock/42").acquire().await?;
//!
//! let transaction = database.transaction_with_behavior(Immediate)?;
//! let sell = "UPDATE stock SET left_over = left_over - 1 WHERE id = ?1";
//! sqlite::update(&transaction, "stock/42", &guard.fence()?, sell, [42])?;
//! transaction.commit()?;
//! # Ok(()) }
//! ```
//!
//! A refused operation changes nothing; roll back what else the transaction did. A transaction that is not `IMMEDIATE`
//! and has read before it asks may fail with `SQLITE_BUSY`.

use rusqlite::{Connection, Error, OptionalExtension as _, Params, Transaction};

use super::rule::stale;
use super::sql::statements;
use super::{Failure, Fence};
use crate::token::Token;

/// Lets an exclusive holder write to `resource` in this transaction.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer holder has been there or the fence is a reader's. [`Failure::Store`] if SQLite
/// failed.
pub fn write(transaction: &Transaction<'_>, resource: &str, fence: &Fence) -> Result<(), Failure<Error>> {
    read(transaction, resource, fence.writer()?)
}

/// Lets a holder read `resource` in this transaction. Commit before you act on what was read: only then are older
/// writers kept out.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer writer has been there. [`Failure::Store`] if SQLite failed.
pub fn read(transaction: &Transaction<'_>, resource: &str, fence: &Fence) -> Result<(), Failure<Error>> {
    let (accept, look) = statements(fence);
    if ask(transaction, accept, resource, fence)?.is_some() {
        return Ok(());
    }
    // What stands against it cannot have changed: this transaction has locked it.
    let newer = ask(transaction, look, resource, fence)?;
    Err(stale(resource, fence, newer.unwrap_or(fence.token())))
}

/// Runs a statement that writes to `resource`, if the holder may, and answers how many rows it changed.
///
/// # Errors
///
/// As [`write()`]. The statement did not run if it was refused.
pub fn update(
    transaction: &Transaction<'_>,
    resource: &str,
    fence: &Fence,
    statement: &str,
    params: impl Params,
) -> Result<usize, Failure<Error>> {
    write(transaction, resource, fence)?;
    transaction.execute(statement, params).map_err(Failure::Store)
}

/// Whether an operation would be refused by now, to refuse it early. It may still be refused later: only [`write()`]
/// and [`read`], in the transaction of the effect, protect the resource.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer holder has been there. [`Failure::Store`] if SQLite failed.
pub fn look(connection: &Connection, resource: &str, fence: &Fence) -> Result<(), Failure<Error>> {
    match ask(connection, statements(fence).1, resource, fence)? {
        Some(newer) => Err(stale(resource, fence, newer)),
        None => Ok(()),
    }
}

fn ask(
    connection: &Connection,
    statement: &str,
    resource: &str,
    fence: &Fence,
) -> Result<Option<Token>, Failure<Error>> {
    let params = (resource, fence.token().get().cast_signed(), fence.owner().to_string());
    let mut statement = connection.prepare_cached(statement).map_err(Failure::Store)?;
    let token = statement.query_row(params, |row| row.get::<_, i64>(0)).optional().map_err(Failure::Store)?;
    Ok(token.map(|token| Token(token.cast_unsigned())))
}
