//! Looking: who holds and who waits, and which names are in use.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::join_all;

use super::desk::Desk;
use super::entry::Line;
use super::wire::{Answered as _, RangeRequest, end_of};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::NameView;
use crate::name::Name;
use crate::owner::Owner;

/// How many keys are read at once.
const PAGE: i64 = 5_000;
/// How many keys one page of names may take: beyond it, a prefix has to be named.
const KEYS_MAX: usize = 1_000_000;
/// Of how many holders it is asked how long they live: one request each.
const LEASES_MAX: usize = 32;

impl Desk {
    /// Who holds a name and who waits for it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn inspect(&self, name: &Name) -> Result<NameView> {
        let line = self.line(name).await?;
        self.view(name, &line).await
    }

    async fn view(&self, name: &Name, line: &Line) -> Result<NameView> {
        let queue = line.queue(self.wall());
        let mut view = NameView::of(name.clone(), &queue, self.wall());
        let leases: HashMap<u64, i64> = line
            .entries
            .iter()
            .flat_map(|entry| {
                let numbers = entry.value.iter().flat_map(|value| &value.claims).map(|part| entry.number_of(part));
                let numbers: Vec<u64> = numbers.chain([super::entry::revision(entry.created)]).collect();
                numbers.into_iter().map(|number| (number, entry.lease))
            })
            .collect();
        let lives = view.holders.iter().take(LEASES_MAX).map(|held| async {
            let lease = *held.claims.iter().find_map(|(_, number)| leases.get(number))?;
            let told = self.road.ask(|link| async move { link.time_to_live(lease, false).await }).await.ok()?;
            let left = u64::try_from(told.ttl).ok()?;
            let granted = u64::try_from(told.granted_ttl).unwrap_or(0);
            Some((Duration::from_secs(left), Duration::from_secs(granted.saturating_sub(left))))
        });
        let lives: Vec<Option<(Duration, Duration)>> = join_all(lives).await;
        for held in &mut view.holders {
            held.renewed = None;
        }
        for (held, told) in view.holders.iter_mut().zip(lives) {
            let left = told.map(|(left, _)| left);
            held.renewed = told.map(|(_, renewed)| renewed);
            // etcd tells whole seconds: of the last one there is something left.
            let left = left.map(|left| left.max(Duration::from_millis(1)));
            held.expires_in = match (left, held.expires_in) {
                (Some(left), Some(ttl)) if !is_foreign(held.owner.as_ref()) => Some(left.min(ttl)),
                (left, _) => left,
            };
        }
        for held in &mut view.holders {
            if is_foreign(held.owner.as_ref()) {
                (held.owner, held.held, held.shape, held.units) = (None, None, None, None);
            }
        }
        for waiting in &mut view.waiters {
            if is_foreign(waiting.owner.as_ref()) {
                (waiting.owner, waiting.waited, waiting.shape, waiting.units) = (None, None, None, None);
            }
        }
        Ok(view)
    }

    /// Names in use that begin with `prefix`, in byte order, after `after`, at most `limit`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn scan(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<NameView>> {
        let mut names = self.names(prefix, after).await?;
        let mut views = Vec::new();
        while views.len() < limit {
            let Some(name) = names.pop_first() else { break };
            let view = self.inspect(&name).await?;
            // Freed meanwhile.
            if !view.is_free() {
                views.push(view);
            }
        }
        Ok(views)
    }

    /// The names that have keys. Keys are in another order than names ("a!/1" comes before "a/1"), so all are read.
    async fn names(&self, prefix: &str, after: Option<&Name>) -> Result<BTreeSet<Name>> {
        let range_end = end_of(&self.keys.of_prefix(prefix));
        // No key of a later name lies before this.
        let start = after.map_or(prefix, |after| after.as_str().max(prefix));
        let mut key = self.keys.of_prefix(start);
        if key.is_empty() {
            key.push(0);
        }
        let mut names = BTreeSet::new();
        let mut read = 0;
        loop {
            let page = RangeRequest {
                key,
                range_end: range_end.clone(),
                limit: PAGE,
                keys_only: true,
                ..RangeRequest::default()
            };
            let page = self.range(page).await?;
            read += page.kvs.len();
            if read > KEYS_MAX {
                return Err(Error::new(
                    ErrorKind::Store,
                    format!("more than {KEYS_MAX} keys begin with {prefix:?}: name a longer prefix"),
                ));
            }
            let Some(last) = page.kvs.last() else { return Ok(names) };
            key = [&last.key, &[0][..]].concat();
            debug_assert!(page.header().revision > 0);
            let more = page.more;
            let found = page.kvs.into_iter().filter_map(|kv| self.keys.name_of(&kv.key, kv.lease));
            names.extend(
                found.filter(|name| name.as_str().starts_with(prefix) && after.is_none_or(|after| name > after)),
            );
            if !more {
                return Ok(names);
            }
        }
    }
}

fn is_foreign(owner: Option<&Owner>) -> bool {
    owner.is_some_and(|owner| *owner == Owner::unknown())
}
