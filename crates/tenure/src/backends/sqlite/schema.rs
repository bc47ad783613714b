//! The file: how it is made, recognised and kept small.

use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OptionalExtension as _, Transaction, TransactionBehavior};

use super::error::{at_commit, before_commit};
use super::rows;
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::Queue;

/// "tenu" in the file's header: this is a tenure store.
const APPLICATION_ID: i64 = 0x7465_6e75;
/// The version of the schema this code reads and writes.
const SCHEMA_VERSION: i64 = 2;
/// The most dead names forgotten in one transaction.
const SWEEP_MAX: usize = 64;

/// How often a busy file is tried again: a second and a half in all.
const BUSY_TRIES_MAX: i32 = 800;

/// Waits a little for the other process, in steps far shorter than SQLite's own.
fn wait_while_busy(tries: i32) -> bool {
    let pause = match tries {
        0..20 => Duration::from_micros(100),
        20..50 => Duration::from_micros(500),
        _ => Duration::from_millis(2),
    };
    std::thread::sleep(pause);
    tries < BUSY_TRIES_MAX
}

/// Opens the file, making or checking the schema.
pub(super) fn open(path: &Path, boot: &str) -> Result<Connection> {
    let mut connection = Connection::open(path).map_err(before_commit)?;
    connection.busy_handler(Some(wait_while_busy)).map_err(before_commit)?;
    connection.set_prepared_statement_cache_capacity(32);
    // The last client to leave would otherwise write everything back and sync, at the cost of milliseconds.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(before_commit)?;
    // Recognised before anything is changed: it may be somebody else's file. At one moment: another process may be
    // making it into a store.
    let snapshot = connection.transaction().map_err(before_commit)?;
    check(&snapshot)?;
    drop(snapshot);
    let mut tries = 0;
    loop {
        let mode = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get::<_, String>(0));
        match mode {
            Ok(mode) if mode == "wal" => break,
            Ok(mode) => return Err(refused(format!("the file cannot be put into WAL mode (it is in {mode})"))),
            // The switch itself does not wait for others that open the file at the same moment.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) && wait_while_busy(tries) => {
                tries += 1;
            }
            Err(error) => return Err(before_commit(error)),
        }
    }
    connection.execute_batch("PRAGMA synchronous = NORMAL").map_err(before_commit)?;
    let (id, version) = identity(&connection)?;
    if id != APPLICATION_ID || version != SCHEMA_VERSION || known_boot(&connection)?.as_deref() != Some(boot) {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate);
        let transaction = transaction.map_err(before_commit)?;
        make(&transaction)?;
        begin_boot(&transaction, boot)?;
        transaction.commit().map_err(at_commit)?;
    }
    Ok(connection)
}

fn identity(connection: &Connection) -> Result<(i64, i64)> {
    let read = |pragma| connection.query_row(pragma, [], |row| row.get(0)).map_err(before_commit);
    Ok((read("PRAGMA application_id")?, read("PRAGMA user_version")?))
}

/// Refuses a file that is not ours, or not for us yet.
fn check(connection: &Connection) -> Result<()> {
    let (id, version) = identity(connection)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(before_commit)?;
    if id != APPLICATION_ID && (id != 0 || tables > 0) {
        return Err(refused("the file is an SQLite database, but not a tenure store; name another file".to_owned()));
    }
    if version > SCHEMA_VERSION {
        return Err(refused(format!(
            "the store was made by a newer tenure (schema {version}, this one knows {SCHEMA_VERSION}); upgrade tenure"
        )));
    }
    if id == APPLICATION_ID && version < SCHEMA_VERSION {
        return Err(refused(format!(
            "the store was made by an older tenure (schema {version}, this one needs {SCHEMA_VERSION}); \
             when nothing uses it, move it away and a new one is made"
        )));
    }
    Ok(())
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied)
}

/// Makes the schema, unless another process was quicker.
fn make(transaction: &Transaction<'_>) -> Result<()> {
    check(transaction)?;
    let waited_for = super::waited_for::INDEX;
    let schema = format!(
        "CREATE TABLE IF NOT EXISTS names (
             name TEXT PRIMARY KEY, holder TEXT, waiters INTEGER, dead_at INTEGER NOT NULL, queue BLOB NOT NULL
         ) WITHOUT ROWID;
         CREATE INDEX IF NOT EXISTS names_by_death ON names (dead_at);
         {waited_for};
         CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
         INSERT OR IGNORE INTO meta VALUES ('forgotten', 0), ('boot', '');
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {SCHEMA_VERSION};"
    );
    transaction.execute_batch(&schema).map_err(before_commit)
}

fn known_boot(connection: &Connection) -> Result<Option<String>> {
    let boot = connection.query_row("SELECT value FROM meta WHERE key = 'boot'", [], |row| row.get(0));
    boot.optional().map_err(before_commit)
}

/// Claims of another boot are dead, and their times mean nothing now.
fn begin_boot(transaction: &Transaction<'_>, boot: &str) -> Result<()> {
    if known_boot(transaction)?.as_deref() == Some(boot) {
        return Ok(());
    }
    let mut forgotten = forgotten(transaction)?;
    while forget_dead(transaction, Moment(u64::MAX), &mut forgotten)? == SWEEP_MAX {}
    set_forgotten(transaction, forgotten)?;
    let set = transaction.execute("UPDATE meta SET value = ?1 WHERE key = 'boot'", [boot]);
    set.map(drop).map_err(before_commit)
}

/// The size beyond which the log is written back into the file and cut off. SQLite does so by itself only in a
/// moment when nobody reads, which may never come while several processes write.
const LOG_MAX: u64 = 8 << 20;

/// How often it is tried, and for how long in all: meanwhile this client does nothing else.
const TRIM_TRIES: u32 = 100;
const TRIM_MAX: Duration = Duration::from_millis(20);
const TRIM_STEP: Duration = Duration::from_micros(200);

/// Keeps the log small. Best effort: whoever is in the way now is not the next time.
pub(super) fn trim_log(connection: &mut Connection, log: &Path, clock: &dyn Clock) {
    let is_long = || std::fs::metadata(log).is_ok_and(|log| log.len() > LOG_MAX);
    if !is_long() {
        return;
    }
    // It holds writers up while it waits for readers, so each try is a moment only. SQLite itself does not wait at all
    // for another client that is just writing the log back.
    drop(connection.busy_timeout(Duration::ZERO));
    let until = clock.now() + TRIM_MAX;
    for _ in 0..TRIM_TRIES {
        let busy = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0));
        if !matches!(busy, Ok(true)) || clock.now() >= until || !is_long() {
            break;
        }
        std::thread::sleep(TRIM_STEP);
    }
    drop(connection.busy_handler(Some(wait_while_busy)));
}

/// The highest token or append number of any name that was forgotten.
pub(super) fn forgotten(connection: &Connection) -> Result<u64> {
    let mut statement =
        connection.prepare_cached("SELECT value FROM meta WHERE key = 'forgotten'").map_err(before_commit)?;
    let value: i64 = statement.query_row([], |row| row.get(0)).map_err(before_commit)?;
    Ok(u64::try_from(value).unwrap_or(0))
}

pub(super) fn set_forgotten(connection: &Connection, forgotten: u64) -> Result<()> {
    let mut statement =
        connection.prepare_cached("UPDATE meta SET value = ?1 WHERE key = 'forgotten'").map_err(before_commit)?;
    statement.execute([i64::try_from(forgotten).unwrap_or(i64::MAX)]).map(drop).map_err(before_commit)
}

/// Forgets names whose last claim has died and that nobody asked for since; answers how many.
pub(super) fn forget_dead(connection: &Connection, now: Moment, forgotten: &mut u64) -> Result<usize> {
    let mut find = connection
        .prepare_cached("SELECT name, queue FROM names WHERE dead_at <= ?1 LIMIT ?2")
        .map_err(before_commit)?;
    let now = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    let limit = i64::try_from(SWEEP_MAX).unwrap_or(i64::MAX);
    let found = find.query_map((now, limit), |row| Ok((row.get::<_, String>(0)?, rows::bytes(row, 1)?)));
    let found: Vec<_> = found.and_then(Iterator::collect).map_err(before_commit)?;
    let mut delete = connection.prepare_cached("DELETE FROM names WHERE name = ?1").map_err(before_commit)?;
    for (name, queue) in &found {
        match Queue::from_bytes(queue) {
            Ok(queue) => *forgotten = (*forgotten).max(queue.high_water()),
            // Dead and damaged: its tokens go on from the wall clock, and other names are not held up by it.
            Err(error) => tracing::warn!(name, %error, "forgot a damaged row"),
        }
        delete.execute([name]).map_err(before_commit)?;
    }
    Ok(found.len())
}
