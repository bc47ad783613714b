//! What is sent to the script for an operation.
//!
//! `native.lua` says the same from its side.

use std::fmt::Write as _;
use std::time::Duration;

use redis::Cmd;

use crate::backend::{BreakRequest, ClaimRequest, Shape, WaiterBreak};
use crate::name::Name;
use crate::owner::ClaimId;
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
pub(super) const TTL_DIGITS: usize = 8;

pub(in crate::backends) const KEY_PREFIX: &str = "tenure:{:";

/// The name of a record's key; none for the other keys of a name, which do not end in a brace.
pub(in crate::backends) fn name_of(key: &[u8]) -> Option<Name> {
    let key = std::str::from_utf8(key).ok()?;
    Name::new(key.strip_prefix(KEY_PREFIX)?.strip_suffix('}')?).ok()
}

/// Redis counts in milliseconds: a part of one counts as one.
pub(super) fn millis(ttl: Duration) -> u64 {
    u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
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

    fn letter(&mut self, letter: char) {
        self.text.push(letter);
        self.cut();
    }

    fn decimal(&mut self, number: u64) {
        self.text.push_str(itoa::Buffer::new().format(number));
        self.cut();
    }

    /// How the record of a single claim begins: "1", its id and its ttl.
    fn record_head(&mut self, id: ClaimId, ttl: u64) {
        let _ = write!(self.text, "1{id}");
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(ttl);
        for _ in digits.len()..TTL_DIGITS {
            self.text.push('0');
        }
        self.text.push_str(digits);
        self.cut();
    }

    pub(in crate::backends) fn claim(name: &Name, request: &ClaimRequest, inbox: &str) -> Self {
        let mut op = Self::new(name, 192);
        let ttl = millis(request.ttl);
        if request.reenter.is_none() && request.presumed.is_zero() && request.block <= 1 {
            op.letter(if request.queue { 'C' } else { 'T' });
            op.record_head(request.id, ttl);
            op.decimal(ttl);
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

    pub(in crate::backends) fn renew(name: &Name, id: ClaimId, ttl: Duration, number: Option<u64>) -> Self {
        let mut op = Self::new(name, 64);
        let ttl = millis(ttl);
        op.letter(if number.is_some() { 'R' } else { 'r' });
        op.record_head(id, ttl);
        op.decimal(ttl);
        if let Some(number) = number {
            op.decimal(number);
        }
        op
    }

    pub(in crate::backends) fn release(name: &Name, id: ClaimId, number: Option<u64>, waiting_only: bool) -> Self {
        let mut op = Self::new(name, 48);
        op.letter(if waiting_only { 'w' } else { 'd' });
        put!(op, "1{id}");
        match number {
            Some(number) => op.decimal(number),
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

    pub(in crate::backends) fn break_holders(name: &Name, request: &BreakRequest) -> Self {
        let BreakRequest { owner, up_to, by, reason } = request;
        let mut op = Self::new(name, 160 + by.len() + reason.len());
        put!(op, "k");
        match owner {
            Some(owner) => put!(op, "{owner}"),
            None => op.cut(),
        }
        put!(op, "{by}");
        put!(op, "{reason}");
        match up_to {
            Some(token) => op.decimal(token.0),
            None => op.cut(),
        }
        op
    }

    pub(in crate::backends) fn break_waiter(name: &Name, request: &WaiterBreak) -> Self {
        let WaiterBreak { id, number, by, reason } = request;
        let mut op = Self::new(name, 64 + by.len() + reason.len());
        op.letter('x');
        put!(op, "{id}");
        op.decimal(*number);
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
        let text = &mut self.text;
        let mut digits = itoa::Buffer::new();
        let _ = write!(text, "{}", request.owner);
        match request.shape {
            Shape::Exclusive => text.push_str(" x "),
            Shape::Shared => text.push_str(" s "),
            Shape::Permits { units, of } => {
                let _ = write!(text, " p{units}/{of} ");
            }
        }
        text.push_str(digits.format(request.block.max(1)));
        for word in [flags, itoa::Buffer::new().format(request.attempt), inbox, digits.format(request.within.len())] {
            text.push(' ');
            text.push_str(word);
        }
        for owner in &request.within {
            let _ = write!(text, " {owner}");
        }
        text.push(' ');
        text.push_str(&request.label);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_release_of_an_answered_claim_may_overtake() {
        let (name, id) = (Name::new("orders/42").unwrap(), ClaimId(7));
        assert!(Op::release(&name, id, Some(1), false).is_numbered_release());
        // Its claim may still be on its way.
        assert!(!Op::release(&name, id, None, false).is_numbered_release());
        assert!(!Op::renew(&name, id, Duration::from_secs(1), Some(1)).is_numbered_release());
        assert!(!Op::break_holders(&name, &BreakRequest::all("d", "d")).is_numbered_release());
        // It may yet be granted.
        assert!(!Op::release(&name, id, Some(1), true).is_numbered_release());
    }

    #[test]
    fn names_are_found_in_their_own_keys_only() {
        for name in ["a", "a}b", "{x}", "}", "é*?["] {
            let name = Name::new(name).unwrap();
            let op = Op::release(&name, ClaimId(1), None, false);
            assert_eq!(op.key(), key(&name));
            assert_eq!(name_of(op.key().as_bytes()), Some(name));
            assert_eq!(name_of(format!("{}claims", op.key()).as_bytes()), None);
        }
    }
}
