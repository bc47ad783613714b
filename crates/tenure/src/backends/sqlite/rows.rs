//! The queues of one transaction: each is read once and written once, however many operations it takes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rusqlite::{Connection, OptionalExtension as _};

use super::error::{before_commit, unreadable};
use crate::error::Result;
use crate::machine::Queue;
use crate::name::Name;

/// The rows a transaction has touched.
pub(super) struct Rows<'a> {
    connection: &'a Connection,
    /// Each queue, and its text as it stands in the file.
    loaded: HashMap<Name, (Queue, Option<String>)>,
    forgotten: u64,
}

impl<'a> Rows<'a> {
    pub(super) fn new(connection: &'a Connection, forgotten: u64) -> Self {
        Self { connection, loaded: HashMap::new(), forgotten }
    }

    /// The queue of a name.
    pub(super) fn load(&mut self, name: &Name) -> Result<&mut Queue> {
        let (queue, _) = match self.loaded.entry(name.clone()) {
            Entry::Occupied(loaded) => loaded.into_mut(),
            Entry::Vacant(vacant) => {
                let row = match read(self.connection, name)? {
                    Some((queue, text)) => (queue, Some(text)),
                    None => (Queue::new(self.forgotten), None),
                };
                vacant.insert(row)
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
            let text = serde_json::to_string(queue).map_err(|error| unreadable(name.as_str(), error))?;
            if before.as_ref() != Some(&text) {
                let put = self.connection.prepare_cached(
                    "INSERT INTO names VALUES (?1, ?2, ?3)
                     ON CONFLICT DO UPDATE SET queue = excluded.queue, dead_at = excluded.dead_at",
                );
                let dead_at = i64::try_from(queue.dead_at().as_micros()).unwrap_or(i64::MAX);
                put.and_then(|mut put| put.execute((name.as_str(), &text, dead_at))).map_err(before_commit)?;
            }
        }
        Ok(forgotten)
    }
}

/// Reads a name's queue, and its text as it stands in the file.
pub(super) fn read(connection: &Connection, name: &Name) -> Result<Option<(Queue, String)>> {
    let mut statement = connection.prepare_cached("SELECT queue FROM names WHERE name = ?1").map_err(before_commit)?;
    let text: Option<String> =
        statement.query_row([name.as_str()], |row| row.get(0)).optional().map_err(before_commit)?;
    let Some(text) = text else { return Ok(None) };
    let mut queue: Queue = serde_json::from_str(&text).map_err(|error| unreadable(name.as_str(), error))?;
    queue.prepare();
    Ok(Some((queue, text)))
}
