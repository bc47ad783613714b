//! The queues of one transaction: each is read once and written once, however many operations it takes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::{Connection, OptionalExtension as _, Row};

use super::error::{before_commit, unreadable};
use crate::error::Result;
use crate::machine::Queue;
use crate::name::Name;

/// The rows a transaction has touched.
pub(super) struct Rows<'a> {
    connection: &'a Connection,
    /// Each queue, and its bytes as they stand in the file.
    loaded: HashMap<Name, (Queue, Option<Vec<u8>>)>,
    forgotten: u64,
    /// How many operations the transaction has.
    ops: usize,
}

impl<'a> Rows<'a> {
    pub(super) fn new(connection: &'a Connection, forgotten: u64, ops: usize) -> Self {
        Self { connection, loaded: HashMap::new(), forgotten, ops }
    }

    /// The queue of a name.
    pub(super) fn load(&mut self, name: &Name) -> Result<&mut Queue> {
        let (queue, _) = match self.loaded.entry(name.clone()) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(vacant) => {
                let row = match read(self.connection, name)? {
                    Some((queue, bytes)) => (queue, Some(bytes)),
                    None => (Queue::new(self.forgotten), None),
                };
                let row = vacant.insert(row);
                row.0.prepare_for(self.ops);
                row
            }
        };
        Ok(queue)
    }

    /// Writes what has changed; answers the highest token or append number of any name that was forgotten.
    pub(super) fn store(self) -> Result<u64> {
        let mut forgotten = self.forgotten;
        for (name, (queue, before)) in &self.loaded {
            if queue.is_idle() {
                // Also one that came and went within the transaction.
                forgotten = forgotten.max(queue.high_water());
                if before.is_some() {
                    let delete = self.connection.prepare_cached("DELETE FROM names WHERE name = ?1");
                    delete.and_then(|mut delete| delete.execute([name.as_str()])).map_err(before_commit)?;
                }
                continue;
            }
            let bytes = queue.to_bytes();
            if before.as_ref() != Some(&bytes) {
                let put = self.connection.prepare_cached(
                    "INSERT INTO names (name, holder, waiters, dead_at, queue) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT DO UPDATE SET holder = excluded.holder, waiters = excluded.waiters,
                       dead_at = excluded.dead_at, queue = excluded.queue",
                );
                let dead_at = i64::try_from(queue.dead_at().as_micros()).unwrap_or(i64::MAX);
                let holder = queue.holders().next().map(|claim| &*claim.label);
                let waiters = i64::try_from(queue.waiters().count()).unwrap_or(i64::MAX);
                let row = (name.as_str(), holder, waiters, dead_at, &bytes);
                put.and_then(|mut put| put.execute(row)).map_err(before_commit)?;
            }
        }
        Ok(forgotten)
    }
}

/// Reads a name's queue, and its bytes as they stand in the file.
pub(super) fn read(connection: &Connection, name: &Name) -> Result<Option<(Queue, Vec<u8>)>> {
    let mut statement = connection.prepare_cached("SELECT queue FROM names WHERE name = ?1").map_err(before_commit)?;
    let bytes = statement.query_row([name.as_str()], |row| bytes(row, 0)).optional().map_err(before_commit)?;
    let Some(bytes) = bytes else { return Ok(None) };
    let queue = Queue::from_bytes(&bytes).map_err(|error| unreadable(name.as_str(), error))?;
    Ok(Some((queue, bytes)))
}

/// A queue's bytes, whatever type a hand that changed them gave them.
pub(super) fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(row.get_ref(column)?.as_bytes_or_null()?.unwrap_or_default().to_vec())
}
