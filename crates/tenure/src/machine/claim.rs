//! The state: one queue of claims per name.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claims::Claims;
use crate::clock::Moment;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How often a head of the queue that nobody hears may be passed over.
pub const SKIPS_MAX: u8 = 3;

/// How many waiters are looked at for one that is heard. The dead among them are gone one ttl later anyway.
pub(crate) const SKIP_WINDOW: usize = 128;

/// From how many operations on how many claims on an index of them pays.
const INDEX_OPS_MIN: usize = 8;
const INDEX_CLAIMS_MIN: usize = 64;

/// How much of a name a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Shape {
    /// Everything: a mutex, or the writer of a read-write lock.
    Exclusive,
    /// One of an unlimited number: the reader of a read-write lock.
    Shared,
    /// `units` of `of`: a semaphore.
    Permits {
        /// How many it takes.
        units: u32,
        /// How many there are.
        of: u32,
    },
}

impl Shape {
    /// Whether an owner that holds `self` may take `other` as well without taking anything more.
    pub(crate) fn covers(self, other: Self) -> bool {
        match self {
            Self::Exclusive => matches!(other, Self::Exclusive | Self::Shared),
            Self::Shared => other == Self::Shared,
            Self::Permits { .. } => false,
        }
    }

    /// Whether claims of both shapes may stand in one queue.
    pub(crate) fn mixes_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Permits { of: n, .. }, Self::Permits { of: m, .. }) => n == m,
            (Self::Permits { .. }, _) | (_, Self::Permits { .. }) => false,
            _ => true,
        }
    }

    /// The word for it: `exclusive`, `shared` or `permits`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Permits { .. } => "permits",
        }
    }

    /// How many permits it takes; one for the other shapes.
    pub fn units(self) -> u32 {
        match self {
            Self::Permits { units, .. } => units,
            Self::Exclusive | Self::Shared => 1,
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits { units, of } => write!(f, "{units} of {of} permits"),
        }
    }
}

/// What a granted claim was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The fencing token: the first of the block.
    pub token: Token,
    /// The last token of the block that was reserved with it; equal to `token` for a block of one.
    pub block_end: Token,
    /// When, in the store's time.
    pub at: Moment,
}

/// One wish to hold a name: it waits, then holds, then ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Its id.
    pub id: ClaimId,
    /// The number the store gave it at its append: tells two claims with the same id apart.
    pub number: u64,
    /// Who claims.
    pub owner: Owner,
    /// The owner, for people.
    pub label: Arc<str>,
    /// How much of the name it takes.
    pub shape: Shape,
    /// How long it lives without a renewal. Never shrinks.
    pub ttl: Duration,
    /// When it dies unless renewed, in the store's time.
    pub expires: Moment,
    /// When it was appended, in the store's time.
    pub appended: Moment,
    /// What it was given, once granted.
    pub grant: Option<Grant>,
    /// How many tokens to reserve at its grant.
    pub block: u32,
    /// Whether it must never be passed over.
    pub strict: bool,
    /// How often it was passed over.
    pub skipped: u8,
    /// Where its client hears of a grant.
    pub inbox: Arc<str>,
    /// Whether nobody may re-enter it.
    pub solo: bool,
    /// The attempt that asked last.
    pub attempt: u64,
    /// The owners its process runs within, for finding deadlocks.
    pub within: Vec<Owner>,
}

/// What remains of a claim that was broken, so that its holder is told who and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BreakMark {
    /// The broken claim.
    pub claim: ClaimId,
    /// Who broke it.
    pub by: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
    /// When the mark is dropped, in the store's time.
    pub until: Moment,
}

/// The state of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The highest token given so far.
    pub last: Token,
    /// The highest append number given so far.
    pub last_number: u64,
    /// The claims in order: first the holders, then the waiters.
    pub claims: Claims,
    /// What remains of broken claims.
    pub marks: Vec<BreakMark>,
    /// No claim and no mark dies before this moment: until then there is nothing to sweep.
    pub(crate) sweep_at: Moment,
}

impl Queue {
    /// A new queue in a store that has forgotten other names whose highest token or append number
    /// was `forgotten`.
    pub fn new(forgotten: u64) -> Self {
        Self { last: Token(forgotten), last_number: forgotten, ..Self::default() }
    }

    /// What a store must not go below when it forgets this name.
    pub fn high_water(&self) -> u64 {
        self.last.0.max(self.last_number)
    }

    /// Whether the name may be forgotten.
    pub fn is_idle(&self) -> bool {
        self.claims.is_empty() && self.marks.is_empty()
    }

    /// The latest moment at which anything in it dies: afterwards the name may be forgotten.
    pub fn dead_at(&self) -> Moment {
        let claims = self.claims.iter().map(|claim| claim.expires);
        let marks = self.marks.iter().map(|mark| mark.until);
        claims.chain(marks).max().unwrap_or_default()
    }

    /// The claims that hold.
    pub fn holders(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().take_while(|claim| claim.grant.is_some())
    }

    /// The claims that wait, in order.
    pub fn waiters(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().skip_while(|claim| claim.grant.is_some())
    }

    /// Looks once for what dies first, so that operations before that moment need not.
    pub(crate) fn prepare(&mut self) {
        let claims = self.claims.iter().map(|claim| claim.expires);
        let marks = self.marks.iter().map(|mark| mark.until);
        self.sweep_at = claims.chain(marks).min().unwrap_or(Moment(u64::MAX));
    }

    /// Makes finding claims by id quick, if so many operations are worth it.
    #[cfg_attr(not(any(feature = "postgres", feature = "sqlite")), allow(dead_code))]
    pub(crate) fn prepare_for(&mut self, ops: usize) {
        if ops >= INDEX_OPS_MIN && self.claims.len() >= INDEX_CLAIMS_MIN {
            self.claims.index();
        }
    }

    /// The claim with this id.
    pub fn find(&self, id: ClaimId) -> Option<&Claim> {
        self.claims.get(self.position(id)?)
    }

    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        self.claims.position(id)
    }
}
