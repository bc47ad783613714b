//! The operations, and what they answer.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::{BreakMark, Grant, Shape};
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// A wish to hold a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimRequest {
    /// The id of the attempt, the same for each retry of it.
    pub id: ClaimId,
    /// Who claims.
    pub owner: Owner,
    /// The owner, for people.
    pub label: Arc<str>,
    /// How much of the name it takes.
    pub shape: Shape,
    /// How long it lives without a renewal.
    pub ttl: Duration,
    /// Whether it waits if it cannot be granted at once.
    pub queue: bool,
    /// How many tokens to reserve at the grant: 1, or a block for a cohort.
    pub block: u32,
    /// Whether it must never be passed over.
    pub strict: bool,
    /// Where its client hears of the grant.
    pub inbox: Arc<str>,
    /// The owners its process runs within.
    pub within: Vec<Owner>,
    /// Only re-enter: refused unless the owner holds with this token.
    pub reenter: Option<Token>,
    /// Whether tasks of one process hand it over among themselves, so that nobody may re-enter it.
    pub solo: bool,
    /// Which attempt with this id asks: zero unless the id may come again. Another attempt takes the claim
    /// over, with a new number, so that the one before cannot end it.
    pub attempt: u64,
    /// For how long somebody is taken to hold the name should the store have no claim of it at all: what a
    /// waiter knew of the holder before the store lost both.
    #[serde(default)]
    pub presumed: Duration,
}

/// What is asked of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Append a claim, or answer for it again and renew it.
    Claim(ClaimRequest),
    /// Keep a claim alive, waiting or holding.
    Renew {
        /// Which.
        id: ClaimId,
        /// For how long; a shorter ttl than it has keeps the longer one.
        ttl: Duration,
        /// Only if the store gave it this number.
        number: Option<u64>,
    },
    /// End a claim, waiting or holding.
    Release {
        /// Which.
        id: ClaimId,
        /// Only if the store gave it this number.
        number: Option<u64>,
        /// Only if it still waits.
        waiting_only: bool,
    },
    /// Ask for the block of tokens after the one that ends with `block_end`, for the claim `id`.
    /// Given iff nobody waits; otherwise this is the release of `id`, and `next` is appended.
    /// Changes nothing if `block_end` is not the end of the claim's present block.
    NextBlock {
        /// The claim that holds.
        id: ClaimId,
        /// The end of its present block.
        block_end: Token,
        /// The claim of the next local task.
        next: ClaimRequest,
    },
    /// End all holders' claims, or one owner's.
    Break {
        /// Only this owner's.
        owner: Option<Owner>,
        /// Only of holders whose token is at most this.
        up_to: Option<Token>,
        /// Who breaks.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// End one claim that waits, and leave a mark: whoever waits for it is told by whom and why.
    BreakWaiter {
        /// Which.
        id: ClaimId,
        /// Only if the store gave it this number.
        number: u64,
        /// Who breaks.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
    },
    /// Move a waiting claim that nobody hears behind a later one.
    Skip {
        /// The claim to pass over.
        id: ClaimId,
        /// The claim it goes behind.
        behind: ClaimId,
    },
}

/// How a claim stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The number the store gave the claim at its append.
    pub number: u64,
    /// Its ttl in the store.
    pub ttl: Duration,
    /// What it was given, if it holds, else its place.
    pub state: Result<Grant, Place>,
}

/// Where a waiting claim stands, or would stand. Somebody who has just left may still be counted; nobody is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// How many claims stand before it, holders included.
    pub ahead: usize,
    /// How many waiters stand before it.
    pub waiters_ahead: usize,
    /// The label of the first holder.
    pub holder: Arc<str>,
    /// The time until the first holder's claim dies unless renewed.
    pub holder_expires_in: Duration,
    /// The longest ttl of those who hold: none of them trusts its lease for longer than that from its last renewal on.
    pub holder_ttl: Duration,
}

/// What an operation answers to the one who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The claim is in the queue.
    Stands(Standing),
    /// Somebody else holds it, and the claim was not to wait.
    Busy(Place),
    /// The claim can never be granted beside the live claims of this name.
    Refused(Refusal),
    /// The claim is not in the queue.
    Gone,
    /// The claim is not in the queue, because it was broken.
    Broken(BreakMark),
    /// The claim was ended.
    Released,
    /// The claim holds, and was to end only while it waits.
    Holds,
    /// These claims were ended by a break.
    Evicted(Vec<Granted>),
    /// This claim, which waited, was ended by a break.
    WaiterEnded {
        /// Which.
        id: ClaimId,
        /// Where its client listens.
        inbox: Arc<str>,
        /// The number the store gave it at its append.
        number: u64,
    },
    /// The next block was refused since others wait: `id` has ended and this is the next task's claim.
    Moved(Standing),
    /// The queue was changed, and there is nothing to tell.
    Done,
}

/// Why a claim is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The name is in use with another shape or another number of permits.
    Mixed {
        /// The shape of the oldest live claim.
        live: Shape,
        /// The shape asked for.
        asked: Shape,
    },
    /// The owner holds it shared and asks for it exclusively.
    Upgrade,
    /// The owner holds permits of it and asks for more.
    PermitsWithinPermits,
    /// The owner holds it outside a session, where it is handed over among local tasks.
    NotSession,
    /// The owner does not hold it with the token to re-enter.
    NotHeld,
    /// More units than there are, or none.
    Units {
        /// The shape asked for.
        asked: Shape,
    },
}

/// A claim that was granted, or ended by a break, by somebody else's operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The claim.
    pub id: ClaimId,
    /// Where its client listens.
    pub inbox: Arc<str>,
    /// What it was given.
    pub grant: Grant,
    /// The number the store gave it at its append.
    pub number: u64,
}

/// The result of [`apply`](super::apply).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer to the one who asked.
    pub outcome: Outcome,
    /// The waiting claims that were granted, in order; never the one whose standing is the outcome.
    pub grants: Vec<Granted>,
}
