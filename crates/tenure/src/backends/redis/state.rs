//! The whole state of a name, as Redis keeps it.

use std::time::Duration;

use redis::Value;

use super::op::TTL_DIGITS;
use super::wire::{by_and_reason, number, odd, shape, text};
use crate::clock::Moment;
use crate::error::Result;
use crate::machine::{BreakMark, Claim, Grant, Queue};
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

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
