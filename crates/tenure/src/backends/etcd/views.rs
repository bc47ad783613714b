//! Looking: who holds and who waits, and which names are in use.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};

use super::desk::{Desk, READS_MAX};
use super::entry::{Line, all};
use super::error::odd;
use super::wire::{Answered as _, RangeRequest, RangeResponse, Request, TxnRequest, end_of};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{HolderView, NameView};
use crate::name::Name;
use crate::owner::Owner;

/// How many keys are read at once.
const PAGE: i64 = 5_000;
/// How many keys one page of names may take: beyond it, a prefix has to be named.
const KEYS_MAX: usize = 1_000_000;
/// Of how many holders of a name it is asked how long they live: one request for each lease.
const LEASES_MAX: usize = 32;
/// How many such requests are under way.
const LEASES_AT_ONCE: usize = 32;

impl Desk {
    /// Who holds a name and who waits for it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn inspect(&self, name: &Name) -> Result<NameView> {
        let line = self.line(name).await?;
        let mut views = self.views(&[(name.clone(), line)]).await;
        views.pop().ok_or_else(odd)
    }

    /// What these queues look like to people. A lease that several names hold by is asked for once.
    async fn views(&self, lines: &[(Name, Line)]) -> Vec<NameView> {
        let now = self.wall();
        let seen: Vec<_> = lines.iter().map(|(name, line)| Seen::new(name, line, now)).collect();
        let leases: BTreeSet<i64> = seen.iter().flat_map(|seen| seen.leases.iter().flatten()).copied().collect();
        let lives: HashMap<i64, Life> = stream::iter(leases)
            .map(|lease| async move { Some((lease, self.life(lease).await?)) })
            .buffer_unordered(LEASES_AT_ONCE)
            .filter_map(|life| async { life })
            .collect()
            .await;
        seen.into_iter().map(|seen| seen.with(&lives)).collect()
    }

    /// How long a lease lives on, and how long ago it was renewed.
    async fn life(&self, lease: i64) -> Option<Life> {
        let told = self.road.ask(|link| async move { link.time_to_live(lease, false).await }).await.ok()?;
        let left = u64::try_from(told.ttl).ok()?;
        let granted = u64::try_from(told.granted_ttl).unwrap_or(0);
        // etcd tells whole seconds: of the last one there is something left.
        let left_at_least = Duration::from_secs(left).max(Duration::from_millis(1));
        Some(Life { left: left_at_least, renewed: Duration::from_secs(granted.saturating_sub(left)) })
    }

    /// Names in use that begin with `prefix`, in byte order, after `after`, at most `limit`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn scan(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<NameView>> {
        let mut names = self.names(prefix, after).await?;
        let mut views = Vec::new();
        while views.len() < limit && !names.is_empty() {
            let wanted = (limit - views.len()).min(READS_MAX);
            let some: Vec<Name> = std::iter::from_fn(|| names.pop_first()).take(wanted).collect();
            let found = self.views(&self.lines(some).await?).await;
            // Others were freed meanwhile.
            views.extend(found.into_iter().filter(|view| !view.is_free()));
        }
        Ok(views)
    }

    /// The queues of some names, read in one request.
    async fn lines(&self, names: Vec<Name>) -> Result<Vec<(Name, Line)>> {
        let success = names.iter().map(|name| Request::Range(all(&self.keys.under(name))).into()).collect();
        if let Ok(found) = self.txn(TxnRequest { success, ..TxnRequest::default() }).await {
            let revision = found.header().revision;
            let ranges: Vec<_> = found.into_ranges().collect();
            if ranges.len() == names.len() {
                let line = |(name, range): (Name, RangeResponse)| {
                    let line = Line::of(&self.keys.under(&name), range.kvs, false, revision);
                    (name, line)
                };
                return Ok(names.into_iter().zip(ranges).map(line).collect());
            }
        }
        // Together they may be more than one answer can have.
        let mut lines = Vec::with_capacity(names.len());
        for name in names {
            let line = self.line(&name).await?;
            lines.push((name, line));
        }
        Ok(lines)
    }

    /// The names that have keys. Keys are in another order than names ("a!/1" comes before "a/1"), so all are read.
    async fn names(&self, prefix: &str, after: Option<&Name>) -> Result<BTreeSet<Name>> {
        let range_end = end_of(&self.keys.of_prefix(prefix));
        // No key of a later name lies before this.
        let start = after.map_or(prefix, |after| after.as_str().max(prefix));
        let mut key = self.keys.of_prefix(start);
        if start.is_empty() {
            // No name begins below this; notes and memos lie there.
            key.push(b' ');
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

/// What is known of a lease.
struct Life {
    left: Duration,
    renewed: Duration,
}

/// A queue that was read.
struct Seen {
    view: NameView,
    /// The leases that its holders live by, in their order.
    leases: Vec<Option<i64>>,
}

impl Seen {
    fn new(name: &Name, line: &Line, now: Moment) -> Self {
        let view = NameView::of(name.clone(), &line.queue(now), now);
        let by_number: HashMap<u64, i64> = line
            .entries
            .iter()
            .flat_map(|entry| {
                let numbers = entry.value.iter().flat_map(|value| &value.claims).map(|part| entry.number_of(part));
                let numbers: Vec<u64> = numbers.chain([super::entry::revision(entry.created)]).collect();
                numbers.into_iter().map(|number| (number, entry.lease))
            })
            .collect();
        let lease = |held: &HolderView| held.claims.iter().find_map(|(_, number)| by_number.get(number)).copied();
        let leases = view.holders.iter().take(LEASES_MAX).map(lease).collect();
        Self { view, leases }
    }

    fn with(self, lives: &HashMap<i64, Life>) -> NameView {
        let Self { mut view, leases } = self;
        let asked = leases.len();
        for (held, lease) in view.holders.iter_mut().zip(leases) {
            let life = lease.and_then(|lease| lives.get(&lease));
            held.renewed = life.map(|life| life.renewed);
            held.expires_in = match (life.map(|life| life.left), held.expires_in) {
                (Some(left), Some(ttl)) if !is_foreign(held.owner.as_ref()) => Some(left.min(ttl)),
                (left, _) => left,
            };
        }
        for held in view.holders.iter_mut().skip(asked) {
            held.renewed = None;
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
        view
    }
}

fn is_foreign(owner: Option<&Owner>) -> bool {
    owner.is_some_and(|owner| *owner == Owner::unknown())
}
