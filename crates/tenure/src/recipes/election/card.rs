//! What a leader leaves for everybody to read, and who leads by it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::engine::Tenure;
use crate::error::Result;
use crate::machine::{HolderView, Shape};
use crate::memo::{Memo, MemoKind};
use crate::token::Token;

/// Who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Its term: the fencing token of its leadership. It rises from leader to leader.
    pub term: Token,
    /// What people see of it: host, pid, purpose.
    pub label: String,
    /// Where it is reached, if it said so.
    pub address: Option<String>,
    /// Since when it leads, by the store's clock where it has one.
    pub since: SystemTime,
}

/// A leader's card, as it is kept with the name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    label: String,
    address: Option<String>,
    since_ms: u64,
}

impl Card {
    pub(super) fn new(label: &str, address: Option<&str>, since: SystemTime) -> Self {
        let since = since.duration_since(UNIX_EPOCH).unwrap_or_default();
        let since_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        Self { label: label.to_owned(), address: address.map(str::to_owned), since_ms }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn of_term(self, term: Token) -> Leader {
        let since = UNIX_EPOCH + Duration::from_millis(self.since_ms);
        Leader { term, label: self.label, address: self.address, since }
    }
}

/// A moment of a wall clock.
pub(super) fn at(wall_micros: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(wall_micros)
}

/// Who leads: the holder, if the card there is its own.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(super) async fn present(tenure: &Tenure, name: &str) -> Result<Option<Leader>> {
    let view = tenure.inspect(name).await?;
    let Some(holder) = view.holders.first() else { return Ok(None) };
    Ok(tenure.memo(name).await?.and_then(|memo| leader(holder, &memo)))
}

/// The leader that a holder and a memo make, if the memo is the card of that holder.
fn leader(holder: &HolderView, memo: &Memo) -> Option<Leader> {
    let is_its_own = holder.shape == Some(Shape::Exclusive) && holder.token == Some(memo.token);
    let card: Card = serde_json::from_slice(&memo.bytes).ok().filter(|_| memo.kind == MemoKind::Election)?;
    is_its_own.then(|| card.of_term(memo.token))
}
