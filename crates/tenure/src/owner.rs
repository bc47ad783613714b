//! Who claims, and one wish to hold a name.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, ErrorKind};
use crate::hash::fnv1a;
use crate::name::Name;

/// The longest owner given by a user, in characters.
pub const OWNER_CHARS_MAX: usize = 128;

const REFUSING_DEADLOCKS: &str = "!refuse-deadlock";

/// Who claims: a random 128-bit id, or 1 to 128 visible ASCII characters chosen by the user.
///
/// Knowing an owner is enough to renew and release its claims, so treat it like a password where
/// strangers share a store.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner(Repr);

/// A random owner is kept as its number, so that making and comparing one costs no allocation.
/// Text that *is* such a number (32 lower-case hex digits) is kept as the number too: equal text,
/// equal owner.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Repr {
    Id(u128),
    Text(Arc<str>),
}

impl Owner {
    /// A new owner that nobody else has.
    pub fn random() -> Self {
        Self(Repr::Id(rand::random()))
    }

    /// The number of an owner that is one.
    pub(crate) fn as_id(&self) -> Option<u128> {
        match self.0 {
            Repr::Id(id) => Some(id),
            Repr::Text(_) => None,
        }
    }

    /// The owner with this number.
    pub(crate) fn from_id(id: u128) -> Self {
        Self(Repr::Id(id))
    }

    /// The owner of a claim that is only presumed.
    pub(crate) fn unknown() -> Self {
        Self(Repr::Text(Arc::from("unknown")))
    }

    /// What a claim names in `within` beside the owners it runs within, if it is to be refused rather than to wait in
    /// a deadlock: so everybody who looks can tell who asked for that, over every store.
    pub(crate) fn refusing_deadlocks() -> Self {
        Self(Repr::Text(Arc::from(REFUSING_DEADLOCKS)))
    }

    pub(crate) fn is_refusing_deadlocks(&self) -> bool {
        matches!(&self.0, Repr::Text(text) if **text == *REFUSING_DEADLOCKS)
    }

    /// An owner chosen by the user.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] unless it is 1 to 128 visible ASCII characters.
    pub fn new(owner: impl AsRef<str>) -> Result<Self, Error> {
        let owner = owner.as_ref();
        let visible = owner.bytes().all(|byte| byte.is_ascii_graphic());
        if owner.is_empty() || owner.len() > OWNER_CHARS_MAX || !visible {
            let start: String = owner.chars().take(40).collect();
            let (more, length) = (if start.len() < owner.len() { "…" } else { "" }, owner.chars().count());
            return Err(Error::new(
                ErrorKind::Invalid,
                format!(
                    "the owner {start:?}{more} ({length} characters) is not 1 to {OWNER_CHARS_MAX} visible ASCII characters"
                ),
            ));
        }
        Ok(Self(parse_id(owner).map_or_else(|| Repr::Text(Arc::from(owner)), Repr::Id)))
    }
}

/// Writes 16 hex digits: requests are full of ids, and the general way is slow.
fn write_hex(f: &mut fmt::Formatter<'_>, number: u64) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 16];
    for (place, digit) in digits.iter_mut().enumerate() {
        *digit = DIGITS[(number >> (60 - 4 * place) & 0xf) as usize];
    }
    f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
}

fn parse_id(text: &str) -> Option<u128> {
    let canonical = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    canonical.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Repr::Id(id) => {
                write_hex(f, (id >> 64) as u64)?;
                write_hex(f, *id as u64)
            }
            Repr::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Owner {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl Serialize for Owner {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Owner {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}

/// The id of one claim: 64 random bits, new for each attempt to acquire, kept over its retries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimId(pub u64);

impl ClaimId {
    /// A new claim id.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// The claim id of a caller that keeps no state but its owner: the same owner and name give the
    /// same id, so a repeated command is a retry of the same claim.
    ///
    /// FNV-1a with a final mix, over `owner`, a zero byte and `name` (neither can hold one).
    pub fn of(owner: &Owner, name: &Name) -> Self {
        let owner = owner.to_string();
        let mut hash = fnv1a(owner.bytes().chain([0]).chain(name.as_str().bytes()));
        hash ^= hash >> 32;
        hash = hash.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self(hash ^ (hash >> 32))
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, self.0)
    }
}

impl fmt::Debug for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ClaimId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let id = (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        id.map(Self).ok_or_else(|| Error::new(ErrorKind::Invalid, format!("{text:?} is not a claim id: 16 hex digits")))
    }
}

impl Serialize for ClaimId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClaimId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_is_an_id_equals_the_id() {
        let owner = Owner::random();
        assert_eq!(Owner::new(owner.to_string()).unwrap(), owner);
        assert_ne!(Owner::new("A".repeat(32)).unwrap(), Owner::new("a".repeat(32)).unwrap());
    }

    #[test]
    fn owners_are_visible_ascii() {
        for bad in ["", "a b", "ü", "a\n", &"x".repeat(129)] {
            assert!(Owner::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Owner::new("deploy@web-1:77").unwrap().to_string(), "deploy@web-1:77");
    }

    #[test]
    fn a_claim_id_of_an_owner_depends_on_both() {
        let [a, b] = ["a", "ab"].map(|o| Owner::new(o).unwrap());
        let [x, bx] = ["x", "bx"].map(|n| Name::new(n).unwrap());
        assert_eq!(ClaimId::of(&a, &x), ClaimId::of(&a.clone(), &x.clone()));
        assert_ne!(ClaimId::of(&a, &bx), ClaimId::of(&b, &x), "the boundary counts");
    }
}
