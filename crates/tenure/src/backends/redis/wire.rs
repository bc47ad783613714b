//! What the script's answers mean, and the messages it sends.
//!
//! `native.lua` says the same from its side.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis::Value;

use super::error;
use super::op::{TTL_DIGITS, millis};
use crate::backend::{Block, Claimed, Event, Place, Refusal, Released, Renewed, Shape, Standing};
use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Loss, Result};
use crate::machine::Grant;
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

pub(super) fn shape(text: &str) -> Option<Shape> {
    match text {
        "x" => Some(Shape::Exclusive),
        "s" => Some(Shape::Shared),
        _ => {
            let (units, of) = text.strip_prefix('p')?.split_once('/')?;
            Some(Shape::Permits { units: units.parse().ok()?, of: of.parse().ok()? })
        }
    }
}

/// An answer nobody expects: another program's script, say.
pub(in crate::backends) fn odd(value: &Value) -> Error {
    Error::new(ErrorKind::Store, format!("Redis answered something unexpected: {value:?}"))
        .with_certainty(Certainty::Unknown)
}

pub(in crate::backends) fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::BulkString(_) | Value::SimpleString(_) => text(value)?.parse().ok(),
        _ => None,
    }
}

pub(in crate::backends) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK"),
        _ => None,
    }
}

/// An answer as an array with a letter in front.
pub(in crate::backends) fn tagged(value: &Value) -> Option<(&str, &[Value])> {
    let Value::Array(items) = value else { return None };
    let (tag, rest) = items.split_first()?;
    Some((text(tag)?, rest))
}

pub(in crate::backends) fn ms(value: &Value) -> Option<Duration> {
    number(value).map(Duration::from_millis)
}

fn grant(items: &[Value]) -> Option<Grant> {
    let [token, block_end, at] = items else { return None };
    Some(Grant { token: Token(number(token)?), block_end: Token(number(block_end)?), at: Moment(number(at)?) })
}

pub(in crate::backends) fn place(items: &[Value]) -> Option<Place> {
    // The ttl only where claims wait in a queue.
    let [ahead, waiters_ahead, holder, expires, ttl @ ..] = items else { return None };
    Some(Place {
        ahead: usize::try_from(number(ahead)?).ok()?,
        waiters_ahead: usize::try_from(number(waiters_ahead)?).ok()?,
        holder: text(holder)?.into(),
        holder_expires_in: ms(expires)?,
        holder_ttl: ttl.first().map_or(Some(Duration::ZERO), ms)?,
    })
}

fn standing(tag: &str, items: &[Value]) -> Option<Standing> {
    let [claim_number, ttl, rest @ ..] = items else { return None };
    let state = match tag {
        "s" | "m" => Ok(grant(rest)?),
        "w" | "v" => Err(place(rest)?),
        _ => return None,
    };
    Some(Standing { number: number(claim_number)?, ttl: ms(ttl)?, state })
}

pub(in crate::backends) fn broken(items: &[Value]) -> Option<(Arc<str>, Arc<str>)> {
    let [by, reason] = items else { return None };
    Some((text(by)?.into(), text(reason)?.into()))
}

pub(in crate::backends) fn failed(items: &[Value]) -> Error {
    error::of_text(items.first().and_then(text).unwrap_or_default())
}

/// Whether an operation was refused because the server is a replica.
pub(in crate::backends) fn is_read_only(value: &Value) -> bool {
    matches!(tagged(value), Some(("e", items)) if items.first().and_then(text).is_some_and(|text| text.contains("READONLY")))
}

/// What an operation says if not all keys of its name are on this server: they are moving.
pub(in crate::backends) fn moving(value: &Value) -> Option<&str> {
    let Some(("e", items)) = tagged(value) else { return None };
    let said = items.first().and_then(text)?;
    (said.starts_with("TRYAGAIN") || said.contains("non local key")).then_some(said)
}

/// The answer to a claim that asked for this shape and ttl, at the server's time `now`.
pub(in crate::backends) fn claimed(value: &Value, asked: (Shape, Duration), now: Moment) -> Result<Claimed> {
    if let Value::Int(_) = value
        && let Some(token) = number(value)
    {
        let grant = Grant { token: Token(token), block_end: Token(token), at: now };
        let ttl = Duration::from_millis(millis(asked.1));
        return Ok(Claimed::Stands(Standing { number: token, ttl, state: Ok(grant) }));
    }
    let claimed = match tagged(value) {
        Some(("e", items)) => return Err(failed(items)),
        Some(("y", items)) => place(items).map(Claimed::Busy),
        Some(("f", items)) => refusal(items, asked.0).map(Claimed::Refused),
        Some((tag, items)) => standing(tag, items).map(Claimed::Stands),
        None => None,
    };
    claimed.ok_or_else(|| odd(value))
}

fn refusal(items: &[Value], asked: Shape) -> Option<Refusal> {
    Some(match text(items.first()?)? {
        "Mixed" => Refusal::Mixed { live: shape(text(items.get(1)?)?)?, asked },
        "Upgrade" => Refusal::Upgrade,
        "PermitsWithinPermits" => Refusal::PermitsWithinPermits,
        "NotSession" => Refusal::NotSession,
        "NotHeld" => Refusal::NotHeld,
        _ => return None,
    })
}

pub(in crate::backends) fn renewed(value: &Value) -> Result<Renewed> {
    let renewed = match tagged(value) {
        Some(("e", items)) => return Err(failed(items)),
        Some(("b", items)) => broken(items).map(|(by, reason)| Renewed::Broken { by, reason }),
        Some((tag, items)) => standing(tag, items).map(Renewed::Stands),
        None => match value {
            Value::Int(0) => Some(Renewed::Gone),
            _ => text(value).and_then(short_standing).map(Renewed::Stands),
        },
    };
    renewed.ok_or_else(|| odd(value))
}

/// "TTL,NUMBER TOKEN END AT …": the record's own words.
fn short_standing(text: &str) -> Option<Standing> {
    let (ttl, rest) = text.split_at_checked(TTL_DIGITS)?;
    let mut words = rest.split(' ').map(|word| word.parse::<u64>().ok());
    let mut next = || words.next().flatten();
    let claim_number = next()?;
    let grant = Grant { token: Token(next()?), block_end: Token(next()?), at: Moment(next()?) };
    Some(Standing { number: claim_number, ttl: Duration::from_millis(ttl.parse().ok()?), state: Ok(grant) })
}

pub(in crate::backends) fn released(value: &Value) -> Result<Released> {
    let released = match (value, tagged(value)) {
        (Value::Int(1), _) => Some(Released::Yes),
        (Value::Int(0), _) => Some(Released::NotFound),
        (Value::Int(2), _) => Some(Released::Holds),
        (_, Some(("b", items))) => broken(items).map(|(by, reason)| Released::Broken { by, reason }),
        (_, Some(("e", items))) => return Err(failed(items)),
        _ => None,
    };
    released.ok_or_else(|| odd(value))
}

pub(in crate::backends) fn block(value: &Value) -> Result<Block> {
    let block = match tagged(value) {
        Some(("e", items)) => return Err(failed(items)),
        Some(("b", items)) => broken(items).map(|(by, reason)| Block::Broken { by, reason }),
        Some((tag @ ("m" | "v"), items)) => standing(tag, items).map(Block::Moved),
        Some((tag, items)) => standing(tag, items).map(|standing| standing.state.map_or(Block::Gone, Block::Given)),
        None if *value == Value::Int(0) => Some(Block::Gone),
        None => None,
    };
    block.ok_or_else(|| odd(value))
}

pub(in crate::backends) fn ended(value: &Value) -> Result<usize> {
    if let Some(("e", items)) = tagged(value) {
        return Err(failed(items));
    }
    number(value).and_then(|ended| usize::try_from(ended).ok()).ok_or_else(|| odd(value))
}

/// The answer to TIME.
pub(super) fn time(value: &Value) -> Result<SystemTime> {
    let since = match value {
        Value::Array(parts) => match parts.as_slice() {
            [seconds, micros] => number(seconds).zip(number(micros)),
            _ => None,
        },
        _ => None,
    };
    let (seconds, micros) = since.ok_or_else(|| odd(value))?;
    Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds) + Duration::from_micros(micros))
}

/// A message in a client's inbox.
pub(in crate::backends) fn event(message: &str) -> Option<Event> {
    let (kind, rest) = message.split_once(' ')?;
    let (id, rest) = rest.split_once(' ')?;
    let id: ClaimId = id.parse().ok()?;
    match kind {
        "g" => {
            let mut words = rest.split(' ').map(|word| word.parse::<u64>().ok());
            let mut next = || words.next().flatten();
            let claim_number = next()?;
            let grant = Grant { token: Token(next()?), block_end: Token(next()?), at: Moment(next()?) };
            Some(Event::Granted { id, grant, number: claim_number })
        }
        "b" => {
            let (claim_number, rest) = rest.split_once(' ')?;
            let (by, reason) = by_and_reason(rest)?;
            let loss = Loss::Broken { by: by.to_owned(), reason: reason.to_owned() };
            Some(Event::Ended { id, number: claim_number.parse().ok()?, loss })
        }
        "h" => {
            let (after, name) = rest.split_once(' ')?;
            Some(Event::TryNow { id, name: Name::new(name).ok()?, after: Token(after.parse().ok()?) })
        }
        _ => None,
    }
}

pub(super) fn by_and_reason(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.split_once(' ')?;
    rest.split_at_checked(length.parse().ok()?)
}
