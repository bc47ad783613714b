//! Names that somebody waits for, found by an index of these alone.

use rusqlite::Connection;

use super::error::{before_commit, unreadable};
use super::rows;
use crate::backend::WaitedFor;
use crate::clock::Moment;
use crate::error::Result;
use crate::machine::{NameView, Queue};
use crate::name::Name;

/// Names that nobody waits for are not in it, so that it costs them nothing.
pub(super) const INDEX: &str = "CREATE INDEX IF NOT EXISTS names_waited_for ON names (name) WHERE waiters > 0";

const FIND: &str = "SELECT name, queue FROM names WHERE waiters > 0 AND name > ?1 ORDER BY name LIMIT ?2";

/// The next names that somebody waits for. A file of an earlier version gets the index first.
pub(super) fn find(connection: &Connection, after: Option<&Name>, limit: usize, now: Moment) -> Result<WaitedFor> {
    if !has_index(connection)? {
        connection.execute_batch(INDEX).map_err(before_commit)?;
    }
    let mut statement = connection.prepare_cached(FIND).map_err(before_commit)?;
    let page = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut found = statement.query((after.map_or("", |name| name.as_str()), page)).map_err(before_commit)?;
    let (mut waited_for, mut rows) = (WaitedFor::default(), 0);
    while let Some(row) = found.next().map_err(before_commit)? {
        rows += 1;
        let name: String = row.get(0).map_err(before_commit)?;
        let queue = rows::bytes(row, 1).map_err(before_commit)?;
        let queue = Queue::from_bytes(&queue).map_err(|error| unreadable(&name, error))?;
        let view = NameView::of(Name::new(&name)?, &queue, now);
        waited_for.after = Some(view.name.clone()).filter(|_| rows >= limit);
        // All who waited may have died.
        if !view.waiters.is_empty() {
            waited_for.views.push(view);
        }
    }
    Ok(waited_for)
}

fn has_index(connection: &Connection) -> Result<bool> {
    let mut statement = connection
        .prepare_cached("SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = 'names_waited_for'")
        .map_err(before_commit)?;
    statement.exists([]).map_err(before_commit)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use rusqlite::StatementStatus;

    use super::*;
    use crate::machine::Shape;
    use crate::scene::Scene;

    /// A file of an earlier version: without the index.
    fn file(names: usize, waited_for: usize) -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        let table = "CREATE TABLE names (name TEXT PRIMARY KEY, holder TEXT, waiters INTEGER, \
            dead_at INTEGER NOT NULL, queue BLOB NOT NULL) WITHOUT ROWID; BEGIN";
        connection.execute_batch(table).unwrap();
        let mut put = connection.prepare("INSERT INTO names VALUES (?1, 'h', ?2, 9, ?3)").unwrap();
        for number in 0..names {
            let waits = number * waited_for / names != (number + 1) * waited_for / names;
            let mut scene = Scene::of("x");
            for claim in 0..=u64::from(waits) {
                scene.claim(claim + 1, Shape::Exclusive, Duration::from_secs(9));
            }
            put.execute((format!("n/{number:06}"), i64::from(waits), scene.queue().to_bytes())).unwrap();
        }
        drop(put);
        connection.execute_batch("COMMIT").unwrap();
        connection
    }

    #[test]
    fn of_100_000_names_only_those_are_read_that_somebody_waits_for() {
        let connection = file(100_000, 100);
        let now = Scene::of("x").now();
        let (mut found, mut after, mut pages) = (0, None, 0);
        loop {
            let page = find(&connection, after.as_ref(), 40, now).unwrap();
            (found, pages, after) = (found + page.views.len(), pages + 1, page.after);
            if after.is_none() {
                break;
            }
        }
        assert_eq!((found, pages), (100, 3));
        let statement = connection.prepare_cached(FIND).unwrap();
        let steps = statement.get_status(StatementStatus::VmStep);
        assert_eq!(statement.get_status(StatementStatus::FullscanStep), 0);
        assert!(steps < 100 * 30, "{steps} steps for 100 names");
    }

    #[test]
    fn where_nobody_waits_nothing_is_read() {
        let connection = file(10_000, 0);
        assert_eq!(find(&connection, None, 40, Scene::of("x").now()).unwrap(), WaitedFor::default());
        let statement = connection.prepare_cached(FIND).unwrap();
        assert!(statement.get_status(StatementStatus::VmStep) < 30);
    }
}
