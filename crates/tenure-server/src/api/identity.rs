//! Who claims, and what: as the client says it, and as the store has it.

use tenure::backends::http::{claim_id, shown_owner};
use tenure::{ClaimId, Name, Owner};

use super::fields;
use crate::auth::Caller;
use crate::limits::CLAIM_BYTES_MAX;
use crate::problem::{Answer, Problem};

/// An owner and a claim, as the client and as the store have them.
pub(super) struct Identity {
    pub(super) owner: String,
    pub(super) claim: Option<String>,
    pub(super) shown: Owner,
    pub(super) id: ClaimId,
}

impl Identity {
    pub(super) fn of(caller: &Caller, name: &Name, owner: String, claim: Option<String>) -> Answer<Self> {
        let visible = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        Owner::new(&owner).map_err(|error| Problem::field("owner", error.to_string()))?;
        if claim.as_deref().is_some_and(|claim| !visible(claim) || claim.len() > CLAIM_BYTES_MAX) {
            let message = format!("claim is not 1 to {CLAIM_BYTES_MAX} visible ASCII characters");
            return Err(Problem::field("claim", message));
        }
        let shown = shown_owner(&caller.name, &owner);
        let id = claim_id(&shown, name, claim.as_deref().unwrap_or_default());
        Ok(Self { owner, claim, shown, id })
    }

    pub(super) fn tell(&self, problem: Problem) -> Problem {
        problem.of_claim(&self.owner, self.claim.as_deref())
    }
}

/// The name of the path, or of the body: one of the two.
pub(super) fn one_name(path: Option<Name>, body: Option<String>) -> Answer<Name> {
    match (path, body) {
        (Some(name), None) => Ok(name),
        (None, Some(name)) => fields::name(&name),
        (Some(_), Some(_)) => Err(Problem::field("name", "the path has a name already")),
        (None, None) => Err(Problem::field("name", "missing field `name`")),
    }
}
