//! What is sent to the script for an operation, and what its answer means.
//!
//! `native.lua` says the same from its side.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

use super::error;
use crate::backend::{Block, ClaimRequest, Claimed, Event, Place, Refusal, Released, Renewed, Shape, Standing};
use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Loss, Result};
use crate::machine::{BreakMark, Claim, Grant, Queue};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How many arguments an operation has at most.
const ARGS_MAX: usize = 8;

/// One operation: the key of its name, and what the script is told. All in one text, since there are many of them.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Op {
    text: String,
    key_end: usize,
    ends: [usize; ARGS_MAX],
    count: usize,
    /// The token it proposes, if it is a ballot.
    #[cfg(feature = "redlock")]
    pub(in crate::backends) ballot: u64,
}

/// Writes one argument. Writing to a string cannot fail.
macro_rules! put {
    ($op:ident, $($what:tt)*) => {{
        let _ = write!($op.text, $($what)*);
        $op.cut();
    }};
}

/// The key of a name's record. The colon keeps the hash tag from being empty, whatever the name.
pub(in crate::backends) fn key(name: &Name) -> String {
    format!("{KEY_PREFIX}{name}{}", '}')
}

/// How many digits a ttl has in the record of a single claim.
const TTL_DIGITS: usize = 8;

pub(in crate::backends) const KEY_PREFIX: &str = "tenure:{:";

/// The name of a record's key; none for the other keys of a name, which do not end in a brace.
pub(in crate::backends) fn name_of(key: &[u8]) -> Option<Name> {
    let key = std::str::from_utf8(key).ok()?;
    Name::new(key.strip_prefix(KEY_PREFIX)?.strip_suffix('}')?).ok()
}

/// Redis counts in milliseconds: a part of one counts as one.
fn millis(ttl: Duration) -> u128 {
    ttl.as_micros().div_ceil(1000)
}

impl Op {
    fn new(name: &Name, size: usize) -> Self {
        let mut text = String::with_capacity(KEY_PREFIX.len() + name.as_str().len() + 1 + size);
        text.push_str(KEY_PREFIX);
        text.push_str(name.as_str());
        text.push('}');
        Self::on(text)
    }

    /// An operation on a key, without arguments yet.
    pub(in crate::backends) fn on(key: String) -> Self {
        Self {
            key_end: key.len(),
            text: key,
            ends: [0; ARGS_MAX],
            count: 0,
            #[cfg(feature = "redlock")]
            ballot: 0,
        }
    }

    /// The same with one argument more.
    #[cfg(feature = "redlock")]
    #[must_use]
    pub(in crate::backends) fn with(mut self, arg: impl std::fmt::Display) -> Self {
        put!(self, "{arg}");
        self
    }

    /// Ends an argument.
    fn cut(&mut self) {
        if let Some(end) = self.ends.get_mut(self.count) {
            *end = self.text.len();
            self.count += 1;
        }
    }

    pub(in crate::backends) fn claim(name: &Name, request: &ClaimRequest, inbox: &str) -> Self {
        let mut op = Self::new(name, 192);
        let ttl = millis(request.ttl);
        if request.reenter.is_none() && request.presumed.is_zero() && request.block <= 1 {
            put!(op, "{}", if request.queue { 'C' } else { 'T' });
            put!(op, "1{:016x}{ttl:08}", request.id.0);
            put!(op, "{ttl}");
            op.client(request, inbox);
            return op;
        }
        put!(op, "c");
        put!(op, "{}", request.id);
        put!(op, "{ttl}");
        put!(op, "{}", request.block.max(1));
        put!(op, "{}", if request.queue { 'q' } else { 'n' });
        op.client(request, inbox);
        match request.reenter {
            Some(token) => put!(op, "{}", token.0),
            None => op.cut(),
        }
        put!(op, "{}", millis(request.presumed));
        op
    }

    pub(in crate::backends) fn renew(name: &Name, id: ClaimId, ttl: Duration) -> Self {
        let mut op = Self::new(name, 48);
        let ttl = millis(ttl);
        put!(op, "r");
        put!(op, "1{:016x}{ttl:08}", id.0);
        put!(op, "{ttl}");
        op
    }

    pub(in crate::backends) fn release(name: &Name, id: ClaimId, number: Option<u64>) -> Self {
        let mut op = Self::new(name, 48);
        put!(op, "d");
        put!(op, "1{:016x}", id.0);
        match number {
            Some(number) => put!(op, "{number}"),
            None => op.cut(),
        }
        op
    }

    pub(in crate::backends) fn next_block(
        name: &Name,
        id: ClaimId,
        block_end: Token,
        next: &ClaimRequest,
        inbox: &str,
    ) -> Self {
        let mut op = Self::new(name, 224);
        put!(op, "n");
        put!(op, "{id}");
        put!(op, "{}", block_end.0);
        put!(op, "{}", next.id);
        put!(op, "{}", millis(next.ttl));
        op.client(next, inbox);
        op
    }

    pub(in crate::backends) fn break_holders(name: &Name, owner: Option<&Owner>, by: &str, reason: &str) -> Self {
        let mut op = Self::new(name, 160 + by.len() + reason.len());
        put!(op, "k");
        match owner {
            Some(owner) => put!(op, "{owner}"),
            None => op.cut(),
        }
        put!(op, "{by}");
        put!(op, "{reason}");
        op
    }

    /// The part of a claim that only clients write.
    fn client(&mut self, request: &ClaimRequest, inbox: &str) {
        let flags = match (request.strict, request.solo) {
            (false, false) => "-",
            (true, false) => "s",
            (false, true) => "o",
            (true, true) => "so",
        };
        let _ = write!(self.text, "{} ", request.owner);
        let _ = match request.shape {
            Shape::Exclusive => write!(self.text, "x"),
            Shape::Shared => write!(self.text, "s"),
            Shape::Permits { units, of } => write!(self.text, "p{units}/{of}"),
        };
        let (block, within) = (request.block.max(1), request.within.len());
        let _ = write!(self.text, " {block} {flags} {} {inbox} {within}", request.attempt);
        for owner in &request.within {
            let _ = write!(self.text, " {owner}");
        }
        self.text.push(' ');
        self.text.push_str(&request.label);
        self.cut();
    }

    pub(in crate::backends) fn key(&self) -> &str {
        &self.text[..self.key_end]
    }

    /// Whether it ends a claim by its number, which only an answer told.
    pub(in crate::backends) fn is_numbered_release(&self) -> bool {
        let [_, before, end, ..] = self.ends;
        self.count == 3 && end > before && self.text.as_bytes().get(self.key_end) == Some(&b'd')
    }

    /// How many arguments it has, and how many bytes they and the key take.
    pub(in crate::backends) fn size(&self) -> (usize, usize) {
        (self.count, self.text.len())
    }

    pub(in crate::backends) fn write_args(&self, command: &mut Cmd) {
        let mut from = self.key_end;
        for end in self.ends.iter().take(self.count) {
            command.arg(&self.text[from..*end]);
            from = *end;
        }
    }
}

fn shape(text: &str) -> Option<Shape> {
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
    let [ahead, waiters_ahead, holder, expires] = items else { return None };
    Some(Place {
        ahead: usize::try_from(number(ahead)?).ok()?,
        waiters_ahead: usize::try_from(number(waiters_ahead)?).ok()?,
        holder: text(holder)?.into(),
        holder_expires_in: ms(expires)?,
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

/// The answer to a claim that asked for `request`, at the server's time `now`.
pub(in crate::backends) fn claimed(value: &Value, request: &ClaimRequest, now: Moment) -> Result<Claimed> {
    if let Value::Int(_) = value
        && let Some(token) = number(value)
    {
        let grant = Grant { token: Token(token), block_end: Token(token), at: now };
        let ttl = Duration::from_millis(u64::try_from(millis(request.ttl)).unwrap_or(u64::MAX));
        return Ok(Claimed::Stands(Standing { number: token, ttl, state: Ok(grant) }));
    }
    let claimed = match tagged(value) {
        Some(("e", items)) => return Err(failed(items)),
        Some(("y", items)) => place(items).map(Claimed::Busy),
        Some(("f", items)) => refusal(items, request.shape).map(Claimed::Refused),
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

fn by_and_reason(text: &str) -> Option<(&str, &str)> {
    let (length, rest) = text.split_once(' ')?;
    rest.split_at_checked(length.parse().ok()?)
}

/// The whole state of a name, from the answer of `inspect.lua`: the server's time, and the queue.
pub(in crate::backends) fn queue(value: &Value) -> Result<(Moment, Queue)> {
    parse_queue(value).ok_or_else(|| odd(value))
}

fn parse_queue(value: &Value) -> Option<(Moment, Queue)> {
    let Value::Array(items) = value else { return None };
    let [now, record, left, rest @ ..] = items.as_slice() else { return None };
    let now = Moment(number(now)?);
    let record = text(record)?;
    let mut queue = Queue::default();
    match record.as_bytes().first() {
        Some(b'1' | b'B') => {
            let left = Duration::from_millis(number(left).unwrap_or(0));
            let (id, rest) = record.get(1..)?.split_at_checked(16)?;
            let (ttl, rest) = rest.split_at_checked(TTL_DIGITS)?;
            let (fixed, client) = nth_space(rest, 4)?;
            let (claim_number, fixed) = fixed.split_once(' ')?;
            let at = fixed.rsplit(' ').next()?;
            let claim = claim(id, &format!("{claim_number} {ttl} {fixed} {at} 0 {client}"), now + left)?;
            queue.last = claim.grant.map_or(Token(0), |grant| grant.block_end);
            queue.last_number = claim.number;
            queue.claims.push_back(claim);
        }
        Some(b'q') => {
            let [Value::Array(fields), Value::Array(order), Value::Array(expiry)] = rest else { return None };
            // As many words as the script writes, the last of them a label.
            nth_space(record, 15)?;
            parse_claims(&mut queue, fields, order, expiry)?;
            queue.last = Token(record.split(' ').nth(1)?.parse().ok()?);
            queue.last_number = queue.last.0;
        }
        Some(b'f') => queue.last = Token(record.get(1..)?.parse().ok()?),
        // No key, says PTTL; an empty one is nobody's.
        None if *left == Value::Int(-2) => {}
        _ => return None,
    }
    Some((now, queue))
}

fn parse_claims(queue: &mut Queue, fields: &[Value], order: &[Value], expiry: &[Value]) -> Option<()> {
    let fields: std::collections::HashMap<&str, &str> =
        fields.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, text(&pair[1])?))).collect();
    let expiry: std::collections::HashMap<&str, u64> =
        expiry.chunks_exact(2).filter_map(|pair| Some((text(&pair[0])?, number(&pair[1])?))).collect();
    let dies = |member: &str| expiry.get(member).map(|ms| Moment(ms.saturating_mul(1000)));
    for id in order {
        let id = text(id)?;
        queue.claims.push_back(claim(id, fields.get(id)?, dies(id)?)?);
    }
    for (field, mark) in fields {
        // "m" and 16 digits; an owner's claims stand under "h" or "w".
        let Some(id) = field.strip_prefix('m').and_then(|id| id.parse::<ClaimId>().ok()) else { continue };
        let (by, reason) = by_and_reason(mark)?;
        queue.marks.push(BreakMark { claim: id, by: by.into(), reason: reason.into(), until: dies(field)? });
    }
    Some(())
}

/// Splits at the n-th space.
fn nth_space(text: &str, n: usize) -> Option<(&str, &str)> {
    let (at, _) = text.match_indices(' ').nth(n - 1)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// "NUMBER TTL TOKEN END AT APPENDED SKIPPED OWNER SHAPE BLOCK FLAGS ATTEMPT INBOX WITHIN… LABEL"
fn claim(id: &str, line: &str, expires: Moment) -> Option<Claim> {
    let (fixed, mut rest) = nth_space(line, 14)?;
    let words: Vec<&str> = fixed.split(' ').collect();
    let at = |index: usize| words.get(index).copied();
    let count = |index: usize| at(index)?.parse::<u64>().ok();
    let mut within = Vec::new();
    for _ in 0..count(13)? {
        let (owner, more) = rest.split_once(' ')?;
        within.push(Owner::new(owner).ok()?);
        rest = more;
    }
    let token = count(2)?;
    let grant =
        (token > 0).then_some(Grant { token: Token(token), block_end: Token(count(3)?), at: Moment(count(4)?) });
    Some(Claim {
        id: id.parse().ok()?,
        number: count(0)?,
        owner: Owner::new(at(7)?).ok()?,
        label: rest.into(),
        shape: shape(at(8)?)?,
        ttl: Duration::from_millis(count(1)?),
        expires,
        appended: Moment(count(5)?),
        grant,
        block: u32::try_from(count(9)?).ok()?,
        strict: at(10)?.contains('s'),
        skipped: u8::try_from(count(6)?).ok()?,
        inbox: at(12)?.into(),
        solo: at(10)?.contains('o'),
        attempt: count(11)?,
        within,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_release_of_an_answered_claim_may_overtake() {
        let (name, id) = (Name::new("orders/42").unwrap(), ClaimId(7));
        assert!(Op::release(&name, id, Some(1)).is_numbered_release());
        // Its claim may still be on its way.
        assert!(!Op::release(&name, id, None).is_numbered_release());
        assert!(!Op::renew(&name, id, Duration::from_secs(1)).is_numbered_release());
        assert!(!Op::break_holders(&name, None, "d", "d").is_numbered_release());
    }

    #[test]
    fn names_are_found_in_their_own_keys_only() {
        for name in ["a", "a}b", "{x}", "}", "é*?["] {
            let name = Name::new(name).unwrap();
            let op = Op::release(&name, ClaimId(1), None);
            assert_eq!(op.key(), key(&name));
            assert_eq!(name_of(op.key().as_bytes()), Some(name));
            assert_eq!(name_of(format!("{}claims", op.key()).as_bytes()), None);
        }
    }
}
