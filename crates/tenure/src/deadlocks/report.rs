//! What is told of a deadlock: serializes as `deadlocks --json` prints it.

use std::fmt;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::Claimed;
use super::cycles::Step;
use super::queues::Queues;
use crate::machine::Shape;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

/// Owners that wait for each other: each [`Wait`] is for the owner that the next one keeps waiting, and the last is
/// for the first.
///
/// Displays as one line. A wait of a session may end all the same if another task of that session works on: a store
/// cannot see tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Deadlock {
    /// Who waits for whom.
    pub waits: Vec<Wait>,
}

/// A claim that waits, in a deadlock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Wait {
    /// The name that it waits for.
    pub name: Name,
    /// Its owner.
    pub owner: Option<Owner>,
    /// Its label for people.
    pub label: Option<String>,
    /// How it will hold. In JSON a word: `exclusive`, `shared` or `permits`.
    #[serde(serialize_with = "as_word")]
    pub shape: Shape,
    /// How long it has waited; absent where the store does not tell.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Option<Duration>,
    /// The owner that it keeps waiting, where that is not its own: it runs within that one's lock (a nested `tenure
    /// run`). Absent if the wait is its session's own.
    pub within: Option<Owner>,
    /// The label of that one.
    #[serde(skip)]
    pub within_label: Option<String>,
    /// Whom it waits for.
    #[serde(rename = "for")]
    pub blocker: Blocker,
    /// Its id.
    #[serde(serialize_with = "as_text")]
    pub claim: ClaimId,
    /// The number the store gave it.
    pub number: u64,
    /// Whether it asked to be refused rather than to wait in a deadlock ([`Session::refuse_deadlock`]).
    ///
    /// [`Session::refuse_deadlock`]: crate::Session::refuse_deadlock
    #[serde(skip)]
    pub refusable: bool,
}

/// Whom a claim waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocker {
    /// Its id.
    pub owner: Option<Owner>,
    /// Its label for people.
    pub label: Option<String>,
    /// Whether it holds the name; else it waits for it too, before this one.
    pub holds: bool,
}

fn as_word<S: Serializer>(shape: &Shape, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(shape.as_str())
}

fn as_ms<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}

fn as_text<S: Serializer>(id: &ClaimId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

impl Deadlock {
    pub(super) fn of(queues: &Queues, cycle: &[Step]) -> Self {
        let before = |place: usize| cycle.get(place.checked_sub(1).unwrap_or(cycle.len() - 1));
        let waits = cycle.iter().enumerate().map(|(place, step)| {
            let waiter = &queues.waiters[step.waiter];
            let label = label_of(queues, step);
            // What the wait before this one waits for: the owner of this claim, or one that it runs within.
            let kept = before(place).filter(|before| before.owner != waiter.owner);
            let Claimed { name, id, number } = waiter.claimed.clone();
            Wait {
                name,
                owner: queues.owners[waiter.owner].clone(),
                label: waiter.label.clone(),
                shape: waiter.shape,
                waited: waiter.waited,
                within: kept.and_then(|before| queues.owners[before.owner].clone()),
                within_label: kept.and_then(|before| label_of(queues, before)),
                blocker: Blocker { owner: queues.owners[step.owner].clone(), label, holds: step.holds },
                claim: id,
                number,
                refusable: waiter.refusable,
            }
        });
        Self { waits: waits.collect() }
    }

    /// The claim that came last: the one that a break ends. Numbers grow with time in every store.
    pub fn youngest(&self) -> Option<&Wait> {
        self.waits.iter().max_by_key(|wait| wait.age())
    }

    /// The claim that came last of those that asked to be refused.
    pub(crate) fn youngest_refusable(&self, asked: impl Fn(&Wait) -> bool) -> Option<&Wait> {
        self.waits.iter().filter(|wait| wait.refusable || asked(wait)).max_by_key(|wait| wait.age())
    }

    /// Whether one of its claims waits for this name.
    pub fn is_about(&self, name: &Name) -> bool {
        self.waits.iter().any(|wait| wait.name == *name)
    }
}

impl Wait {
    /// Orders claims by when they came, the same way wherever it is looked at.
    fn age(&self) -> (u64, &Name, u64) {
        (self.number, &self.name, self.claim.0)
    }
}

/// The label of whom a step waits for.
fn label_of(queues: &Queues, step: &Step) -> Option<String> {
    let queue = &queues.names[queues.waiters[step.waiter].name];
    if let Some(held) = queue.holders.iter().find(|holder| holder.owner == step.owner) {
        return held.label.clone();
    }
    let mut waiters = queue.waiters.iter().map(|waiter| &queues.waiters[*waiter]);
    waiters.find(|waiter| waiter.owner == step.owner)?.label.clone()
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, wait) in self.waits.iter().enumerate() {
            if place > 0 {
                f.write_str("; ")?;
            }
            write!(f, "{wait}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.blocker.holds { "held by" } else { "behind" };
        let (who, whom) = (shown(self.label.as_deref()), shown(self.blocker.label.as_deref()));
        f.write_str(who)?;
        if self.within.is_some() {
            write!(f, ", within {},", shown(self.within_label.as_deref()))?;
        }
        write!(f, " waits for {}, {how} {whom}", self.name)
    }
}

fn shown(label: Option<&str>) -> &str {
    label.filter(|label| !label.is_empty()).unwrap_or("somebody")
}
