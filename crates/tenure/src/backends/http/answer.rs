//! What the service answers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::backend::{Capabilities, Guarantees, MemosSurvive, Place, Refusal, Standing, Survival};
use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::lease::margin;
use crate::machine::{Grant, Shape};
use crate::token::Token;

/// Any answer to an operation on a claim: its fields are those of grants, places, renewals and problems.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Reply {
    pub(super) state: Option<String>,
    token: Option<u64>,
    number: Option<u64>,
    ttl_ms: Option<u64>,
    pub(super) expires_in_ms: Option<u64>,
    ahead: Option<usize>,
    waiters_ahead: Option<usize>,
    holder: Option<String>,
    holder_expires_in_ms: Option<u64>,
    holder_ttl_ms: Option<u64>,
    pub(super) kind: Option<String>,
    pub(super) message: Option<String>,
    hint: Option<String>,
    certainty: Option<String>,
    refusal: Option<String>,
    live: Option<LiveShape>,
    by: Option<String>,
    reason: Option<String>,
    pub(super) broken: Option<usize>,
    pub(super) version: Option<u64>,
    pub(super) memo_kind: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct LiveShape {
    shape: String,
    units: u32,
    capacity: Option<u32>,
}

#[derive(Deserialize)]
struct Replies {
    locks: Vec<Reply>,
}

/// Reads an answer of JSON.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("this is no answer of a tenure service: {error}");
        Error::new(ErrorKind::Store, message).with_certainty(Certainty::Unknown)
    })
}

/// Reads the answer to one operation. What a proxy says of its own is a problem without fields.
pub(super) fn read_reply(status: u16, body: &[u8]) -> Result<Reply> {
    match read::<Reply>(body) {
        Ok(reply) => Ok(reply),
        Err(_) if status >= 400 => Ok(Reply::default()),
        Err(error) => Err(error),
    }
}

/// Reads the answers to so many renewals.
pub(super) fn read_replies(status: u16, body: &[u8], count: usize) -> Result<Vec<Reply>> {
    if status != 200 {
        return Err(problem(status, body));
    }
    let replies: Replies = read(body)?;
    if replies.locks.len() == count {
        return Ok(replies.locks);
    }
    let message = format!("{} answers to {count} renewals", replies.locks.len());
    Err(Error::new(ErrorKind::Store, message).with_certainty(Certainty::Unknown))
}

/// The error that an answer tells of.
pub(super) fn problem(status: u16, body: &[u8]) -> Error {
    read_reply(status, body).unwrap_or_default().error(status)
}

/// Why a claim can never be granted.
pub(super) struct Refused {
    word: String,
    live: Option<Shape>,
}

impl Refused {
    pub(super) fn into_refusal(self, asked: Shape) -> Refusal {
        match (self.word.as_str(), self.live) {
            ("mixed", Some(live)) => Refusal::Mixed { live, asked },
            ("upgrade", _) => Refusal::Upgrade,
            ("permits_within_permits", _) => Refusal::PermitsWithinPermits,
            ("not_session", _) => Refusal::NotSession,
            ("not_held", _) => Refusal::NotHeld,
            _ => Refusal::Units { asked },
        }
    }
}

impl Reply {
    /// The moment from which a ttl would have to count for the lease to be trusted just as long as the service says.
    pub(super) fn counted_from(&self, sent: Moment) -> Moment {
        let ttl = millis(self.ttl_ms);
        let left = millis(self.expires_in_ms);
        (sent + left + margin(ttl).min(ttl)) - ttl
    }

    /// How the claim stands.
    pub(super) fn standing(&self, holds: bool) -> Result<Standing> {
        let (Some(number), Some(ttl)) = (self.number, self.ttl_ms) else {
            let message = "the answer has neither number nor ttl_ms: this is no tenure service";
            return Err(Error::new(ErrorKind::Store, message).with_certainty(Certainty::Unknown));
        };
        let token = Token(self.token.unwrap_or(0));
        let grant = || Grant { token, block_end: token, at: Moment(0) };
        let state = if holds { Ok(grant()) } else { Err(self.place()) };
        Ok(Standing { number, ttl: Duration::from_millis(ttl), state })
    }

    pub(super) fn place(&self) -> Place {
        Place {
            ahead: self.ahead.unwrap_or(1),
            waiters_ahead: self.waiters_ahead.unwrap_or(0),
            holder: self.holder.as_deref().unwrap_or_default().into(),
            holder_expires_in: millis(self.holder_expires_in_ms),
            holder_ttl: millis(self.holder_ttl_ms),
        }
    }

    pub(super) fn refusal(&self) -> Option<Refused> {
        let live = self.live.as_ref().and_then(|live| shape(&live.shape, live.units, live.capacity));
        self.refusal.as_ref().map(|word| Refused { word: word.clone(), live })
    }

    /// Who broke it and why.
    pub(super) fn broken(&self) -> (Arc<str>, Arc<str>) {
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        (text(&self.by), text(&self.reason))
    }

    pub(super) fn error(&self, status: u16) -> Error {
        let kind = match (status, self.kind.as_deref()) {
            (401 | 403, _) | (_, Some("denied")) => ErrorKind::Denied,
            (400 | 413 | 415, _) => ErrorKind::Invalid,
            (404 | 405, _) => ErrorKind::Store,
            (409, _) => ErrorKind::Conflict,
            (_, Some("quorum")) => ErrorKind::Quorum,
            (_, Some("store")) => ErrorKind::Store,
            (_, Some("replicas")) => ErrorKind::Replicas,
            _ => ErrorKind::Unavailable,
        };
        let certain = self.certainty.as_deref() == Some("not_applied") || matches!(status, 400..500);
        let certainty = if certain { Certainty::NotApplied } else { Certainty::Unknown };
        let mut message = match &self.message {
            Some(message) => message.clone(),
            None => format!("the service, or something before it, answered {status}"),
        };
        if status == 401 {
            message.push_str(": write the token as the URL's password (http://:TOKEN@HOST) or set TENURE_BEARER");
        } else if let Some(hint) = &self.hint {
            message.push_str(&format!(": {hint}"));
        }
        Error::new(kind, message).with_certainty(certainty)
    }
}

/// A shape from its parts.
pub(super) fn shape(word: &str, units: u32, of: Option<u32>) -> Option<Shape> {
    match (word, of) {
        ("exclusive", _) => Some(Shape::Exclusive),
        ("shared", _) => Some(Shape::Shared),
        ("permits", Some(of)) => Some(Shape::Permits { units, of }),
        _ => None,
    }
}

fn millis(millis: Option<u64>) -> Duration {
    Duration::from_millis(millis.unwrap_or(0))
}

/// The store behind the service.
#[derive(Debug, Deserialize)]
pub(super) struct Store {
    store: String,
    capabilities: Can,
    guarantees: Survives,
    ttl_min_ms: u64,
    ttl_max_ms: u64,
    #[serde(default)]
    lease_lag_ms: u64,
    /// The store's time, if it tells.
    #[serde(default)]
    pub(super) time_us: Option<u64>,
    pub(super) caller: String,
}

#[derive(Debug, Deserialize)]
struct Can {
    queue: bool,
    tokens: bool,
    shared: bool,
    permits: bool,
    sessions: bool,
    records: bool,
    notes: bool,
    #[serde(default)]
    memos: bool,
    #[serde(default)]
    time: bool,
}

#[derive(Debug, Deserialize)]
struct Survives {
    time: String,
    client_crash: String,
    client_pause: String,
    store_crash: String,
    failover: String,
    partition: String,
    clock_step: String,
    tokens: String,
    #[serde(default)]
    memos: Option<Memos>,
}

#[derive(Debug, Deserialize)]
struct Memos {
    crash: bool,
    failover: bool,
    eviction: bool,
}

impl Store {
    pub(super) fn capabilities(&self) -> Capabilities {
        let can = &self.capabilities;
        Capabilities {
            // The service has no route for it.
            waiter_breaks: false,
            queue: can.queue,
            hints: false,
            // A long wait at the service is told of the grant by it.
            pushes: can.queue,
            alerts: false,
            tokens: can.tokens,
            blocks: false,
            shared: can.shared,
            permits: can.permits,
            sessions: can.sessions,
            replicas: false,
            majority: false,
            records: can.records,
            notes: can.notes,
            memos: can.memos,
            time: can.time,
            ttl_min: Duration::from_millis(self.ttl_min_ms),
            ttl_max: Duration::from_millis(self.ttl_max_ms),
            lease_lag: Duration::from_millis(self.lease_lag_ms),
        }
    }

    pub(super) fn guarantees(&self) -> Guarantees {
        let told = &self.guarantees;
        Guarantees {
            store: interned(&self.store),
            time: interned(&told.time),
            client_crash: survival(&told.client_crash),
            client_pause: survival(&told.client_pause),
            store_crash: survival(&told.store_crash),
            failover: survival(&told.failover),
            partition: survival(&told.partition),
            clock_step: survival(&told.clock_step),
            tokens: interned(&told.tokens),
            memos: told.memos.as_ref().map(|memos| MemosSurvive::new(memos.crash, memos.failover, memos.eviction)),
        }
    }
}

/// What is not known protects nothing.
fn survival(word: &str) -> Survival {
    [Survival::Kept, Survival::ClaimsEnd, Survival::FencedOnly, Survival::Never]
        .into_iter()
        .find(|survival| survival.to_string() == word)
        .unwrap_or(Survival::Unprotected)
}

/// How many texts of services are kept.
const TEXTS_MAX: usize = 256;
const TEXT_BYTES_MAX: usize = 512;

/// A text for the rest of the process: guarantees are the same for every client of a service.
fn interned(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    if texts.len() >= TEXTS_MAX || text.len() > TEXT_BYTES_MAX {
        return "as the service says";
    }
    let kept: &'static str = Box::leak(text.into());
    texts.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::deadline;

    #[test]
    fn a_deadline_is_when_the_service_says_from_before_the_request() {
        let sent = Moment(10_000_000);
        for (ttl, left) in [(10_000, 9_898), (10_000, 5_000), (10_000, 0), (100, 97), (86_400_000, 1)] {
            let reply = Reply { ttl_ms: Some(ttl), expires_in_ms: Some(left), ..Reply::default() };
            let counted_from = reply.counted_from(sent);
            let trusted = deadline(counted_from, Duration::from_millis(ttl));
            let most = sent + Duration::from_millis(left);
            assert!(trusted <= most || counted_from == Moment(0), "{ttl} {left}: {trusted:?} {most:?}");
            assert!(counted_from <= sent);
        }
    }

    #[test]
    fn what_a_proxy_says_of_its_own_is_an_error_of_unknown_outcome() {
        let error = problem(502, b"<html>Bad Gateway</html>");
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown));
        assert!(error.to_string().contains("502"), "{error}");
        let error = problem(401, br#"{"kind":"unauthorized","message":"no token was sent"}"#);
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Denied, Certainty::NotApplied));
        assert!(error.to_string().contains("TENURE_BEARER"), "{error}");
        assert!(read_replies(200, br#"{"locks":[]}"#, 1).is_err());
        assert!(read::<Store>(b"[]").is_err());
    }
}
