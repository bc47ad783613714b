//! Memos: a table of their own, which is made when the first is written. A store made by an older tenure gains it, and
//! that tenure goes on using the rest: the schema's version stays.

use rusqlite::{Connection, OptionalExtension as _, Row, Transaction, TransactionBehavior};

use super::error::{at_commit, before_commit};
use super::{rows, schema};
use crate::backend::{Memo, MemoKind, MemoWrite, MemoWritten};
use crate::clock::Clock;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{MemoRecord, write_memo};
use crate::name::Name;
use crate::token::Token;

/// The most memos forgotten in one transaction: when the store looks around, and with each memo that is written, so
/// that no more are left than are written.
const SWEEP_MAX: i64 = 64;
const SWEEP_EACH: i64 = 4;

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS memos (
        name TEXT PRIMARY KEY, kind TEXT NOT NULL, token INTEGER NOT NULL, version INTEGER NOT NULL,
        write_id INTEGER NOT NULL, written INTEGER NOT NULL, until INTEGER, bytes BLOB NOT NULL
    );
    CREATE INDEX IF NOT EXISTS memos_by_end ON memos (until) WHERE until IS NOT NULL;";

/// Writes a memo in a transaction of its own, which is on the disk when it is answered: locks may end with the machine,
/// memos may not.
pub(super) fn write(
    connection: &mut Connection,
    clock: &dyn Clock,
    name: &Name,
    write: &MemoWrite,
) -> Result<MemoWritten> {
    connection.execute_batch("PRAGMA synchronous = FULL").map_err(before_commit)?;
    let written = transact(connection, clock, name, write);
    // At worst the next transactions are on the disk too. What was written is told all the same.
    if let Err(error) = connection.execute_batch("PRAGMA synchronous = NORMAL") {
        tracing::warn!(%error, "the embedded store stays at synchronous = FULL until the next memo");
    }
    written
}

fn transact(connection: &mut Connection, clock: &dyn Clock, name: &Name, write: &MemoWrite) -> Result<MemoWritten> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(before_commit)?;
    // Read once the file is ours: waiting for it takes time.
    let (now, wall) = (clock.now(), clock.wall_micros());
    transaction.execute_batch(TABLE).map_err(before_commit)?;
    let queue = rows::read(&transaction, name)?.map(|(queue, _)| queue);
    let mut memo = find(&transaction, name)?;
    let forgotten_before = schema::forgotten(&transaction)?;
    let floor = forgotten_before.saturating_add(1);
    let before = memo.as_ref().map(|memo| memo.version);
    let answer = write_memo(queue.as_ref(), &mut memo, write, now, (wall, floor));
    if let Some(memo) = memo.filter(|memo| Some(memo.version) != before) {
        put(&transaction, name, &memo)?;
        let mut forgotten = forgotten_before;
        forget(&transaction, wall, SWEEP_EACH, &mut forgotten)?;
        if forgotten != forgotten_before {
            schema::set_forgotten(&transaction, forgotten)?;
        }
    }
    transaction.commit().map_err(at_commit)?;
    Ok(answer)
}

/// The memo of a name, as a reader sees it.
pub(super) fn read(connection: &Connection, clock: &dyn Clock, name: &Name) -> Result<Option<Memo>> {
    if !has_table(connection)? {
        return Ok(None);
    }
    Ok(find(connection, name)?.and_then(|memo| memo.seen(clock.wall_micros())))
}

/// Forgets memos that have ended. No later one has the version of one that is forgotten.
pub(super) fn forget_ended(transaction: &Transaction<'_>, wall: u64, forgotten: &mut u64) -> Result<()> {
    if !has_table(transaction)? {
        return Ok(());
    }
    forget(transaction, wall, SWEEP_MAX, forgotten)
}

fn forget(transaction: &Transaction<'_>, wall: u64, limit: i64, forgotten: &mut u64) -> Result<()> {
    let mut ended = transaction
        .prepare_cached("SELECT name, version FROM memos WHERE until IS NOT NULL AND until <= ?1 LIMIT ?2")
        .map_err(before_commit)?;
    let found = ended.query_map((signed(wall), limit), |row| Ok((row.get(0)?, row.get(1)?)));
    let found: Vec<(String, i64)> = found.and_then(Iterator::collect).map_err(before_commit)?;
    for (name, version) in found {
        *forgotten = (*forgotten).max(unsigned(version));
        transaction.execute("DELETE FROM memos WHERE name = ?1", [name]).map_err(before_commit)?;
    }
    Ok(())
}

fn has_table(connection: &Connection) -> Result<bool> {
    let mut statement = connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'memos'")
        .map_err(before_commit)?;
    statement.exists([]).map_err(before_commit)
}

fn find(connection: &Connection, name: &Name) -> Result<Option<MemoRecord>> {
    let mut statement = connection
        .prepare_cached("SELECT kind, token, version, write_id, written, until, bytes FROM memos WHERE name = ?1")
        .map_err(before_commit)?;
    let found = statement.query_row([name.as_str()], record).optional().map_err(before_commit)?;
    let unknown = || {
        let message = "its memo is of a kind that this tenure does not know; upgrade tenure";
        Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied).about(name)
    };
    found.map(|record| record.ok_or_else(unknown)).transpose()
}

fn record(row: &Row<'_>) -> rusqlite::Result<Option<MemoRecord>> {
    let Some(kind) = MemoKind::from_word(&row.get::<_, String>(0)?) else { return Ok(None) };
    Ok(Some(MemoRecord {
        kind,
        token: Token(unsigned(row.get(1)?)),
        version: unsigned(row.get(2)?),
        write: row.get::<_, i64>(3)?.cast_unsigned(),
        written: unsigned(row.get(4)?),
        until: row.get::<_, Option<i64>>(5)?.map(unsigned),
        bytes: rows::bytes(row, 6)?.into(),
    }))
}

fn put(transaction: &Transaction<'_>, name: &Name, memo: &MemoRecord) -> Result<()> {
    let mut statement = transaction
        .prepare_cached("INSERT OR REPLACE INTO memos VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")
        .map_err(before_commit)?;
    let row = (
        name.as_str(),
        memo.kind.as_str(),
        signed(memo.token.get()),
        signed(memo.version),
        memo.write.cast_signed(),
        signed(memo.written),
        memo.until.map(signed),
        &*memo.bytes,
    );
    statement.execute(row).map(drop).map_err(before_commit)
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}
