//! Memos, and the time, as the service tells them.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::HeaderMap;
use serde::Serialize;

use super::answer::{self, Store, problem};
use super::request::millis;
use super::table::AnotherNumber;
use super::{Client, url};
use crate::backend::{Memo, MemoKind, MemoWrite, MemoWritten, RenewRequest};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::name::Name;
use crate::token::Token;

/// The longest that the service keeps a memo that ends.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How often a write is sent because the claim has another number than was known: the answer to a poll was lost.
const NUMBERS_MAX: u32 = 3;

/// A memo to write.
#[derive(Serialize)]
struct WriteMemo {
    name: String,
    owner: String,
    claim: String,
    token: u64,
    after: u64,
    write: u64,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    keep_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    value: String,
}

impl WriteMemo {
    fn of(name: &Name, write: &MemoWrite) -> Self {
        Self {
            name: name.to_string(),
            owner: write.owner.to_string(),
            claim: write.id.to_string(),
            token: write.token.0,
            after: write.after,
            write: write.write,
            kind: write.kind.as_str(),
            keep_ms: write.keep.map(|keep| millis(keep.clamp(Duration::from_millis(1), KEEP_MAX))),
            number: None,
            value: STANDARD.encode(&write.bytes),
        }
    }
}

impl Client {
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the same write again answers the same.
    pub(super) async fn write_memo(self: Arc<Self>, name: &Name, write: MemoWrite) -> Result<MemoWritten> {
        let mut ask = WriteMemo::of(name, &write);
        for _ in 0..NUMBERS_MAX {
            ask.number = match self.table.latest(write.id, write.number) {
                Ok(number) => number,
                Err(AnotherNumber) => return Ok(MemoWritten::NotHolder),
            };
            let (status, body) = self.link.put("/v1/memo", &ask).await?;
            let reply = answer::read_reply(status, &body)?;
            match (status, reply.kind.as_deref()) {
                (200, _) => {
                    let version = reply.version.ok_or_else(|| odd("the answer to a memo has no version"))?;
                    return Ok(MemoWritten::Done { version });
                }
                (410, _) | (409, Some("not_held")) => return Ok(MemoWritten::NotHolder),
                // The service tells the version; the engine wants the memo.
                (412, _) => return Ok(MemoWritten::Changed(self.memo(name).await?)),
                (409, Some("superseded")) if self.has_new_number(name, &write, ask.number).await? => {}
                (409, Some("superseded")) => return Ok(MemoWritten::NotHolder),
                (409, _) if reply.memo_kind.is_some() => {
                    let kind = reply.memo_kind.as_deref().and_then(MemoKind::from_word);
                    return Ok(MemoWritten::OtherKind(kind.ok_or_else(unknown_kind)?));
                }
                _ => return Err(reply.error(status).about(name)),
            }
        }
        let message = "the claim gets a new number each time it is asked for: another client uses its owner and claim";
        Err(Error::new(ErrorKind::Conflict, message).about(name).with_certainty(Certainty::NotApplied))
    }

    /// Whether a request of ours has given the claim another number than this, without our hearing of it. A renewal
    /// tells.
    async fn has_new_number(self: &Arc<Self>, name: &Name, write: &MemoWrite, sent: Option<u64>) -> Result<bool> {
        if !self.table.was_polled(write.id) {
            return Ok(false);
        }
        let renewal = RenewRequest {
            name: name.clone(),
            id: write.id,
            owner: write.owner.clone(),
            ttl: Duration::ZERO,
            number: None,
        };
        self.clone().renew(vec![renewal]).await.map_err(|error| error.with_certainty(Certainty::NotApplied))?;
        Ok(self.table.latest(write.id, write.number).is_ok_and(|number| number != sent))
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn memo(&self, name: &Name) -> Result<Option<Memo>> {
        let query = url::Query::new("/v1/memo").with("name", name.as_str());
        let (status, headers, body) = self.link.get_with_headers(query.as_str()).await?;
        match status {
            200 => Ok(Some(read(&headers, &body)?)),
            404 if answer::read_reply(status, &body)?.kind.as_deref() == Some("no_memo") => Ok(None),
            _ => Err(problem(status, &body).about(name)),
        }
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn time(&self) -> Result<SystemTime> {
        let (status, body) = self.link.get("/v1/store").await?;
        if status != 200 {
            return Err(problem(status, &body));
        }
        let told = answer::read::<Store>(&body)?.time_us;
        let micros = told.ok_or_else(|| {
            let message = "the service does not know its store's time at the moment";
            Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::NotApplied)
        })?;
        Ok(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
    }
}

fn read(headers: &HeaderMap, body: &[u8]) -> Result<Memo> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let number = |name: &str| {
        let number = text(name).and_then(|value| value.parse().ok());
        number.ok_or_else(|| odd(&format!("a memo has no {name}")))
    };
    let kind = text("tenure-memo-kind").and_then(MemoKind::from_word).ok_or_else(unknown_kind)?;
    let age = Duration::from_millis(number("tenure-memo-age-ms")?);
    Ok(Memo::new(kind, Token(number("tenure-memo-token")?), number("tenure-memo-version")?, age, body))
}

fn unknown_kind() -> Error {
    odd("its memo is of a kind that this tenure does not know: upgrade tenure")
}

fn odd(message: &str) -> Error {
    Error::new(ErrorKind::Store, message).with_certainty(Certainty::Unknown)
}
