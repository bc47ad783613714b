//! A memo: a small value that is kept with a name.
//!
//! Only the exclusive holder of the name writes its memo, and the store checks that in the step that writes it; anyone
//! reads it. So what lives in a memo is fenced by construction: a holder that was paused past its deadline changes
//! nothing. A memo outlives the claim that wrote it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// The most bytes a memo has.
pub const MEMO_BYTES_MAX: usize = 64 * 1024;

/// What is kept with a name, as it is read.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memo {
    /// The fencing token of the holder that wrote it.
    pub token: Token,
    /// Which write it is. No other write of this name has the same.
    pub version: u64,
    /// How long ago it was written, by the store's wall clock.
    pub age: Duration,
    /// Who keeps it there.
    pub kind: MemoKind,
    /// What was written.
    pub bytes: Arc<[u8]>,
}

impl Memo {
    /// A memo as a store has it.
    pub fn new(kind: MemoKind, token: Token, version: u64, age: Duration, bytes: impl Into<Arc<[u8]>>) -> Self {
        Self { token, version, age, kind, bytes: bytes.into() }
    }
}

impl fmt::Debug for Memo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memo")
            .field("token", &self.token)
            .field("version", &self.version)
            .field("age", &self.age)
            .field("kind", &self.kind)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

/// Who keeps a memo: recipes on one name must not erase each other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoKind {
    /// A program, by [`Guard::write_memo`](crate::Guard::write_memo).
    User,
    /// The runs of a job that runs once per slot.
    Once,
    /// Who leads.
    Election,
    /// A cached value.
    Cached,
}

impl MemoKind {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::User, Self::Once, Self::Election, Self::Cached];

    /// The word for it: `user`, `once`, `election` or `cached`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Once => "once",
            Self::Election => "election",
            Self::Cached => "cached",
        }
    }

    /// The kind that this is the word for.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

impl fmt::Display for MemoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A memo to write.
#[derive(Clone, PartialEq, Eq)]
pub struct MemoWrite {
    /// The claim that holds the name.
    pub id: ClaimId,
    /// Whose claim it is.
    pub owner: Owner,
    /// Only if the store gave the claim this number: another attempt with its id may have taken it over.
    pub number: Option<u64>,
    /// A token of the claim's present block.
    pub token: Token,
    /// The version it replaces; zero if there is to be none.
    pub after: u64,
    /// Which write it is: random, the same for each retry of it.
    pub write: u64,
    /// Who keeps it there.
    pub kind: MemoKind,
    /// For how long it is kept, by the store's wall clock; for ever without.
    pub keep: Option<Duration>,
    /// What to write.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for MemoWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoWrite")
            .field("id", &self.id)
            .field("number", &self.number)
            .field("token", &self.token)
            .field("after", &self.after)
            .field("write", &self.write)
            .field("kind", &self.kind)
            .field("keep", &self.keep)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// The answer to a [`MemoWrite`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoWritten {
    /// It is written, by this request or an earlier copy of it; its version.
    Done {
        /// The version.
        version: u64,
    },
    /// The memo has another version than the one to replace: nothing changed. This is the present memo.
    Changed(Option<Memo>),
    /// The claim does not hold the name exclusively with that token: nothing changed.
    NotHolder,
    /// A memo of another kind is kept there: nothing changed.
    OtherKind(MemoKind),
}

/// What becomes of a store's memos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemosSurvive {
    /// The store crashes and comes back: what was acknowledged is still there.
    pub crash: bool,
    /// The store fails over to a replica: likewise.
    pub failover: bool,
    /// The store throws nothing away when it runs out of memory.
    pub eviction: bool,
}

impl MemosSurvive {
    /// What a store's memos survive.
    pub const fn new(crash: bool, failover: bool, eviction: bool) -> Self {
        Self { crash, failover, eviction }
    }
}
