//! What a watch tells.

use std::fmt;
use std::time::Duration;

use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// What happened to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ChangeKind {
    /// It waits.
    Waiting,
    /// It holds.
    Granted,
    /// It held, and ended before its ttl was over: its holder released it, or somebody ended it without leaving a note
    /// that the store shows.
    Released,
    /// It held, and its ttl was over without a renewal.
    Expired,
    /// It held, and somebody broke it.
    Broken,
    /// It held, and the store no longer had it when it came back after it had been out of reach.
    Lost,
    /// It waited, and waits no more: it gave up, or it died, or it held and ended between two looks.
    Left,
}

impl ChangeKind {
    /// The word for it, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Broken => "broken",
            Self::Lost => "lost",
            Self::Left => "left",
        }
    }
}

impl fmt::Display for ChangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change of one claim. What a foreign client did not record is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// The name.
    pub name: Name,
    /// Whose claim it is.
    pub owner: Option<Owner>,
    /// Its label for people.
    pub label: Option<String>,
    /// Its fencing token, if it holds or held.
    pub token: Option<Token>,
    /// When, on this machine's wall clock, in microseconds since 1970: as close as the looks tell, and never later than
    /// the look that showed it.
    pub at_micros: u64,
    /// How long it has held, or had.
    pub held: Option<Duration>,
    /// How long it has waited, or had.
    pub waited: Option<Duration>,
    /// Who broke it and why.
    pub broken_by: Option<(String, String)>,
}
