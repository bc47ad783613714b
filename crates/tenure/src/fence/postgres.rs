//! The fence for rows in PostgreSQL.
//!
//! ```no_run
//! # async fn sell(guard: &tenure::Guard, client: &mut tokio_postgres::Client) -> Result<(), Box<dyn
//! std::error::Error>> { use tenure::fence::postgres;
//!
//! let transaction = client.transaction().await?;
//! let sell = "UPDATE stock SET left_over = left_over - 1 WHERE id = $1";
//! postgres::update(&transaction, "stock/42", &guard.fence()?, sell, &[&42]).await?;
//! transaction.commit().await?;
//! # Ok(()) }
//! ```
//!
//! The table is made by [`sql::TABLE`](super::sql::TABLE). A refused operation changes nothing; roll back what else the
//! transaction did.

use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Error, GenericClient, Transaction};

use super::rule::stale;
use super::sql::statements;
use super::{Failure, Fence};
use crate::token::Token;

/// Lets an exclusive holder write to `resource` in this transaction.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer holder has been there or the fence is a reader's. [`Failure::Store`] if PostgreSQL
/// failed.
///
/// # Cancel safety
///
/// Cancel safe: nothing stands before the transaction is committed.
pub async fn write(transaction: &Transaction<'_>, resource: &str, fence: &Fence) -> Result<(), Failure<Error>> {
    read(transaction, resource, fence.writer()?).await
}

/// Lets a holder read `resource` in this transaction. Commit before you act on what was read: only then are older
/// writers kept out.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer writer has been there. [`Failure::Store`] if PostgreSQL failed.
///
/// # Cancel safety
///
/// Cancel safe: nothing stands before the transaction is committed.
pub async fn read(transaction: &Transaction<'_>, resource: &str, fence: &Fence) -> Result<(), Failure<Error>> {
    let (accept, look) = statements(fence);
    if ask(transaction, accept, resource, fence).await?.is_some() {
        return Ok(());
    }
    // What stands against it cannot have changed: this transaction has locked it.
    let newer = ask(transaction, look, resource, fence).await?;
    Err(stale(resource, fence, newer.unwrap_or(fence.token())))
}

/// Runs a statement that writes to `resource`, if the holder may, and answers how many rows it changed.
///
/// # Errors
///
/// As [`write()`]. The statement did not run if it was refused.
///
/// # Cancel safety
///
/// Cancel safe: nothing stands before the transaction is committed.
pub async fn update(
    transaction: &Transaction<'_>,
    resource: &str,
    fence: &Fence,
    statement: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<u64, Failure<Error>> {
    write(transaction, resource, fence).await?;
    transaction.execute(statement, params).await.map_err(Failure::Store)
}

/// Whether an operation would be refused by now, to refuse it early. It may still be refused later: only [`write()`]
/// and [`read`], in the transaction of the effect, protect the resource.
///
/// # Errors
///
/// [`Failure::Refused`] if a newer holder has been there. [`Failure::Store`] if PostgreSQL failed.
///
/// # Cancel safety
///
/// Cancel safe: it only looks.
pub async fn look<C: GenericClient + Sync>(client: &C, resource: &str, fence: &Fence) -> Result<(), Failure<Error>> {
    match ask(client, statements(fence).1, resource, fence).await? {
        Some(newer) => Err(stale(resource, fence, newer)),
        None => Ok(()),
    }
}

/// Runs one of the statements: a single round trip that leaves no prepared statement behind, for poolers.
async fn ask<C: GenericClient + Sync>(
    client: &C,
    statement: &str,
    resource: &str,
    fence: &Fence,
) -> Result<Option<Token>, Failure<Error>> {
    let (token, owner) = (fence.token().get().cast_signed(), fence.owner().to_string());
    let params: [(&(dyn ToSql + Sync), Type); 3] =
        [(&resource, Type::TEXT), (&token, Type::INT8), (&owner, Type::TEXT)];
    let row = client.query_typed_opt(statement, &params).await.map_err(Failure::Store)?;
    let token = row.map(|row| row.try_get::<_, i64>(0)).transpose().map_err(Failure::Store)?;
    Ok(token.map(|token| Token(token.cast_unsigned())))
}
