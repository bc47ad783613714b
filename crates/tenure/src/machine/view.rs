//! What people and programs are shown of a name.

use std::time::Duration;

use serde::{Serialize, Serializer};

use super::claim::{BreakMark, Queue, Shape};
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// A name, who holds it and who waits for it. Serializes as `show --json` prints it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NameView {
    /// The name.
    pub name: Name,
    /// How many may hold it at once: 1, the number of permits, or none when it is shared or free.
    pub capacity: Option<u32>,
    /// Who holds it: one entry for each owner.
    pub holders: Vec<HolderView>,
    /// Who waits for it, in order. Tasks of one client that want the same lock wait behind one claim of it, and are not
    /// counted here.
    pub waiters: Vec<WaiterView>,
    /// Claims that were broken a moment ago, where the store keeps a note of that.
    #[serde(skip)]
    pub breaks: Vec<BreakView>,
}

/// A claim that somebody broke.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BreakView {
    /// The claim.
    pub claim: ClaimId,
    /// Who broke it.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// An owner that holds a name. What a foreign client did not record is absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HolderView {
    /// Its id.
    pub owner: Option<Owner>,
    /// Its label for people.
    pub label: Option<String>,
    /// Its fencing token.
    pub token: Option<Token>,
    /// How it holds. In JSON a word: `exclusive`, `shared` or `permits`.
    #[serde(serialize_with = "as_word")]
    pub shape: Option<Shape>,
    /// How many permits it takes; 1 for the other shapes.
    pub units: Option<u32>,
    /// How long it has held.
    #[serde(rename = "held_ms", serialize_with = "as_ms")]
    pub held: Option<Duration>,
    /// How long it still holds unless it renews.
    #[serde(rename = "expires_in_ms", serialize_with = "as_ms")]
    pub expires_in: Option<Duration>,
    /// How long ago it last renewed, or was granted if it has not renewed since; absent where the store does not tell.
    /// Together with `expires_in` this is its ttl.
    #[serde(skip)]
    pub renewed: Option<Duration>,
    /// Its claims, with the numbers the store gave them. More than one after a re-entry.
    #[serde(skip)]
    pub claims: Vec<(ClaimId, u64)>,
    /// The owners that it runs within, each once, in no order; none where the store has no queue.
    #[serde(skip)]
    pub within: Vec<Owner>,
}

/// A claim that waits for a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WaiterView {
    /// Its owner.
    pub owner: Option<Owner>,
    /// Its label for people.
    pub label: Option<String>,
    /// How it will hold. In JSON a word, as for holders.
    #[serde(serialize_with = "as_word")]
    pub shape: Option<Shape>,
    /// How many permits it wants; 1 for the other shapes.
    pub units: Option<u32>,
    /// How long it has waited.
    #[serde(rename = "waited_ms", serialize_with = "as_ms")]
    pub waited: Option<Duration>,
    /// Its id and the number the store gave it.
    #[serde(skip)]
    pub claim: (ClaimId, u64),
    /// The owners that it runs within; none where the store has no queue.
    #[serde(skip)]
    pub within: Vec<Owner>,
}

impl HolderView {
    /// Takes note of what another claim of the same owner runs within.
    fn runs_within(&mut self, owners: &[Owner]) {
        for owner in owners {
            if !self.within.contains(owner) {
                self.within.push(owner.clone());
            }
        }
    }
}

fn as_ms<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX)).serialize(serializer)
}

fn as_word<S: Serializer>(shape: &Option<Shape>, serializer: S) -> Result<S::Ok, S::Error> {
    shape.map(Shape::as_str).serialize(serializer)
}

impl NameView {
    /// A name without claims.
    pub fn free(name: Name) -> Self {
        Self { name, capacity: None, holders: Vec::new(), waiters: Vec::new(), breaks: Vec::new() }
    }

    /// Whether nobody holds it or waits for it.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty()
    }

    /// The view of a queue at a moment of the store's time; claims that have died are left out.
    pub fn of(name: Name, queue: &Queue, now: Moment) -> Self {
        let live = || queue.claims.iter().filter(|claim| claim.expires > now);
        let mut view = Self::free(name);
        for claim in live() {
            let Some(grant) = claim.grant else {
                view.waiters.push(WaiterView {
                    owner: Some(claim.owner.clone()),
                    label: Some(claim.label.to_string()),
                    shape: Some(claim.shape),
                    units: Some(claim.shape.units()),
                    waited: Some(now.since(claim.appended)),
                    claim: (claim.id, claim.number),
                    within: claim.within.clone(),
                });
                continue;
            };
            let expires_in = claim.expires.since(now);
            let renewed = claim.ttl.saturating_sub(expires_in);
            let same_owner = view.holders.iter_mut().find(|held| held.owner.as_ref() == Some(&claim.owner));
            if let Some(held) = same_owner.filter(|_| !matches!(claim.shape, Shape::Permits { .. })) {
                if held.expires_in < Some(expires_in) {
                    (held.expires_in, held.renewed) = (Some(expires_in), Some(renewed));
                }
                held.held = held.held.max(Some(now.since(grant.at)));
                // An owner may hold shared within exclusive: the name is then exclusively its own.
                if claim.shape == Shape::Exclusive {
                    held.shape = Some(Shape::Exclusive);
                }
                held.claims.push((claim.id, claim.number));
                held.runs_within(&claim.within);
                continue;
            }
            view.holders.push(HolderView {
                owner: Some(claim.owner.clone()),
                label: Some(claim.label.to_string()),
                token: Some(grant.token),
                shape: Some(claim.shape),
                units: Some(claim.shape.units()),
                held: Some(now.since(grant.at)),
                expires_in: Some(expires_in),
                renewed: Some(renewed),
                claims: vec![(claim.id, claim.number)],
                within: claim.within.clone(),
            });
        }
        let holding = || live().filter(|claim| claim.grant.is_some()).map(|claim| claim.shape);
        view.capacity = match live().next().map(|claim| claim.shape) {
            Some(Shape::Permits { of, .. }) => Some(of),
            _ if holding().any(|shape| shape == Shape::Exclusive) => Some(1),
            Some(Shape::Exclusive) if view.holders.is_empty() => Some(1),
            _ => None,
        };
        let note = |mark: &BreakMark| BreakView {
            claim: mark.claim,
            by: mark.by.to_string(),
            reason: mark.reason.to_string(),
        };
        view.breaks = queue.marks.iter().filter(|mark| mark.until > now).map(note).collect();
        view
    }
}
