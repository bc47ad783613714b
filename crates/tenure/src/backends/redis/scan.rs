//! Finding the names in use among a server's keys.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use redis::Value;

use super::node::Node;
use super::wire;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;

/// How many keys one step of a scan looks at.
const STEP: usize = 1000;
/// How many names one scan remembers for the pages that follow.
const KEEP: usize = 65_536;

/// Names a scan has found beyond its page, for the page after it.
#[derive(Debug, Default)]
pub(in crate::backends) struct Pages(Mutex<Page>);

#[derive(Debug, Default)]
struct Page {
    prefix: String,
    after: Option<Name>,
    names: Vec<Name>,
}

impl Page {
    fn take(&mut self, count: usize) -> Vec<Name> {
        let rest = self.names.split_off(count.min(self.names.len()));
        let page = std::mem::replace(&mut self.names, rest);
        self.after = page.last().cloned();
        page
    }
}

/// What one scan finds: the first names after a certain one.
pub(in crate::backends) struct Found<'a> {
    prefix: &'a str,
    after: Option<&'a Name>,
    names: BTreeSet<Name>,
}

impl Found<'_> {
    pub(in crate::backends) fn take(&mut self, name: Option<Name>) {
        let Some(name) = name else { return };
        if name.as_str().starts_with(self.prefix) && self.after.is_none_or(|after| name > *after) {
            self.names.insert(name);
            if self.names.len() > KEEP {
                self.names.pop_last();
            }
        }
    }
}

impl Pages {
    /// The next names in byte order: of what an earlier scan found, or of a new one.
    pub(in crate::backends) async fn next(
        &self,
        prefix: &str,
        after: Option<&Name>,
        count: usize,
        scan: impl AsyncFnOnce(&mut Found<'_>) -> Result<()>,
    ) -> Result<Vec<Name>> {
        {
            let mut page = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if after.is_some() && page.prefix == prefix && page.after.as_ref() == after && !page.names.is_empty() {
                return Ok(page.take(count));
            }
        }
        let mut found = Found { prefix, after, names: BTreeSet::new() };
        scan(&mut found).await?;
        let mut page = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *page = Page { prefix: prefix.to_owned(), after: None, names: found.names.into_iter().collect() };
        Ok(page.take(count))
    }
}

/// Goes through a server's keys that match.
pub(in crate::backends) async fn keys(
    node: &Arc<Node>,
    pattern: &str,
    kind: Option<&str>,
    mut each: impl FnMut(&[u8]),
) -> Result<()> {
    let mut cursor = "0".to_owned();
    loop {
        let mut command = redis::cmd("SCAN");
        command.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
        if let Some(kind) = kind {
            command.arg("TYPE").arg(kind);
        }
        let value = node.command(command).await?;
        let odd = || Error::new(ErrorKind::Store, format!("SCAN answered something unexpected: {value:?}"));
        let Value::Array(items) = &value else { return Err(odd()) };
        let [next, Value::Array(keys)] = items.as_slice() else { return Err(odd()) };
        for key in keys {
            if let Value::BulkString(key) = key {
                each(key);
            }
        }
        cursor = wire::text(next).map(ToOwned::to_owned).ok_or_else(odd)?;
        if cursor == "0" {
            return Ok(());
        }
    }
}

/// The glob pattern of keys with a prefix of their own, a name's beginning, and an end.
pub(in crate::backends) fn pattern(before: &str, prefix: &str, end: &str) -> String {
    let mut pattern = before.to_owned();
    for c in prefix.chars() {
        if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern.push('*');
    pattern.push_str(end);
    pattern
}

/// The name of a key that is a name.
pub(in crate::backends) fn bare_name(key: &[u8]) -> Option<Name> {
    std::str::from_utf8(key).ok().and_then(|key| Name::new(key).ok())
}
