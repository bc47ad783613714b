//! The tables: made on first use, and checked.

use super::error::{is_missing_table, of_statement};
use super::link::Link;
use super::statements::{Statements, schema};
use super::url::Settings;
use crate::error::{Certainty, Error, ErrorKind, Result};

/// The version of the tables this code reads and writes.
const VERSION: i32 = 1;
/// Who makes tables holds this: "tenure".
const MAKING: i64 = 0x7465_6e75_7265;

/// Makes the tables if they are not there, and refuses those of a newer tenure.
pub(super) async fn settle(link: &Link, settings: &Settings, statements: &Statements) -> Result<()> {
    let known = match link.raw(&statements.version, &[]).await? {
        Ok(rows) => rows.first().map(|row| row.get::<_, i32>(0)),
        Err(error) if is_missing_table(&error) => None,
        Err(error) => return Err(of_statement(error)),
    };
    match known {
        Some(VERSION) => Ok(()),
        Some(newer) if newer > VERSION => Err(Error::new(
            ErrorKind::Store,
            format!(
                "the tables were made by a newer tenure (version {newer}, this one knows {VERSION}); upgrade tenure"
            ),
        )
        .with_certainty(Certainty::NotApplied)),
        _ => make(link, settings).await,
    }
}

async fn make(link: &Link, settings: &Settings) -> Result<()> {
    // One after another: two that make the same table at once would both fail.
    let sql = format!(
        "BEGIN; SET LOCAL lock_timeout = 5000; SELECT pg_advisory_xact_lock({MAKING}); {} COMMIT",
        schema(&settings.schema, VERSION)
    );
    let made = link.execute(&sql).await;
    if made.is_err() {
        drop(link.execute("ROLLBACK").await);
    }
    made
}
