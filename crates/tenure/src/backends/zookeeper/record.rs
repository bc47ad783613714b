//! What a claim's node says.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use zookeeper_client::Stat;

use super::names::{Node, may_stay};
use crate::clock::{Moment, micros};
use crate::hash::fnv1a;
use crate::machine::{Claim, ClaimRequest, Grant, Shape};
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// Who holds by the node of another library, as far as that can be told.
fn foreign_label(node: &Node) -> Arc<str> {
    format!("another library's client, by the node {}", node.name).into()
}

/// The data of a claim's node, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) id: ClaimId,
    pub(super) owner: Owner,
    pub(super) label: Arc<str>,
    pub(super) shape: Shape,
    pub(super) ttl_us: u64,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) solo: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) attempt: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) within: Vec<Owner>,
    /// The token, if it is not the creation of this node: of a claim within another, or one that was moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<u64>,
    /// The append number, if it is not the creation of this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) number: Option<u64>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Record {
    pub(super) fn of(request: &ClaimRequest, ttl: Duration) -> Self {
        Self {
            id: request.id,
            owner: request.owner.clone(),
            label: request.label.clone(),
            shape: request.shape,
            ttl_us: micros(ttl),
            solo: request.solo,
            attempt: request.attempt,
            within: request.within.clone(),
            token: None,
            number: None,
        }
    }

    pub(super) fn ttl(&self) -> Duration {
        Duration::from_micros(self.ttl_us)
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        // Strings and numbers: this cannot fail, and a node without data is one of an unknown owner.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// A node that was looked into.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// None for a node of another library.
    pub(super) record: Option<Record>,
    /// The creation of the node, as a zxid.
    pub(super) created: u64,
    /// When, by the server's wall clock in microseconds.
    pub(super) created_at: u64,
    /// The session it belongs to; zero if it belongs to none.
    pub(super) session: i64,
    /// Of its data.
    pub(super) version: i32,
}

impl Known {
    pub(super) fn of(data: &[u8], stat: &Stat) -> Self {
        Self {
            record: serde_json::from_slice(data).ok(),
            created: unsigned(stat.czxid),
            created_at: unsigned(stat.ctime).saturating_mul(1000),
            session: stat.ephemeral_owner,
            version: stat.version,
        }
    }

    pub(super) fn token(&self) -> u64 {
        self.record.as_ref().and_then(|record| record.token).unwrap_or(self.created)
    }

    pub(super) fn number(&self) -> u64 {
        self.record.as_ref().and_then(|record| record.number).unwrap_or(self.created)
    }

    /// Whether a node that is called so is a claim: it ends with a session, or is one of the locks that need not. All
    /// else is somebody's data, whatever it is called.
    pub(super) fn is_claim(&self, node: &str) -> bool {
        self.session != 0 || may_stay(node)
    }

    /// Whether this is a claim of that id indeed.
    pub(super) fn is_of(&self, id: ClaimId) -> bool {
        self.record.as_ref().is_some_and(|record| record.id == id)
    }
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A node as a claim of the machine, with what it is given once it holds. What its name does not tell, and nobody
/// looked for, is made up so that it equals nobody's.
pub(super) fn claim_of(node: &Node, known: Option<&Known>, now: Moment, ttl_max: Duration) -> (Claim, Grant) {
    let record = known.and_then(|known| known.record.as_ref());
    let foreign = known.is_some() && record.is_none();
    // Of nobody's claim is known when its session was last heard of: it may live for its whole ttl from now on.
    let ttl = record.map_or(ttl_max, Record::ttl);
    let appended = Moment(known.map_or(0, |known| known.created_at).min(now.0));
    let token = Token(known.map_or(0, Known::token));
    let owner = match record {
        Some(record) => record.owner.clone(),
        None => made_up(node),
    };
    let claim = Claim {
        id: record.map_or_else(|| id_of(node), |record| record.id),
        number: known.map_or(0, Known::number),
        owner,
        label: record.map_or_else(|| foreign_label(node), |record| record.label.clone()),
        shape: if foreign { Shape::Exclusive } else { node.shape },
        ttl,
        expires: now + ttl,
        appended,
        grant: None,
        block: 1,
        strict: false,
        skipped: 0,
        inbox: "".into(),
        solo: record.is_none_or(|record| record.solo),
        attempt: record.map_or(0, |record| record.attempt),
        within: record.map_or_else(Vec::new, |record| record.within.clone()),
    };
    (claim, Grant { token, block_end: token, at: appended })
}

/// The id of a node, made up for one that has none.
pub(super) fn id_of(node: &Node) -> ClaimId {
    node.id.unwrap_or_else(|| ClaimId(fnv1a(node.name.bytes())))
}

/// An owner that nobody is. It has no room for a real one's id, and a space in none.
fn made_up(node: &Node) -> Owner {
    Owner::new(format!("?{:016x}", fnv1a(node.name.bytes()))).unwrap_or_else(|_| Owner::unknown())
}

/// Whether an owner was made up for a claim of another library.
pub(super) fn is_made_up(owner: &Owner) -> bool {
    let text = owner.to_string();
    text.len() == 17 && text.starts_with('?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_and_what_is_none_is_another_librarys() {
        let record = Record {
            id: ClaimId(7),
            owner: Owner::random(),
            label: "web-1".into(),
            shape: Shape::Permits { units: 1, of: 3 },
            ttl_us: 10_000_000,
            solo: false,
            attempt: 0,
            within: Vec::new(),
            token: None,
            number: None,
        };
        assert_eq!(serde_json::from_slice::<Record>(&record.bytes()).unwrap(), record);
        assert!(!String::from_utf8(record.bytes()).unwrap().contains("token"), "only what is said");
        for data in [&b""[..], b"10.0.0.1", b"{}", b"{\"id\":7}", b"\xff"] {
            assert!(serde_json::from_slice::<Record>(data).is_err());
        }
    }
}
