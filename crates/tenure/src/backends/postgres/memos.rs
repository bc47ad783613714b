//! Memos: a table of their own, which is made when the first is written. Tables made by an older tenure gain it, and
//! that tenure goes on using the others: their version stays.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{join, join3};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::desk::{Desk, TRIES_MAX, odd};
use super::error::{is_collision, is_denied, is_missing_table, of_statement};
use super::link::{Link, Param};
use super::rows::{cell, queue_of, signed, unsigned};
use super::rule::{Wait, not_applied};
use super::schema;
use super::statements::MEMOS_SWEPT;
use crate::backend::{Memo, MemoKind, MemoWrite, MemoWritten};
use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{MemoRecord, Queue, write_memo};
use crate::name::Name;
use crate::token::Token;

/// A memo is on the disk when it is answered, also where locks need not be. A stronger setting stays.
const DURABLE: &str = "SELECT pg_catalog.set_config('synchronous_commit', 'on', true) \
    WHERE pg_catalog.current_setting('synchronous_commit') = 'off'";

/// The types of what is written of a memo.
const WRITTEN: [Type; 8] =
    [Type::TEXT, Type::TEXT, Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::INT8, Type::BYTEA];

/// Why a write failed.
enum Failed {
    /// Others were in the way, and nothing was applied: it may be tried again.
    Collision(Error),
    /// There is no table yet.
    NoTable(Error),
    /// The table is somebody else's.
    Denied(tokio_postgres::Error),
    For(Error),
}

type Tried<T> = std::result::Result<T, Failed>;

/// What is known once the name's row is locked.
struct Found {
    queue: Option<Queue>,
    memo: Option<MemoRecord>,
    /// The server's clock.
    now: u64,
    /// Above every version that was forgotten.
    floor: u64,
}

impl Desk {
    /// Writes a memo in one transaction, which locks the name's row: until it ends nobody else holds the name.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown; the connection is closed.
    pub(super) async fn write_memo(self: &Arc<Self>, name: &Name, write: &MemoWrite) -> Result<MemoWritten> {
        let mut connection = self.one_of(&self.memo_writes).await?;
        let link = connection.take().await?;
        let written = self.write_over(&link, name, write).await;
        connection.put_back(link);
        // There may be memos to sweep.
        self.worked.notify_one();
        written
    }

    async fn write_over(&self, link: &Link, name: &Name, write: &MemoWrite) -> Result<MemoWritten> {
        let mut tries = 0;
        loop {
            tries += 1;
            let written = self.try_write(link, name, write).await;
            // Whatever failed, and be it the beginning: nobody uses the connection before it is known to be in no
            // transaction.
            if written.is_err() && !link.is_closed() && link.execute("ROLLBACK").await.is_err() {
                link.give_up();
            }
            match written {
                Ok(answer) => return Ok(answer),
                Err(Failed::NoTable(error) | Failed::Collision(error)) if tries >= TRIES_MAX => return Err(error),
                Err(Failed::NoTable(_)) => self.make_memos(link).await?,
                Err(Failed::Collision(_)) => {}
                Err(Failed::Denied(error)) => return Err(self.memos_denied(link, error).await),
                Err(Failed::For(error)) => return Err(error),
            }
        }
    }

    async fn try_write(&self, link: &Link, name: &Name, write: &MemoWrite) -> Tried<MemoWritten> {
        let statements = &self.statements.memos;
        if self.has_memos.load(Ordering::Relaxed) {
            // Before anything is locked.
            let texts = &WRITTEN[..1];
            for (sql, types) in [(&statements.lock, texts), (&statements.find, texts), (&statements.write, &WRITTEN)] {
                match link.prepare(sql, types).await {
                    Ok(_) => {}
                    Err(error) if link.is_closed() => return Err(Failed::For(not_applied(self.doubting(error)))),
                    // Somebody may have dropped the table.
                    Err(_) => {
                        self.has_memos.store(false, Ordering::Relaxed);
                        break;
                    }
                }
            }
        }
        let Found { queue, mut memo, now, floor } = self.find(link, name).await?;
        let before = memo.as_ref().map(|memo| memo.version);
        let answer = write_memo(queue.as_ref(), &mut memo, write, Moment(now), (now, floor));
        match memo.filter(|memo| Some(memo.version) != before) {
            Some(memo) => self.put(link, name, &memo).await?,
            None if link.execute("ROLLBACK").await.is_err() => link.give_up(),
            None => {}
        }
        Ok(answer)
    }

    /// Begins the transaction, locks the name's row, and reads what is there then: the last statement begins once the
    /// row is locked, so it sees what whoever had locked it before has written.
    async fn find(&self, link: &Link, name: &Name) -> Tried<Found> {
        let statements = &self.statements.memos;
        let begin = format!("{}; {DURABLE}", Wait::Briefly.begin());
        let params: [Param<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let sent = join3(
            link.execute_once(&begin),
            link.once(&statements.lock, &params),
            link.once(&statements.find, &params),
        );
        // There is nothing to commit yet. Without an answer the connection is given up, and the server undoes what it
        // began.
        let (begun, locked, found) = link.within(sent).await.map_err(|error| Failed::For(not_applied(error)))?;
        begun.map_err(|error| Failed::For(not_applied(of_statement(error))))?;
        let early = |failed| match failed {
            Failed::For(error) => Failed::For(not_applied(error)),
            other => other,
        };
        let locked = locked.map_err(|error| match refused(link, error) {
            // That is the table of names.
            Failed::Denied(error) => Failed::For(of_statement(error)),
            failed => early(failed),
        })?;
        let found = found.map_err(|error| refused(link, error)).map_err(early)?;
        self.has_memos.store(true, Ordering::Relaxed);
        let read = || {
            let row = found.first().ok_or_else(odd)?;
            let forgotten = unsigned(cell(row, "forgotten")?);
            Ok(Found {
                queue: locked.first().map(queue_of).transpose()?,
                memo: record(row, name)?,
                now: unsigned(cell(row, "now")?),
                floor: forgotten.saturating_add(1),
            })
        };
        read().map_err(|error| Failed::For(not_applied(error)))
    }

    /// Writes a memo and ends the transaction: sent together, and should the first fail nothing is committed.
    async fn put(&self, link: &Link, name: &Name, memo: &MemoRecord) -> Tried<()> {
        let (name, kind, bytes) = (name.as_str(), memo.kind.as_str(), &*memo.bytes);
        let (token, version, id) = (signed(memo.token.get()), signed(memo.version), memo.write.cast_signed());
        let (written, ends) = (signed(memo.written), memo.until.map(signed));
        let values: [&(dyn ToSql + Sync); 8] = [&name, &kind, &token, &version, &id, &written, &ends, &bytes];
        let params: Vec<Param<'_>> = values.into_iter().zip(WRITTEN).collect();
        let sent = join(link.once(&self.statements.memos.write, &params), link.execute_once("COMMIT"));
        let (written, ended) = link.within(sent).await.map_err(Failed::For)?;
        written.map_err(|error| refused(link, error))?;
        // Whether it was committed is not known, unless the server says that it was not.
        ended.map_err(|error| Failed::For(of_statement(error)))
    }

    /// The memo of a name, as a reader sees it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn memo(self: &Arc<Self>, name: &Name) -> Result<Option<Memo>> {
        let mut look = self.look().await?;
        let link = look.take().await?;
        let sql = &self.statements.memos.find;
        let params: [Param<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let prepared = match self.has_memos.load(Ordering::Relaxed) {
            true => Some(link.raw(sql, &params).await),
            false => None,
        };
        let rows = match prepared {
            Some(rows) if rows.is_ok() || link.is_closed() => rows,
            // Not prepared: that fails without a table, as if it were a failure; and somebody may have dropped it.
            _ => link.within(link.once(sql, &params)).await,
        };
        let found = match rows {
            Ok(Ok(rows)) => {
                self.has_memos.store(true, Ordering::Relaxed);
                rows.first().map_or(Ok(None), |row| {
                    let now = unsigned(cell(row, "now")?);
                    Ok(record(row, name)?.and_then(|memo| memo.seen(now)))
                })
            }
            Ok(Err(error)) if is_missing_table(&error) => Ok(None),
            Ok(Err(error)) if is_denied(&error) => Err(self.memos_denied(&link, error).await),
            Ok(Err(error)) => Err(of_statement(error)),
            Err(error) => Err(self.doubting(error)),
        };
        look.put_back(link);
        found
    }

    /// Forgets some memos that have ended, best effort. No later one has the version of one that is forgotten. Answers
    /// whether there may be more.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: they are forgotten the next time.
    pub(super) async fn sweep_memos(self: &Arc<Self>) -> bool {
        let statements = &self.statements.memos;
        let swept = async {
            let mut look = self.look().await?;
            if !self.has_memos.load(Ordering::Relaxed) {
                let asked = "SELECT to_regclass($1) IS NOT NULL";
                let there = look.query(asked, &[(&statements.table, Type::TEXT)]).await?;
                if !there.first().map_or(Ok(false), |row| cell(row, 0))? {
                    return Ok(0);
                }
                self.has_memos.store(true, Ordering::Relaxed);
            }
            let rows = look.query(&statements.sweep, &[]).await?;
            rows.first().map_or(Ok(0), |row| cell::<_, i64>(row, 0))
        };
        match swept.await {
            Ok(gone) => gone >= MEMOS_SWEPT,
            Err(error) => {
                let error = self.doubting(error);
                tracing::debug!(%error, "no memos were swept");
                false
            }
        }
    }

    /// Somebody may have dropped the table: what is prepared without one fails, and not for its absence.
    fn doubting(&self, error: Error) -> Error {
        self.has_memos.store(false, Ordering::Relaxed);
        error
    }

    /// Makes the table.
    async fn make_memos(&self, link: &Link) -> Result<()> {
        let Err(error) = schema::make_tables(link, &self.statements.memos.make).await else { return Ok(()) };
        if error.kind() != ErrorKind::Denied {
            return Err(not_applied(error));
        }
        let make: Vec<&str> = self.statements.memos.make.split_whitespace().collect();
        let message = format!(
            "memos need a table that this user may not make: let an owner of the schema run `{} {}`",
            make.join(" "),
            self.memo_rights(link).await
        );
        Err(Error::new(ErrorKind::Denied, message).because(error).with_certainty(Certainty::NotApplied))
    }

    async fn memos_denied(&self, link: &Link, error: tokio_postgres::Error) -> Error {
        let message =
            format!("the user lacks a right on memos: let their table's owner run `{}`", self.memo_rights(link).await);
        Error::new(ErrorKind::Denied, message).because(of_statement(error)).with_certainty(Certainty::NotApplied)
    }

    /// What grants this user the use of memos.
    async fn memo_rights(&self, link: &Link) -> String {
        let user = link.query("SELECT quote_ident(current_user)", &[]).await.ok();
        let user = user.and_then(|rows| rows.first().and_then(|row| cell::<_, String>(row, 0).ok()));
        let user = user.as_deref().unwrap_or("USER");
        format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {} TO {user};", self.statements.memos.table)
    }
}

/// What it means that a statement of the transaction was refused. If it was, nothing is applied; if its answer was
/// lost, and that of what was sent with it, nobody knows.
fn refused(link: &Link, error: tokio_postgres::Error) -> Failed {
    link.judge(&error);
    let collides = link.unprepared(&error) || is_collision(&error);
    let (is_missing, denied) = (is_missing_table(&error), is_denied(&error));
    if denied {
        return Failed::Denied(error);
    }
    let error = of_statement(error);
    match (collides, is_missing) {
        (true, _) => Failed::Collision(error),
        (_, true) => Failed::NoTable(error),
        _ => Failed::For(error),
    }
}

/// The memo of a row as `MemoStatements::find` selects it.
fn record(row: &Row, name: &Name) -> Result<Option<MemoRecord>> {
    let Some(kind) = cell::<_, Option<&str>>(row, "kind")? else { return Ok(None) };
    let Some(kind) = MemoKind::from_word(kind) else {
        let message = "its memo is of a kind that this tenure does not know; upgrade tenure";
        return Err(Error::new(ErrorKind::Store, message).with_certainty(Certainty::NotApplied).about(name));
    };
    Ok(Some(MemoRecord {
        kind,
        token: Token(unsigned(cell(row, "token")?)),
        version: unsigned(cell(row, "version")?),
        write: cell::<_, i64>(row, "write_id")?.cast_unsigned(),
        written: unsigned(cell(row, "written")?),
        until: cell::<_, Option<i64>>(row, "ends")?.map(unsigned),
        bytes: cell::<_, &[u8]>(row, "bytes")?.into(),
    }))
}
