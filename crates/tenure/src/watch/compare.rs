//! How two looks at the same names differ: a pure function.

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::change::{Change, ChangeKind};
use crate::clock::{Moment, micros};
use crate::machine::{BreakView, HolderView, NameView, WaiterView};
use crate::name::Name;
use crate::owner::ClaimId;

/// All names that one look saw, in byte order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) names: Vec<NameView>,
    /// The last name that was looked at, if there were more than a look reads.
    pub(crate) cut_after: Option<Name>,
    /// A clock reading from before the first request.
    pub(crate) from: Moment,
    /// A clock reading from after the last answer.
    pub(crate) to: Moment,
    /// The wall clock, together with `to`.
    pub(crate) wall_micros: u64,
}

impl Look {
    /// Whether it would have seen this name.
    fn reaches(&self, name: &Name) -> bool {
        self.cut_after.as_ref().is_none_or(|last| name <= last)
    }
}

/// What changed from one look to the next, in the order of time as far as it is known; of one name, what ended comes
/// before what was granted. `away` says that the store was out of reach in between.
pub(crate) fn compare(before: &Look, after: &Look, away: bool) -> Vec<Change> {
    let mut changes = Vec::new();
    let (mut was, mut is) = (before.names.iter().peekable(), after.names.iter().peekable());
    loop {
        let order = match (was.peek(), is.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(was), Some(is)) => was.name.cmp(&is.name),
        };
        let old = if order.is_le() { was.next() } else { None };
        let new = if order.is_ge() { is.next() } else { None };
        let Some(name) = old.or(new).map(|view| &view.name) else { break };
        if !before.reaches(name) || !after.reaches(name) {
            continue;
        }
        Pair { name, old, new, before, after, away }.compare(&mut changes);
    }
    // Stable: of one name, and of one moment, the order stays.
    changes.sort_by_key(|change| change.at_micros);
    changes
}

/// One name in two looks.
struct Pair<'a> {
    name: &'a Name,
    old: Option<&'a NameView>,
    new: Option<&'a NameView>,
    before: &'a Look,
    after: &'a Look,
    away: bool,
}

impl<'a> Pair<'a> {
    fn compare(&self, changes: &mut Vec<Change>) {
        let (old, new) = (Claims::of(self.old), Claims::of(self.new));
        let granted: Vec<&HolderView> = holders(self.new).filter(|held| !old.has_holder(held)).collect();
        // The claim before it ended no later than the next one was granted.
        let next_at = granted.iter().filter_map(|held| held.held).max().map(|held| self.wall_before(held));
        let gone = holders(self.old).filter(|held| !new.has_holder(held));
        changes.extend(gone.map(|held| self.ended(held, next_at)));
        changes.extend(granted.into_iter().map(|held| self.granted(held, &old)));
        let joined = waiters(self.new).filter(|waiter| !old.waiting.contains(&waiter.claim));
        changes.extend(joined.map(|waiter| self.waiting(waiter)));
        let stays = |claim: &(ClaimId, u64)| new.waiting.contains(claim) || new.holds(claim.0);
        let left = waiters(self.old).filter(|waiter| !stays(&waiter.claim));
        changes.extend(left.map(|waiter| self.left(waiter)));
    }

    /// The time from one look to the other, about.
    fn apart(&self) -> Duration {
        self.after.to.since(self.before.to)
    }

    /// The wall clock so long before the later look; not before the earlier one, which did not show the change.
    fn wall_before(&self, ago: Duration) -> u64 {
        self.after.wall_micros.saturating_sub(micros(ago.min(self.apart())))
    }

    fn ended(&self, held: &HolderView, next_at: Option<u64>) -> Change {
        let latest = self.after.wall_micros;
        let broken = held.claims.iter().find_map(|(id, _)| self.breaks().find(|note| note.claim == *id));
        let expiry = held.expires_in.map(|left| self.before.from + left);
        let expired = expiry.is_some_and(|expiry| expiry <= self.after.to);
        let kind = match broken {
            Some(_) => ChangeKind::Broken,
            None if expired => ChangeKind::Expired,
            None if self.away => ChangeKind::Lost,
            None => ChangeKind::Released,
        };
        let at = match (kind, expiry) {
            (ChangeKind::Expired, Some(expiry)) => self.wall_before(self.after.to.since(expiry)),
            _ => next_at.unwrap_or(latest),
        };
        let since = self.apart().saturating_sub(Duration::from_micros(latest.saturating_sub(at)));
        Change {
            held: held.held.map(|held| held + since),
            broken_by: broken.map(|note| (note.by.clone(), note.reason.clone())),
            at_micros: at.min(next_at.unwrap_or(latest)),
            ..self.of_holder(kind, held)
        }
    }

    fn granted(&self, held: &HolderView, old: &Claims<'_>) -> Change {
        let waited = held.claims.iter().find_map(|(id, _)| old.waited(*id));
        let since = self.apart().saturating_sub(held.held.unwrap_or_default());
        Change {
            at_micros: self.wall_before(held.held.unwrap_or_default()),
            waited: waited.map(|waited| waited + since),
            ..self.of_holder(ChangeKind::Granted, held)
        }
    }

    fn waiting(&self, waiter: &WaiterView) -> Change {
        let at_micros = self.wall_before(waiter.waited.unwrap_or_default());
        Change { at_micros, waited: waiter.waited, ..self.of_waiter(ChangeKind::Waiting, waiter) }
    }

    fn left(&self, waiter: &WaiterView) -> Change {
        let waited = waiter.waited.map(|waited| waited + self.apart());
        Change { waited, ..self.of_waiter(ChangeKind::Left, waiter) }
    }

    fn of_holder(&self, kind: ChangeKind, held: &HolderView) -> Change {
        Change {
            owner: held.owner.clone(),
            label: held.label.clone(),
            token: held.token,
            held: held.held,
            ..self.of(kind)
        }
    }

    fn of_waiter(&self, kind: ChangeKind, waiter: &WaiterView) -> Change {
        Change { owner: waiter.owner.clone(), label: waiter.label.clone(), ..self.of(kind) }
    }

    fn of(&self, kind: ChangeKind) -> Change {
        Change {
            kind,
            name: self.name.clone(),
            owner: None,
            label: None,
            token: None,
            at_micros: self.after.wall_micros,
            held: None,
            waited: None,
            broken_by: None,
        }
    }

    fn breaks(&self) -> impl Iterator<Item = &'a BreakView> + use<'a> {
        self.new.into_iter().flat_map(|view| &view.breaks)
    }
}

fn holders(view: Option<&NameView>) -> impl Iterator<Item = &HolderView> {
    view.into_iter().flat_map(|view| &view.holders)
}

fn waiters(view: Option<&NameView>) -> impl Iterator<Item = &WaiterView> {
    view.into_iter().flat_map(|view| &view.waiters)
}

/// The claims of a name, to be found by what the store calls them: a queue may be long.
struct Claims<'a> {
    holding: HashSet<(ClaimId, u64)>,
    held_ids: HashSet<ClaimId>,
    waiting: HashSet<(ClaimId, u64)>,
    waits: HashMap<ClaimId, Duration>,
    /// Holders of other libraries, which left no claims. They are told apart by what they left.
    foreign: Vec<&'a HolderView>,
}

impl<'a> Claims<'a> {
    fn of(view: Option<&'a NameView>) -> Self {
        Self {
            holding: holders(view).flat_map(|held| &held.claims).copied().collect(),
            held_ids: holders(view).flat_map(|held| &held.claims).map(|(id, _)| *id).collect(),
            waiting: waiters(view).map(|waiter| waiter.claim).collect(),
            waits: waiters(view).filter_map(|waiter| Some((waiter.claim.0, waiter.waited?))).collect(),
            foreign: holders(view).filter(|held| held.claims.is_empty()).collect(),
        }
    }

    /// Whether a claim with this id holds. Where nobody waits in the store in order, it has a number only once it
    /// holds.
    fn holds(&self, id: ClaimId) -> bool {
        self.held_ids.contains(&id)
    }

    /// How long a claim with this id has waited.
    fn waited(&self, id: ClaimId) -> Option<Duration> {
        self.waits.get(&id).copied()
    }

    fn has_holder(&self, held: &HolderView) -> bool {
        if held.claims.is_empty() {
            let left = |other: &HolderView| (other.owner.clone(), other.label.clone(), other.token);
            return self.foreign.iter().any(|other| left(other) == left(held));
        }
        held.claims.iter().any(|claim| self.holding.contains(claim))
    }
}

#[cfg(test)]
#[path = "compare_tests.rs"]
mod tests;
