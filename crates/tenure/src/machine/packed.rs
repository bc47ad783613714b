//! A queue as bytes, for stores that keep it as one value.
//!
//! Such a store reads and writes all of it with each operation, so a waiter must take few bytes and be quick to read:
//! some 35 bytes. What claims have in common (label, inbox, ttl and so on) is written once, and each claim names it by
//! its place in that list. Numbers and times are differences from the claim before.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::claim::{BreakMark, Claim, Grant, Queue, Shape};
use super::claims::Claims;
use crate::clock::Moment;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// The first byte: no text begins with it.
const FORMAT: u8 = 1;
/// The fewest bytes of a claim, of what claims share and of a mark: a count that needs more than there are is damage.
const CLAIM_MIN: usize = 10;
const COMMON_MIN: usize = 7;
const MARK_MIN: usize = 11;

// What a claim has besides what all have.
const OWNER_TEXT: u8 = 1;
const GRANTED: u8 = 2;
const SKIPPED: u8 = 4;
const ATTEMPT: u8 = 8;
const WITHIN: u8 = 16;
const KNOWN: u8 = OWNER_TEXT | GRANTED | SKIPPED | ATTEMPT | WITHIN;

/// Bytes that are no queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(&'static str);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Unreadable {}

type Read<T> = Result<T, Unreadable>;

impl Queue {
    /// The queue as bytes. The same queue gives the same bytes, unless it was put together in another way.
    pub fn to_bytes(&self) -> Vec<u8> {
        let (commons, named) = Commons::of(&self.claims);
        let mut to = Writer(Vec::with_capacity(64 + 96 * commons.len() + 40 * self.claims.len()));
        to.0.push(FORMAT);
        to.number(self.last.0);
        to.number(self.last_number);
        to.count(commons.len());
        commons.iter().for_each(|claim| to.common(claim));
        to.count(self.claims.len());
        let mut before = [0; 3];
        for (claim, common) in self.claims.iter().zip(named) {
            to.claim(claim, common, &mut before);
        }
        to.count(self.marks.len());
        self.marks.iter().for_each(|mark| to.mark(mark));
        to.0
    }

    /// The queue that was written as these bytes.
    ///
    /// # Errors
    ///
    /// [`Unreadable`] for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Unreadable> {
        let mut from = Reader(bytes);
        if from.byte()? != FORMAT {
            return Err(Unreadable("its format is not known"));
        }
        let (last, last_number) = (Token(from.number()?), from.number()?);
        let commons = from.count(COMMON_MIN)?;
        let commons: Vec<Common> = (0..commons).map(|_| from.common()).collect::<Read<_>>()?;
        let count = from.count(CLAIM_MIN)?;
        // One more is likely to come.
        let (mut claims, mut before) = (Claims::with_capacity(count + 1), [0; 3]);
        for _ in 0..count {
            claims.push_back(from.claim(&commons, &mut before)?);
        }
        let marks = from.count(MARK_MIN)?;
        let marks = (0..marks).map(|_| from.mark()).collect::<Read<_>>()?;
        if !from.0.is_empty() {
            return Err(Unreadable("it goes on behind its end"));
        }
        let mut queue = Self { last, last_number, claims, marks, ..Self::default() };
        queue.prepare();
        Ok(queue)
    }
}

/// What many claims of a queue have in common.
struct Common {
    label: Arc<str>,
    inbox: Arc<str>,
    shape: Shape,
    ttl: Duration,
    block: u32,
    strict: bool,
    solo: bool,
}

type Terms<'a> = (&'a str, &'a str, Shape, Duration, u32, bool, bool);

fn terms(claim: &Claim) -> Terms<'_> {
    (&claim.label, &claim.inbox, claim.shape, claim.ttl, claim.block, claim.strict, claim.solo)
}

/// Finds, for each claim, the first that has the same in common with it.
struct Commons<'a> {
    firsts: Vec<&'a Claim>,
    by_terms: HashMap<Terms<'a>, usize, RandomState>,
    /// The one that was found last for texts that lie in these places: most claims share their texts with others, and
    /// then need not be hashed.
    recent: [usize; 256],
}

impl<'a> Commons<'a> {
    /// The first claims of each kind, and the kind of each claim.
    fn of(claims: &'a Claims) -> (Vec<&'a Claim>, Vec<usize>) {
        let mut commons = Self { firsts: Vec::new(), by_terms: HashMap::default(), recent: [usize::MAX; 256] };
        let named = claims.iter().map(|claim| commons.find(claim)).collect();
        (commons.firsts, named)
    }

    fn find(&mut self, claim: &'a Claim) -> usize {
        let place = claim.label.as_ptr().addr() >> 4 ^ claim.inbox.as_ptr().addr() >> 5;
        let slot = (place ^ place >> 8 ^ usize::from(claim.strict) ^ usize::from(claim.solo) << 1) % 256;
        let recent = self.recent[slot];
        if self.firsts.get(recent).is_some_and(|first| is_alike(first, claim)) {
            return recent;
        }
        let next = self.firsts.len();
        let found = *self.by_terms.entry(terms(claim)).or_insert(next);
        if found == next {
            self.firsts.push(claim);
        }
        self.recent[slot] = found;
        found
    }
}

fn is_alike(first: &Claim, claim: &Claim) -> bool {
    Arc::ptr_eq(&first.label, &claim.label)
        && Arc::ptr_eq(&first.inbox, &claim.inbox)
        && first.strict == claim.strict
        && first.solo == claim.solo
        && first.block == claim.block
        && first.ttl == claim.ttl
        && first.shape == claim.shape
}

struct Writer(Vec<u8>);

impl Writer {
    /// Seven bits at a time, the lowest first; the highest bit says that more follow.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn count(&mut self, count: usize) {
        self.number(count as u64);
    }

    /// The difference to the number before, small ones in few bytes whatever their sign.
    fn step(&mut self, before: &mut u64, number: u64) {
        let step = number.wrapping_sub(*before).cast_signed();
        *before = number;
        self.number((step << 1 ^ step >> 63).cast_unsigned());
    }

    fn text(&mut self, text: &str) {
        self.count(text.len());
        self.0.extend_from_slice(text.as_bytes());
    }

    fn common(&mut self, claim: &Claim) {
        self.text(&claim.label);
        self.text(&claim.inbox);
        match claim.shape {
            Shape::Exclusive => self.0.push(0),
            Shape::Shared => self.0.push(1),
            Shape::Permits { units, of } => {
                self.0.push(2);
                self.number(units.into());
                self.number(of.into());
            }
        }
        self.number(claim.ttl.as_secs());
        self.number(claim.ttl.subsec_nanos().into());
        self.number(claim.block.into());
        self.0.push(u8::from(claim.strict) | u8::from(claim.solo) << 1);
    }

    fn claim(&mut self, claim: &Claim, common: usize, before: &mut [u64; 3]) {
        let owner = claim.owner.as_id();
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        self.0.push(
            flag(owner.is_none(), OWNER_TEXT)
                | flag(claim.grant.is_some(), GRANTED)
                | flag(claim.skipped > 0, SKIPPED)
                | flag(claim.attempt != 0, ATTEMPT)
                | flag(!claim.within.is_empty(), WITHIN),
        );
        self.count(common);
        self.0.extend_from_slice(&claim.id.0.to_le_bytes());
        match owner {
            Some(id) => self.0.extend_from_slice(&id.to_le_bytes()),
            None => self.text(&claim.owner.to_string()),
        }
        let [number, expires, appended] = before;
        self.step(number, claim.number);
        self.step(expires, claim.expires.0);
        self.step(appended, claim.appended.0);
        if let Some(grant) = &claim.grant {
            self.number(grant.token.0);
            self.number(grant.block_end.0);
            self.number(grant.at.0);
        }
        if claim.skipped > 0 {
            self.0.push(claim.skipped);
        }
        if claim.attempt != 0 {
            self.number(claim.attempt);
        }
        if !claim.within.is_empty() {
            self.count(claim.within.len());
            claim.within.iter().for_each(|owner| self.text(&owner.to_string()));
        }
    }

    fn mark(&mut self, mark: &BreakMark) {
        self.0.extend_from_slice(&mark.claim.0.to_le_bytes());
        self.text(&mark.by);
        self.text(&mark.reason);
        self.number(mark.until.0);
    }
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

const CUT: Unreadable = Unreadable("it is cut off");
const TOO_LARGE: Unreadable = Unreadable("a number is too large");

impl Reader<'_> {
    fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.0.split_first().ok_or(CUT)?;
        self.0 = rest;
        Ok(*first)
    }

    fn array<const N: usize>(&mut self) -> Read<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or(CUT)?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Read<u64> {
        let mut number = 0;
        for (index, byte) in self.0.iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if index == 9 && bits > 1 {
                return Err(TOO_LARGE);
            }
            number |= bits << (7 * index);
            if byte & 0x80 == 0 {
                self.0 = self.0.get(index + 1..).unwrap_or_default();
                return Ok(number);
            }
        }
        Err(if self.0.len() < 10 { CUT } else { TOO_LARGE })
    }

    fn small(&mut self) -> Read<u32> {
        u32::try_from(self.number()?).map_err(|_| TOO_LARGE)
    }

    /// How many of something that takes at least so many bytes each.
    fn count(&mut self, each: usize) -> Read<usize> {
        let count = usize::try_from(self.number()?).map_err(|_| TOO_LARGE)?;
        if count > self.0.len() / each { Err(CUT) } else { Ok(count) }
    }

    fn step(&mut self, before: &mut u64) -> Read<u64> {
        let step = self.number()?;
        *before = before.wrapping_add(step >> 1 ^ (step & 1).wrapping_neg());
        Ok(*before)
    }

    fn text(&mut self) -> Read<&str> {
        let length = self.count(1)?;
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        std::str::from_utf8(text).map_err(|_| Unreadable("a text is not UTF-8"))
    }

    fn owner(&mut self) -> Read<Owner> {
        Owner::new(self.text()?).map_err(|_| Unreadable("an owner is none"))
    }

    fn common(&mut self) -> Read<Common> {
        let (label, inbox) = (self.text()?.into(), self.text()?.into());
        let shape = match self.byte()? {
            0 => Shape::Exclusive,
            1 => Shape::Shared,
            2 => Shape::Permits { units: self.small()?, of: self.small()? },
            _ => return Err(Unreadable("a shape is not known")),
        };
        let (seconds, nanos) = (self.number()?, self.small()?);
        // More nanoseconds than a second has could overflow the seconds.
        if nanos >= 1_000_000_000 {
            return Err(TOO_LARGE);
        }
        let (ttl, block, flags) = (Duration::new(seconds, nanos), self.small()?, self.byte()?);
        Ok(Common { label, inbox, shape, ttl, block, strict: flags & 1 != 0, solo: flags & 2 != 0 })
    }

    fn claim(&mut self, commons: &[Common], before: &mut [u64; 3]) -> Read<Claim> {
        let flags = self.byte()?;
        if flags & !KNOWN != 0 {
            return Err(Unreadable("a claim has what is not known"));
        }
        let has = |flag: u8| flags & flag != 0;
        let common = usize::try_from(self.number()?).map_err(|_| TOO_LARGE)?;
        let common = commons.get(common).ok_or(Unreadable("a part of a claim is missing"))?;
        let id = ClaimId(u64::from_le_bytes(self.array()?));
        let owner = if has(OWNER_TEXT) { self.owner()? } else { Owner::from_id(u128::from_le_bytes(self.array()?)) };
        let [number, expires, appended] = before;
        let (number, expires, appended) =
            (self.step(number)?, Moment(self.step(expires)?), Moment(self.step(appended)?));
        let grant = if has(GRANTED) {
            let (token, block_end) = (Token(self.number()?), Token(self.number()?));
            Some(Grant { token, block_end, at: Moment(self.number()?) })
        } else {
            None
        };
        let skipped = if has(SKIPPED) { self.byte()? } else { 0 };
        let attempt = if has(ATTEMPT) { self.number()? } else { 0 };
        let mut within = Vec::new();
        if has(WITHIN) {
            for _ in 0..self.count(2)? {
                within.push(self.owner()?);
            }
        }
        let Common { label, inbox, shape, ttl, block, strict, solo } = common;
        let (label, inbox) = (label.clone(), inbox.clone());
        let (shape, ttl, block, strict, solo) = (*shape, *ttl, *block, *strict, *solo);
        Ok(Claim {
            id,
            number,
            owner,
            label,
            shape,
            ttl,
            expires,
            appended,
            grant,
            block,
            strict,
            skipped,
            inbox,
            solo,
            attempt,
            within,
        })
    }

    fn mark(&mut self) -> Read<BreakMark> {
        let claim = ClaimId(u64::from_le_bytes(self.array()?));
        let (by, reason) = (self.text()?.into(), self.text()?.into());
        Ok(BreakMark { claim, by, reason, until: Moment(self.number()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(id: u64, client: &str) -> Claim {
        Claim {
            id: ClaimId(id.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            number: 1_700_000_000_000_000 + 50 * id,
            owner: Owner::random(),
            label: format!("web-{client}:4711").into(),
            shape: Shape::Exclusive,
            ttl: Duration::from_secs(10),
            expires: Moment(9_000_000 + 70 * id),
            appended: Moment(100 * id),
            grant: None,
            block: 1,
            strict: false,
            skipped: 0,
            inbox: format!("inbox-of-{client}").into(),
            solo: false,
            attempt: 0,
            within: Vec::new(),
        }
    }

    fn queue(claims: impl IntoIterator<Item = Claim>) -> Queue {
        let mut queue = Queue::new(u64::MAX);
        queue.claims.extend(claims);
        queue.prepare();
        queue
    }

    #[test]
    fn extremes_are_read_back() {
        let (highest, grant) = (u64::MAX, Grant { token: Token(7), block_end: Token(u64::MAX), at: Moment(0) });
        let mut odd = Claim {
            number: highest,
            owner: Owner::new("somebody").unwrap(),
            label: "ü\0\u{10ffff}".into(),
            shape: Shape::Permits { units: u32::MAX, of: 0 },
            ttl: Duration::MAX,
            expires: Moment(highest),
            appended: Moment(highest),
            grant: Some(grant),
            block: u32::MAX,
            strict: true,
            skipped: u8::MAX,
            inbox: "".into(),
            solo: true,
            attempt: highest,
            within: vec![Owner::random(), Owner::new("x").unwrap()],
            ..claim(1, "a")
        };
        let mut written = queue([odd.clone(), claim(0, "a")]);
        odd.number = 0;
        written.claims.push_back(odd);
        let mark = BreakMark { claim: ClaimId(0), by: "me".into(), reason: "".into(), until: Moment(highest) };
        written.marks.push(mark);
        let bytes = written.to_bytes();
        let mut read = Queue::from_bytes(&bytes).unwrap();
        read.sweep_at = written.sweep_at;
        assert_eq!(read, written);
    }

    #[test]
    fn a_waiter_takes_few_bytes() {
        let bytes = |claims: u64| queue((0..claims).map(|id| claim(id, &(id % 64).to_string()))).to_bytes().len();
        let each = (bytes(6_400) - bytes(64)) / (6_400 - 64);
        assert!(each <= 36, "{each} bytes");
    }

    #[test]
    fn claims_share_what_they_have_in_common_wherever_it_lies() {
        let alike = queue((0..100).map(|id| claim(id, "a")));
        let read = Queue::from_bytes(&alike.to_bytes()).unwrap();
        assert!(read.claims.iter().all(|claim| Arc::ptr_eq(&claim.label, &read.claims[0].label)));
    }

    #[test]
    fn what_is_no_queue_is_refused() {
        for text in ["", "garbage", "{}", "\u{1}", "\u{1}\0\0\u{7f}"] {
            assert!(Queue::from_bytes(text.as_bytes()).is_err(), "{text:?}");
        }
        let bytes = queue([claim(1, "a")]).to_bytes();
        assert!(Queue::from_bytes(&[&bytes[..], &[0]].concat()).is_err(), "longer than it says");
        for cut in 0..bytes.len() {
            assert!(Queue::from_bytes(&bytes[..cut]).is_err(), "{cut} of {} bytes", bytes.len());
        }
        // Whatever a byte is changed to, it is a queue or it is refused.
        for at in 0..bytes.len() {
            for value in 0..=u8::MAX {
                let mut damaged = bytes.clone();
                damaged[at] = value;
                if let Ok(read) = Queue::from_bytes(&damaged) {
                    assert!(Queue::from_bytes(&read.to_bytes()).is_ok());
                }
            }
        }
    }
}
