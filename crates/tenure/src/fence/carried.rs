//! What a holder shows to a resource.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use super::rule::Refused;
use crate::engine::Guard;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Shape;
use crate::owner::Owner;
use crate::token::Token;

/// The HTTP header that carries the token: `42`, or `42;shared` of a reader.
pub const TOKEN_HEADER: &str = "Tenure-Token";
/// The HTTP header that carries the [`OwnerHash`].
pub const OWNER_HEADER: &str = "Tenure-Owner";

/// The highest token: databases count with signed numbers of 64 bits, and no store grants a higher one.
const TOKEN_MAX: u64 = i64::MAX as u64;
/// What follows a reader's token in its header.
const SHARED: &str = ";shared";

/// What a holder shows to a resource with each operation: its token, whether it holds exclusively or shared, and a hash
/// of its owner.
///
/// The resource accepts an exclusive holder if its token is above the highest accepted one, or equal with the same
/// owner; a shared holder if its token is above the highest *exclusive* one accepted, or equal with the same owner.
///
/// A fence is no secret: it gives nobody the right to release the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::fence::Fence;
///
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let guard = tenure.lock("stock/42").acquire().await?;
/// let fence = guard.fence()?;
///
/// // Over the wire, with any HTTP client, and back:
/// let [(_, token), (_, owner)] = fence.headers();
/// assert_eq!(Fence::from_headers(&token, &owner)?, fence);
///
/// // Permits limit load, they do not order writes.
/// let permit = tenure.semaphore("printers", 3).acquire().await?;
/// assert!(permit.fence().is_err());
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    token: Token,
    owner: OwnerHash,
    shared: bool,
}

impl Fence {
    /// The fence of a guard.
    ///
    /// # Errors
    ///
    /// [`Refused::Shape`] if it holds permits, [`Refused::NoToken`] if its store has no tokens.
    pub fn of(guard: &Guard) -> Result<Self, Refused> {
        Self::new(guard.token(), guard.owner(), guard.shape())
    }

    /// The fence of a holder that has no guard, such as a command that `tenure run` has started (`TENURE_TOKEN`,
    /// `TENURE_OWNER`).
    ///
    /// # Errors
    ///
    /// [`Refused::Shape`] for permits, [`Refused::NoToken`] without a token, [`Refused::TokenTooLarge`] above 2⁶³ - 1.
    pub fn new(token: Option<Token>, owner: &Owner, shape: Shape) -> Result<Self, Refused> {
        let shared = match shape {
            Shape::Exclusive => false,
            Shape::Shared => true,
            Shape::Permits { .. } => return Err(Refused::Shape(shape)),
        };
        let token = token.ok_or(Refused::NoToken)?;
        if token.get() > TOKEN_MAX {
            return Err(Refused::TokenTooLarge(token));
        }
        Ok(Self { token, owner: OwnerHash::of(owner), shared })
    }

    /// The token.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Whose it is.
    pub fn owner(&self) -> OwnerHash {
        self.owner
    }

    /// [`Shape::Exclusive`] or [`Shape::Shared`].
    pub fn shape(&self) -> Shape {
        if self.shared { Shape::Shared } else { Shape::Exclusive }
    }

    /// Itself, if it may write: a shared lock does not order writes.
    pub(super) fn writer(&self) -> Result<&Self, Refused> {
        if self.shared { Err(Refused::Shape(Shape::Shared)) } else { Ok(self) }
    }

    /// Names and values of the headers that carry it to a service.
    pub fn headers(&self) -> [(&'static str, String); 2] {
        let shared = if self.shared { SHARED } else { "" };
        [(TOKEN_HEADER, format!("{}{shared}", self.token)), (OWNER_HEADER, self.owner.to_string())]
    }

    /// Reads the values of [`TOKEN_HEADER`] and [`OWNER_HEADER`].
    ///
    /// Whoever can send them can lock everybody else out with a high token: authenticate the caller first.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] unless they look as [`headers`](Self::headers) writes them.
    pub fn from_headers(token: &str, owner: &str) -> Result<Self> {
        let (digits, shared) = token.strip_suffix(SHARED).map_or((token, false), |digits| (digits, true));
        let number = digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        let number = number.filter(|number| *number <= TOKEN_MAX).ok_or_else(|| {
            let message = format!("{TOKEN_HEADER} is not a token: a number up to {TOKEN_MAX}, or one with {SHARED}");
            Error::new(ErrorKind::Invalid, message)
        })?;
        Ok(Self { token: Token(number), owner: owner.parse()?, shared })
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} held {} by {}", self.token, self.shape(), self.owner)
    }
}

impl Guard {
    /// What to show to the resource with each operation: [`Fence::of`].
    ///
    /// # Errors
    ///
    /// [`Refused::Shape`] if it holds permits, [`Refused::NoToken`] if its store has no tokens.
    pub fn fence(&self) -> Result<Fence, Refused> {
        Fence::of(self)
    }
}

/// The first 128 bits of the SHA-256 of an owner's text, as 32 hex digits. It tells owners apart and, unlike an owner,
/// is not enough to release a lock.
///
/// An owner of your own choice must be hard to guess for that: random ones are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerHash(u128);

impl OwnerHash {
    /// The hash of an owner.
    pub fn of(owner: &Owner) -> Self {
        let digest: [u8; 32] = Sha256::digest(owner.to_string()).into();
        let mut first = [0; 16];
        first.copy_from_slice(&digest[..16]);
        Self(u128::from_be_bytes(first))
    }
}

impl fmt::Display for OwnerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for OwnerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for OwnerHash {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let is_hash = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let hash = is_hash.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        // What was sent instead may be the owner itself: it is not repeated.
        let message = || format!("{OWNER_HEADER} is not the first 32 hex digits of the owner's SHA-256");
        hash.map(Self).ok_or_else(|| Error::new(ErrorKind::Invalid, message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(token: u64, owner: &str, shape: Shape) -> Result<Fence, Refused> {
        Fence::new(Some(Token(token)), &Owner::new(owner).unwrap(), shape)
    }

    #[test]
    fn an_owner_is_hashed_as_any_language_can_do_it() {
        // printf %s worker-7 | sha256sum | cut -c1-32
        let expected = "8aca0dd300d2436b96f9d412b7b1b00d";
        assert_eq!(OwnerHash::of(&Owner::new("worker-7").unwrap()).to_string(), expected);
    }

    #[test]
    fn no_text_of_a_fence_has_the_owner_in_it() {
        let fence = fence(42, "worker-7", Shape::Exclusive).unwrap();
        let said = format!("{fence} {fence:?} {:?}", fence.headers());
        assert!(said.contains("42") && !said.contains("worker-7"), "{said}");
        let refused = Fence::from_headers("42", "worker-7").unwrap_err().to_string();
        assert!(!refused.contains("worker-7"), "{refused}");
    }

    #[test]
    fn headers_carry_token_owner_and_shape() {
        for shape in [Shape::Exclusive, Shape::Shared] {
            let fence = fence(42, "a", shape).unwrap();
            let [token, owner] = fence.headers();
            assert_eq!(Fence::from_headers(&token.1, &owner.1).unwrap(), fence);
            assert_eq!(fence.shape(), shape);
        }
    }

    #[test]
    fn headers_that_are_malformed_are_refused() {
        let [_, (_, owner)] = fence(42, "a", Shape::Exclusive).unwrap().headers();
        for token in ["", "+1", "-1", " 1", "1 ", "0x1", ";shared", "1;Shared", "1; shared", "9223372036854775808", "١"]
        {
            assert!(Fence::from_headers(token, &owner).is_err(), "{token:?}");
        }
        for owner in ["", &owner[1..], &format!("{owner}0"), &format!("+{}", &owner[1..]), &"é".repeat(16)] {
            assert!(Fence::from_headers("1", owner).is_err(), "{owner:?}");
        }
        assert!(Fence::from_headers("9223372036854775807", &owner.to_uppercase()).is_ok());
    }

    #[test]
    fn permits_and_locks_without_tokens_have_no_fence() {
        let permits = Shape::Permits { units: 1, of: 3 };
        assert_eq!(fence(1, "a", permits), Err(Refused::Shape(permits)));
        let owner = Owner::new("a").unwrap();
        assert_eq!(Fence::new(None, &owner, Shape::Exclusive), Err(Refused::NoToken));
        assert_eq!(fence(1 << 63, "a", Shape::Shared), Err(Refused::TokenTooLarge(Token(1 << 63))));
        assert_eq!(fence(1, "a", Shape::Shared).unwrap().writer(), Err(Refused::Shape(Shape::Shared)));
    }
}
