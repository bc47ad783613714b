//! Deadlocks: owners that wait for each other, found by looks at the names that somebody waits for.
//!
//! [`Tenure::deadlocks`] looks twice. What is stuck by the first look counts only if the second one, begun after the
//! first ended, finds the same claims stuck: then all of them were there at the moment between the two.
//!
//! Not seen: claims outside sessions and nested runs, for nothing says that they belong together; and other stores.
//!
//! [`Tenure::deadlocks`]: crate::Tenure::deadlocks

mod cycles;
mod look;
mod queues;
mod reduce;
mod report;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

pub use report::{Blocker, Deadlock, Wait};

use self::queues::Queues;
use self::reduce::Reduced;
use crate::error::Loss;
use crate::machine::NameView;
use crate::name::Name;
use crate::owner::ClaimId;

/// How the note begins that is left for a claim which was ended because it waited in a deadlock.
const NOTE: &str = "deadlock: ";

/// Who ended a claim because it waited in a deadlock, and what was told of that; if that is how it was lost.
pub(crate) fn note_in(loss: &Loss) -> Option<(&str, &str)> {
    let Loss::Broken { by, reason } = loss else { return None };
    Some((by, reason.strip_prefix(NOTE)?))
}

/// A claim as the store has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Claimed {
    name: Name,
    id: ClaimId,
    number: u64,
}

/// What a look leaves stuck.
#[derive(Debug, Default)]
pub(crate) struct Stuck {
    waiting: HashSet<Claimed>,
    /// Claims that hold, or come to hold, and whose owners are stuck.
    holding: HashSet<Claimed>,
    /// The names of all of them, in order.
    names: Vec<Name>,
}

impl Stuck {
    /// What the first look leaves stuck.
    pub(crate) fn of(views: &[NameView]) -> Self {
        let queues = Queues::of(views);
        let reduced = Reduced::of(&queues);
        let mut stuck = Self::default();
        for (index, queue) in queues.names.iter().enumerate() {
            let waiting = queue.waiters.iter().filter(|waiter| !reduced.freed[**waiter]);
            stuck.waiting.extend(waiting.clone().map(|waiter| queues.waiters[*waiter].claimed.clone()));
            let keeps = |owner| !reduced.gives_back(&queues, owner, index);
            let holding = queue.holders.iter().filter(|holder| keeps(holder.owner));
            stuck.holding.extend(holding.flat_map(|holder| holder.claims.iter().cloned()));
            let next = queue.waiters.iter().filter(|waiter| reduced.freed[**waiter]);
            let next = next.map(|waiter| &queues.waiters[*waiter]).filter(|waiter| keeps(waiter.owner));
            stuck.holding.extend(next.map(|waiter| waiter.claimed.clone()));
            if waiting.count() > 0 {
                stuck.names.push(queue.name.clone());
            }
        }
        stuck
    }

    /// The names to look at again; none if nothing is stuck.
    pub(crate) fn names(&self) -> &[Name] {
        &self.names
    }

    /// The deadlocks that a second look at these names confirms: whatever was not stuck by the first is taken to go
    /// on.
    pub(crate) fn confirmed_by(&self, mut views: Vec<NameView>) -> Vec<Deadlock> {
        for view in &mut views {
            let name = view.name.clone();
            let was = |set: &HashSet<Claimed>, (id, number): (ClaimId, u64)| {
                set.contains(&Claimed { name: name.clone(), id, number })
            };
            view.holders.retain(|holder| holder.claims.iter().any(|claim| was(&self.holding, *claim)));
            view.waiters.retain(|waiter| was(&self.waiting, waiter.claim) || was(&self.holding, waiter.claim));
        }
        let queues = Queues::of(&views);
        let reduced = Reduced::of(&queues);
        let cycles = cycles::cycles(&queues, &reduced);
        cycles.iter().map(|cycle| Deadlock::of(&queues, cycle)).collect()
    }
}
