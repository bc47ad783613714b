//! Bearer tokens. The file has only their hashes.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// What every secret begins with, so that scanners find one that was left somewhere.
const PREFIX: &str = "tenure_";

/// A bearer token: 256 random bits.
pub struct Secret(String);

/// What the file has of it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SecretHash([u8; 32]);

impl Secret {
    /// A new one.
    pub fn random() -> Self {
        let (high, low): (u128, u128) = (rand::random(), rand::random());
        Self(format!("{PREFIX}{high:032x}{low:032x}"))
    }

    /// The text to give to a client. It cannot be had again.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What to keep of it.
    pub fn hash(&self) -> SecretHash {
        SecretHash::of(&self.0)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl SecretHash {
    pub(super) fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Reads 64 hex digits.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }

    /// In a time that tells nothing of where they differ.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_read_as_it_is_written_and_shows_nothing() {
        let secret = Secret::random();
        let hash = secret.hash();
        assert!(SecretHash::parse(&hash.to_string()).unwrap().is(&SecretHash::of(secret.reveal())));
        assert!(!hash.is(&Secret::random().hash()));
        assert!(!format!("{secret:?}").contains(secret.reveal()));
        for bad in ["", "00", &"g".repeat(64), &"é".repeat(32)] {
            assert!(SecretHash::parse(bad).is_none(), "{bad}");
        }
    }
}
