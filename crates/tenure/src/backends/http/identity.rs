//! Who is who behind the service. The store sees neither the owner that a client sends nor an id of its choice, but
//! what these functions make of them: a guessed owner of another user is nobody.

use sha2::{Digest as _, Sha256};

use crate::name::Name;
use crate::owner::{ClaimId, Owner};

/// The owner as the store and everybody else see it: 128 bits of a SHA-256 over the caller's name and the owner it
/// sent.
pub fn shown_owner(caller: &str, owner: &str) -> Owner {
    let digest = digest(&[caller, owner]);
    Owner::from_id(u128::from_be_bytes(first(&digest)))
}

/// The id of a claim in the store: 64 bits of a SHA-256 over the owner as it is shown, the name, and the claim that the
/// client sent, or nothing.
pub fn claim_id(shown: &Owner, name: &Name, claim: &str) -> ClaimId {
    let digest = digest(&[&shown.to_string(), name.as_str(), claim]);
    ClaimId(u64::from_be_bytes(first(&digest)))
}

/// Each part after its length, so that no two lists of parts are the same bytes.
fn digest(parts: &[&str]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().into()
}

fn first<const N: usize>(digest: &[u8; 32]) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&digest[..N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(shown_owner("ab", "c"), shown_owner("a", "bc"));
        let owner = shown_owner("a", "o");
        let name = |name: &str| Name::new(name).unwrap();
        assert_ne!(claim_id(&owner, &name("ab"), "c"), claim_id(&owner, &name("a"), "bc"));
        assert_eq!(claim_id(&owner, &name("a"), "c"), claim_id(&owner, &name("a"), "c"));
    }

    #[test]
    fn the_same_owner_of_another_user_is_another() {
        assert_ne!(shown_owner("alice", "x"), shown_owner("bob", "x"));
    }

    #[test]
    fn what_claims_are_called_stays_the_same_from_version_to_version() {
        let owner = shown_owner("", "o");
        assert_eq!(owner.to_string(), "0e900154e4f6d46e7290e6e0c47fd928");
        assert_eq!(claim_id(&owner, &Name::new("orders/42").unwrap(), "1").to_string(), "78992d488249c9ff");
    }
}
