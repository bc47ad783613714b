//! The tables: made on first use, and checked.

use tokio_postgres::types::Type;

use super::error::{is_missing_table, of_statement};
use super::link::Link;
use super::rows::cell;
use super::statements;
use super::url::Settings;
use crate::error::{Certainty, Error, ErrorKind, Result};

/// The version of the tables this code reads and writes.
const VERSION: i32 = 2;
/// Who makes tables holds this: "tenure".
const MAKING: i64 = 0x7465_6e75_7265;

/// Makes the tables if they are not there, and refuses those of another version: nothing is changed in them.
///
/// # Cancel safety
///
/// Cancel safe: the tables are made as a whole or not at all.
pub(super) async fn settle(link: &Link, settings: &Settings) -> Result<()> {
    let mut known = version(link, settings).await?;
    if known.is_none() {
        make(link, settings).await?;
        known = version(link, settings).await?;
    }
    match known {
        Some(VERSION) => Ok(()),
        Some(newer) if newer > VERSION => Err(refused(format!(
            "the tables were made by a newer tenure (version {newer}, this one knows {VERSION}); upgrade tenure"
        ))),
        Some(older) => Err(refused(format!(
            "the tables were made by an older tenure (version {older}, this one needs {VERSION}); use another schema (?schema=), \
             or drop {} while nobody holds a lock",
            settings.schema
        ))),
        None => Err(refused(format!(
            "the table {}.meta is empty; drop the schema while nobody holds a lock",
            settings.schema
        ))),
    }
}

fn refused(problem: String) -> Error {
    Error::new(ErrorKind::Store, problem).with_certainty(Certainty::NotApplied)
}

/// The version of the tables, if they are there.
async fn version(link: &Link, settings: &Settings) -> Result<Option<i32>> {
    match link.raw(&format!("SELECT version FROM {}.meta", settings.schema), &[]).await? {
        Ok(rows) => rows.first().map(|row| cell(row, 0)).transpose(),
        Err(error) if is_missing_table(&error) => Ok(None),
        Err(error) => Err(of_statement(error)),
    }
}

async fn make(link: &Link, settings: &Settings) -> Result<()> {
    let there = link.query("SELECT to_regnamespace($1) IS NOT NULL", &[(&settings.schema, Type::TEXT)]).await?;
    // Asked for a schema that is there, PostgreSQL would want the right to make it all the same.
    let makes_schema = !there.first().map_or(Ok(false), |row| cell(row, 0))?;
    make_tables(link, &statements::tables(&settings.schema, VERSION, makes_schema)).await
}

/// Makes tables, as a whole or not at all.
///
/// # Cancel safety
///
/// Cancel safe: they are made or not.
pub(super) async fn make_tables(link: &Link, tables: &str) -> Result<()> {
    // One after another: two that make the same table at once would both fail. And each sees what the one before it
    // made, whatever the server's default.
    let sql = format!(
        "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = 5000; SELECT pg_advisory_xact_lock({MAKING}); {tables} COMMIT"
    );
    let made = link.execute(&sql).await;
    if made.is_err() {
        drop(link.execute("ROLLBACK").await);
    }
    made
}
