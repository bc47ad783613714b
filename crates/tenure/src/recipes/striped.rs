//! A fixed number of locks for any number of keys.

use std::fmt::Display;

use crate::engine::Lock;
use crate::hash::fnv1a;

/// A fixed number of locks for any number of keys. Made by [`Tenure::striped`](crate::Tenure::striped).
///
/// Keys that share a stripe exclude each other now and then; in return the number of names in the store is
/// bounded. The same key gives the same stripe in every process, on every machine and in every version.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
/// let tenure = tenure::Tenure::connect("memory:").await?;
/// let carts = tenure.striped("cart", 64);
/// let guard = carts.of("user-4711").acquire().await?;
/// assert!(carts.of("user-4711").try_acquire().await?.is_none());
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Striped {
    stripes: Vec<Lock>,
}

impl Striped {
    pub(crate) fn new(stripes: Vec<Lock>) -> Self {
        Self { stripes }
    }

    /// The lock of a key, by its text.
    pub fn of(&self, key: impl Display) -> Lock {
        let stripe = usize::try_from(hash(&key.to_string())).unwrap_or(0) % self.stripes.len();
        self.stripes[stripe].clone()
    }
}

/// Folded to 32 bits, so that any number of stripes sees all of it.
fn hash(key: &str) -> u64 {
    let hash = fnv1a(key.bytes());
    (hash >> 32) ^ (hash & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::hash;

    #[test]
    fn a_key_keeps_its_stripe_for_ever() {
        assert_eq!(hash("user-4711") % 64, 33, "changing this breaks exclusion between versions");
    }

    #[test]
    fn keys_spread_over_the_stripes() {
        let used: std::collections::BTreeSet<_> = (0..1_000).map(|key| hash(&key.to_string()) % 64).collect();
        assert_eq!(used.len(), 64);
    }
}
