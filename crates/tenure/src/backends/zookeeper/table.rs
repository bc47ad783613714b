//! The claims of this client.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::close::{Closing, Closings};
use super::look::Ahead;
use super::session::Session;
use crate::clock::Moment;
use crate::machine::{ClaimRequest, Grant};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

/// A claim that the store has, or may have.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) name: Name,
    pub(super) request: Arc<ClaimRequest>,
    /// Its ttl: the longest that was asked for.
    pub(super) ttl: Duration,
    pub(super) session: Arc<Session>,
    /// Where it is; none as long as no answer has told.
    pub(super) placed: Option<Placed>,
    /// What it was given, once it is known to hold.
    pub(super) grant: Option<Grant>,
    /// Whether whoever waits for it has heard that it holds.
    pub(super) told: bool,
    /// When nobody has renewed it for its ttl.
    pub(super) expires: Moment,
    /// It is being ended by this client: that its node goes is no news.
    pub(super) ending: bool,
    /// How many are about to give it another node: that the one it has goes is no news then either.
    pub(super) moving: u32,
    /// Whether somebody looks after its watches.
    pub(super) minded: bool,
    /// Whom it was seen to wait for, and is not watched yet.
    pub(super) ahead: Option<Ahead>,
    /// One call for a claim at a time: what the one before has done is seen by the next.
    pub(super) gate: Arc<tokio::sync::Mutex<()>>,
}

/// The node of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) node: String,
    pub(super) number: u64,
    pub(super) token: u64,
    /// Of the node's data: whoever takes the claim over writes them.
    pub(super) version: i32,
}

/// See [`Table::moving`].
pub(super) struct Moving<'a> {
    table: &'a Table,
    id: ClaimId,
}

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.table.change(self.id, |entry| entry.moving = entry.moving.saturating_sub(1));
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Mutex<HashMap<ClaimId, Entry>>,
    /// Nodes of no claim that are being removed, with their sessions: no claim is given one of these. Locked after
    /// the entries.
    condemned: Mutex<HashSet<(i64, String)>>,
}

impl Entry {
    fn may_have(&self, session: i64, node: &str) -> bool {
        self.session.id == session && self.placed.as_ref().is_none_or(|placed| placed.node == node)
    }

    /// It is at this node, and nobody need renew it before that moment.
    pub(super) fn place(&mut self, placed: Placed, expires: Moment) {
        self.session.keep();
        self.placed = Some(placed);
        self.expires = self.expires.max(expires);
    }
}

impl Table {
    fn condemned(&self) -> MutexGuard<'_, HashSet<(i64, String)>> {
        self.condemned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<ClaimId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, id: ClaimId) -> Option<Entry> {
        self.entries().get(&id).cloned()
    }

    /// The entry of a claim; if there was none, a new one. Whether it was there.
    pub(super) fn enter(&self, id: ClaimId, new: impl FnOnce() -> Entry) -> (Entry, bool) {
        let mut entries = self.entries();
        if let Some(entry) = entries.get(&id) {
            return (entry.clone(), true);
        }
        let entry = new();
        entry.session.keep();
        entries.insert(id, entry.clone());
        (entry, false)
    }

    /// Changes an entry that is there.
    pub(super) fn change<T>(&self, id: ClaimId, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.entries().get_mut(&id).map(change)
    }

    /// Removes a claim, if it still is at this node and is not about to go to another.
    pub(super) fn remove(&self, id: ClaimId, placed: Option<&Placed>) -> Option<Entry> {
        let mut entries = self.entries();
        entries.get(&id).filter(|entry| entry.placed.as_ref() == placed && entry.moving == 0)?;
        entries.remove(&id)
    }

    /// A claim is about to go to another node, as long as the answer lives.
    pub(super) fn moving(&self, id: ClaimId) -> Moving<'_> {
        self.change(id, |entry| entry.moving += 1);
        Moving { table: self, id }
    }

    /// Removes all claims of a session.
    pub(super) fn remove_session(&self, session: i64) -> Vec<(ClaimId, Entry)> {
        self.condemned().retain(|(of, _)| *of != session);
        self.entries().extract_if(|_, entry| entry.session.id == session).collect()
    }

    /// The claims of a session that nobody has renewed in time.
    pub(super) fn overdue(&self, session: i64, now: Moment) -> Vec<(ClaimId, Entry)> {
        let entries = self.entries();
        let overdue = entries.iter().filter(|(_, entry)| entry.session.id == session && entry.expires <= now);
        overdue.map(|(id, entry)| (*id, entry.clone())).collect()
    }

    /// The claims of a session.
    pub(super) fn of_session(&self, session: i64) -> Vec<(ClaimId, Entry)> {
        let entries = self.entries();
        let own = entries.iter().filter(|(_, entry)| entry.session.id == session);
        own.map(|(id, entry)| (*id, entry.clone())).collect()
    }

    /// How many claims a session has.
    pub(super) fn count(&self, session: i64) -> usize {
        self.entries().values().filter(|entry| entry.session.id == session).count()
    }

    /// Lets a session be closed once its last user has gone, if it has no claims but for this one.
    pub(super) fn let_go(&self, session: &Session, but: Option<ClaimId>, closings: &Closings) {
        let entries = self.entries();
        if entries.iter().all(|(id, entry)| Some(*id) == but || entry.session.id != session.id) {
            session.let_go(Closing::new(closings));
        }
    }

    /// Whether a session has claims but for this one.
    pub(super) fn has_others(&self, session: i64, but: ClaimId) -> bool {
        self.entries().iter().any(|(id, entry)| *id != but && entry.session.id == session)
    }

    /// The waiting claims of this name and owner, but for one.
    pub(super) fn waiting(&self, name: &Name, owner: &Owner, but: ClaimId) -> Vec<ClaimId> {
        let entries = self.entries();
        let waits = |entry: &Entry| {
            let is_sibling = entry.request.owner == *owner && entry.name == *name;
            is_sibling && entry.grant.is_none() && entry.placed.is_some()
        };
        entries.iter().filter(|(id, entry)| **id != but && waits(entry)).map(|(id, _)| *id).collect()
    }

    /// Whether a node of this session belongs to a claim, or may.
    pub(super) fn knows(&self, id: ClaimId, session: i64, node: &str) -> bool {
        self.entries().get(&id).is_some_and(|entry| entry.may_have(session, node))
    }

    /// A node is about to be removed because it belongs to no claim. False if it does by now; else no claim is given it
    /// from here on.
    pub(super) fn condemn(&self, id: ClaimId, session: i64, node: &str) -> bool {
        let entries = self.entries();
        if entries.get(&id).is_some_and(|entry| entry.may_have(session, node)) {
            return false;
        }
        self.condemned().insert((session, node.to_owned()));
        true
    }

    /// A condemned node has gone.
    pub(super) fn absolve(&self, session: i64, node: &str) {
        self.condemned().remove(&(session, node.to_owned()));
    }

    /// Of the nodes of a session only these, named by their paths, are there: condemned ones that are not among them
    /// have gone.
    pub(super) fn absolve_all_but(&self, session: i64, paths: &[String]) {
        let mut condemned = self.condemned();
        if condemned.is_empty() {
            return;
        }
        let there: HashSet<&str> = paths.iter().filter_map(|path| Some(path.rsplit_once('/')?.1)).collect();
        condemned.retain(|(of, node)| *of != session || there.contains(node.as_str()));
    }

    /// Gives a claim a node that was found. False if that one is being removed, or the claim is not there any more.
    pub(super) fn adopt(&self, id: ClaimId, session: i64, placed: &Placed, expires: Moment) -> bool {
        let mut entries = self.entries();
        if self.condemned().contains(&(session, placed.node.clone())) {
            return false;
        }
        entries.get_mut(&id).map(|entry| entry.place(placed.clone(), expires)).is_some()
    }
}
