//! How claims lie in etcd: keys, values, and the queue they make.
//!
//! A claim is the key `NAME/LEASE-CLAIM`, both in hex, bound to the lease; the key's creation revision is its place
//! and its token. Go's `concurrency.Mutex` and `etcdctl lock` use `NAME/LEASE`, so both sides see each other's keys
//! in one order. Claims of an owner that re-enters are added to the value of the key that holds: it keeps its place,
//! whoever looks.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::wire::{ASCENDING, BY_CREATION, KeyValue, RangeRequest, end_of};
use crate::backend::{ClaimRequest, Shape};
use crate::clock::{Moment, micros};
use crate::hash::fnv1a;
use crate::machine::{Claim, Grant, Queue};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How many claims of a queue are read at once; those behind look only at the one before them.
pub(super) const HEAD_MAX: i64 = 256;
/// A lease of another library may be of any length; asking about it again after this long costs little.
const FOREIGN_TTL: Duration = Duration::from_secs(5);

/// What a key of ours says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Value {
    pub(super) owner: Owner,
    /// Whether nobody may re-enter it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) solo: bool,
    /// More than one after a re-entry.
    pub(super) claims: Vec<Part>,
}

/// One claim of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) id: ClaimId,
    pub(super) label: Arc<str>,
    pub(super) shape: Shape,
    /// In microseconds.
    pub(super) ttl: u64,
    /// When its client asked, by that client's wall clock: for people.
    pub(super) since: Moment,
    /// The revision it counts as appended at, if that is not the key's creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) number: Option<u64>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) attempt: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) within: Vec<Owner>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's form
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Part {
    pub(super) fn of(request: &ClaimRequest, since: u64, number: Option<u64>) -> Self {
        Self {
            id: request.id,
            label: request.label.clone(),
            shape: request.shape,
            ttl: micros(request.ttl),
            since: Moment(since),
            number,
            attempt: request.attempt,
            within: request.within.clone(),
        }
    }
}

impl Value {
    pub(super) fn encode(&self) -> Vec<u8> {
        // Text and numbers: this cannot fail, and what is empty would be a claim of another library.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The longest of its claims' ttls: that of its lease, as far as the key tells.
    pub(super) fn lived(&self) -> Duration {
        let longest = self.claims.iter().map(|part| part.ttl).max().unwrap_or_default();
        Duration::from_micros(longest).min(crate::TTL_MAX)
    }
}

/// One key of a name's queue.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) key: Vec<u8>,
    pub(super) created: i64,
    pub(super) modified: i64,
    pub(super) lease: i64,
    /// None if another library made it.
    pub(super) value: Option<Value>,
}

impl Entry {
    pub(super) fn of(kv: KeyValue) -> Self {
        let value: Option<Value> = serde_json::from_slice(&kv.value).ok();
        Self {
            created: kv.create_revision,
            modified: kv.mod_revision,
            lease: kv.lease,
            value: value.filter(|value| !value.claims.is_empty()),
            key: kv.key,
        }
    }

    pub(super) fn part(&self, id: ClaimId) -> Option<&Part> {
        self.value.as_ref()?.claims.iter().find(|part| part.id == id)
    }

    /// Whether this claim of its queue is one of its own.
    pub(super) fn has(&self, claim: &Claim, now: Moment) -> bool {
        self.claims(now).iter().any(|(own, _)| (own.id, own.number) == (claim.id, claim.number))
    }

    /// The number a claim of it has.
    pub(super) fn number_of(&self, part: &Part) -> u64 {
        part.number.unwrap_or_else(|| revision(self.created))
    }

    /// Its claims, with what they are given once they hold.
    fn claims(&self, now: Moment) -> Vec<(Claim, Grant)> {
        let token = Token(revision(self.created));
        let Some(value) = &self.value else {
            let grant = Grant { token, block_end: token, at: now };
            return vec![(self.foreign(now), grant)];
        };
        let claim = |part: &Part| {
            let ttl = Duration::from_micros(part.ttl);
            let claim = Claim {
                id: part.id,
                number: self.number_of(part),
                owner: value.owner.clone(),
                label: part.label.clone(),
                shape: part.shape,
                ttl,
                expires: now + ttl,
                appended: part.since,
                grant: None,
                block: 1,
                strict: false,
                skipped: 0,
                inbox: "".into(),
                solo: value.solo,
                attempt: part.attempt,
                within: part.within.clone(),
            };
            (claim, Grant { token, block_end: token, at: part.since })
        };
        // What takes the most comes first: the others re-enter it.
        let mut claims: Vec<_> = value.claims.iter().map(claim).collect();
        claims.sort_by_key(|(claim, _)| claim.shape != Shape::Exclusive);
        claims
    }

    /// A claim of another library: it takes everything, and nothing is known of its owner.
    fn foreign(&self, now: Moment) -> Claim {
        Claim {
            id: foreign_id(&self.key),
            number: revision(self.created),
            owner: Owner::unknown(),
            label: format!("another library's client, by the key {}", String::from_utf8_lossy(&self.key)).into(),
            shape: Shape::Exclusive,
            ttl: FOREIGN_TTL,
            expires: now + FOREIGN_TTL,
            appended: now,
            grant: None,
            block: 1,
            strict: false,
            skipped: 0,
            inbox: "".into(),
            solo: true,
            attempt: 0,
            within: Vec::new(),
        }
    }
}

fn foreign_id(key: &[u8]) -> ClaimId {
    ClaimId(fnv1a(key.iter().copied()))
}

/// A revision as tokens and numbers are counted.
pub(super) fn revision(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

/// Whether a key is a claim of this name. One of a name below it is not; nor is one without a lease, which would
/// never end: that is data.
pub(super) fn is_claim_under(under: &[u8], kv: &KeyValue) -> bool {
    kv.lease != 0 && kv.key.get(under.len()..).is_some_and(|rest| !rest.contains(&b'/'))
}

/// The keys of a name, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub(super) entries: Vec<Entry>,
    /// Whether there are more behind.
    pub(super) more: bool,
    /// Whether keys of names below this one, or data, were among those read, and took the room of others.
    pub(super) mixed: bool,
    /// When it was looked at.
    pub(super) revision: i64,
}

impl Line {
    /// From the keys under `under`; others than claims are not of its queue.
    pub(super) fn of(under: &[u8], kvs: Vec<KeyValue>, more: bool, revision: i64) -> Self {
        let read = kvs.len();
        let mut entries: Vec<Entry> = kvs.into_iter().filter(|kv| is_claim_under(under, kv)).map(Entry::of).collect();
        entries.sort_by_key(|entry| entry.created);
        Self { mixed: entries.len() < read, entries, more, revision }
    }

    pub(super) fn queue(&self, now: Moment) -> Queue {
        Queue::ordered(self.entries.iter().flat_map(|entry| entry.claims(now)))
    }

    /// The queue of those that came before a key.
    pub(super) fn queue_before(&self, created: i64, now: Moment) -> Queue {
        let before = self.entries.iter().filter(|entry| entry.created < created);
        Queue::ordered(before.flat_map(|entry| entry.claims(now)))
    }

    /// The first key that has this claim.
    pub(super) fn find(&self, id: ClaimId) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.part(id).is_some())
    }

    /// The key that has the claim which holds this number.
    pub(super) fn holding(&self, claim: &Claim) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.part(claim.id).is_some() || foreign_id(&entry.key) == claim.id)
    }

    /// The key that holds for the owner of a claim that waits behind it, if the claim may re-enter it. `queue` is
    /// that of this line.
    pub(super) fn outer_of(&self, own: &Entry, id: ClaimId, queue: &Queue) -> Option<&Entry> {
        let (value, part) = own.value.as_ref().zip(own.part(id))?;
        let joinable = |held: &&Claim| held.owner == value.owner && !held.solo && held.shape.covers(part.shape);
        // Who holds depends on those before alone, so the holders before this key are those of the whole queue that
        // came before.
        queue.holders().filter(joinable).filter_map(|held| self.holding(held)).find(|outer| outer.created < own.created)
    }
}

/// Where keys are.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    prefix: Vec<u8>,
}

impl Keys {
    pub(super) fn new(prefix: Vec<u8>) -> Self {
        Self { prefix }
    }

    /// What the keys of a name begin with.
    pub(super) fn under(&self, name: &Name) -> Vec<u8> {
        [&self.prefix, name.as_str().as_bytes(), b"/"].concat()
    }

    pub(super) fn claim(&self, name: &Name, lease: i64, id: ClaimId) -> Vec<u8> {
        let mut key = self.under(name);
        key.extend_from_slice(format!("{lease:x}-{id}").as_bytes());
        key
    }

    /// What all keys of names that begin so begin with.
    pub(super) fn of_prefix(&self, prefix: &str) -> Vec<u8> {
        [&self.prefix, prefix.as_bytes()].concat()
    }

    /// The name that a key is a claim of, if it looks like one.
    pub(super) fn name_of(&self, key: &[u8], lease: i64) -> Option<Name> {
        let rest = std::str::from_utf8(key.strip_prefix(self.prefix.as_slice())?).ok()?;
        let (name, last) = rest.rsplit_once('/')?;
        let (of_lease, id) = last.split_once('-').map_or((last, None), |(of_lease, id)| (of_lease, Some(id)));
        let hex = |text: &str, most| {
            (1..=most).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        (lease != 0 && hex(of_lease, 16) && id.is_none_or(|id| hex(id, 16))).then(|| Name::new(name).ok()).flatten()
    }

    /// The claim that a key of ours is.
    pub(super) fn claim_of(&self, key: &[u8]) -> Option<(Name, ClaimId)> {
        let last = key.rsplit(|byte| *byte == b'/').next()?;
        let (_, id) = std::str::from_utf8(last).ok()?.split_once('-')?;
        Some((self.name_of(key, 1)?, id.parse().ok()?))
    }

    /// Where notes of breaks are. No name begins like that: it has no control characters.
    pub(super) fn notes(&self) -> Vec<u8> {
        [&self.prefix, &b"\0tenure/broken/"[..]].concat()
    }

    pub(super) fn note(&self, id: ClaimId) -> Vec<u8> {
        let mut key = self.notes();
        key.extend_from_slice(id.to_string().as_bytes());
        key
    }

    /// Where the memo of a name is. Outside of the name's own keys: to other clients' mutexes each of those is a
    /// contender.
    pub(super) fn memo(&self, name: &Name) -> Vec<u8> {
        [&self.prefix, &b"\0tenure/memo/"[..], name.as_str().as_bytes()].concat()
    }

    /// The claim that a note is about.
    pub(super) fn noted(&self, key: &[u8]) -> Option<ClaimId> {
        std::str::from_utf8(key.strip_prefix(self.notes().as_slice())?).ok()?.parse().ok()
    }
}

/// The first claims of a queue.
pub(super) fn head(under: &[u8]) -> RangeRequest {
    RangeRequest { limit: HEAD_MAX, ..all(under) }
}

/// All claims of a queue.
pub(super) fn all(under: &[u8]) -> RangeRequest {
    RangeRequest {
        key: under.to_vec(),
        range_end: end_of(under),
        sort_order: ASCENDING,
        sort_target: BY_CREATION,
        ..RangeRequest::default()
    }
}

/// One key.
pub(super) fn only(key: &[u8]) -> RangeRequest {
    RangeRequest { key: key.to_vec(), ..RangeRequest::default() }
}

/// What remains of a claim that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    pub(super) by: Arc<str>,
    pub(super) reason: Arc<str>,
    pub(super) number: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kv(key: &str, created: i64, value: &[u8]) -> KeyValue {
        KeyValue {
            key: key.as_bytes().to_vec(),
            create_revision: created,
            mod_revision: created,
            version: 1,
            value: value.to_vec(),
            lease: 1,
        }
    }

    fn value(id: u64, owner: &Owner, shape: Shape) -> Vec<u8> {
        let part = Part {
            id: ClaimId(id),
            label: "label".into(),
            shape,
            ttl: 10_000_000,
            since: Moment(5),
            number: None,
            attempt: 0,
            within: Vec::new(),
        };
        Value { owner: owner.clone(), solo: false, claims: vec![part] }.encode()
    }

    #[test]
    fn keys_of_other_libraries_stand_in_the_same_order_and_data_and_names_below_do_not() {
        let [a, b] = [Owner::random(), Owner::random()];
        let kvs = vec![
            kv("n/3-000000000000000b", 9, &value(11, &b, Shape::Exclusive)),
            kv("n/below/7", 1, b""),
            kv("n/1-000000000000000a", 5, &value(10, &a, Shape::Exclusive)),
            kv("n/2", 3, b""),
            KeyValue { lease: 0, ..kv("n/config", 2, b"") },
        ];
        let line = Line::of(b"n/", kvs, false, 9);
        let queue = line.queue(Moment(0));
        let order: Vec<_> = queue.claims.iter().map(|claim| (claim.number, claim.grant.is_some())).collect();
        assert_eq!(order, [(3, true), (5, false), (9, false)]);
    }

    #[test]
    fn keys_say_whose_they_are() {
        let keys = Keys::new(b"/locks/".to_vec());
        let name = Name::new("orders/42").unwrap();
        let key = keys.claim(&name, 0x7f, ClaimId(5));
        assert_eq!(key, b"/locks/orders/42/7f-0000000000000005");
        assert_eq!(keys.name_of(&key, 0x7f), Some(name.clone()));
        assert_eq!(keys.name_of(b"/locks/orders/42/7f", 1), Some(name.clone()));
        assert_eq!(keys.claim_of(&key), Some((name, ClaimId(5))));
        assert_eq!(keys.claim_of(b"/locks/orders/42/7f"), None, "another library's");
        assert_eq!(keys.name_of(b"/locks/orders/42/7f", 0), None, "data, not a lock");
        assert_eq!(keys.name_of(b"/locks/orders/42/config", 1), None);
        assert_eq!(keys.name_of(b"elsewhere/7f", 1), None);
        assert_eq!(keys.noted(&keys.note(ClaimId(5))), Some(ClaimId(5)));
        assert_eq!(keys.name_of(&keys.note(ClaimId(5)), 1), None);
        for name in ["orders/42", "x", "a/7f", "a/7f-0000000000000005"] {
            let key = keys.memo(&Name::new(name).unwrap());
            assert_eq!((keys.name_of(&key, 1), keys.claim_of(&key)), (None, None), "{name}");
        }
    }
}
