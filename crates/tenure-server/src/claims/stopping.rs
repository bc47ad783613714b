//! What requests are told once the instance stops: another one goes on with their claims.

use std::time::Duration;

use tenure::{Certainty, lease};

use super::acquire::AcquireRequest;
use super::renew::{Kept, Renewal};
use super::shared::Claims;
use crate::problem::Problem;

/// How long the store may take to renew the claim of a request that is refused.
const KEEP_MAX: Duration = Duration::from_secs(2);

const REPEAT: &str = "repeat the request with this owner and claim";

/// What a request is told that waits when the instance stops.
pub(super) fn stopping(asked: &AcquireRequest) -> Problem {
    let problem = if asked.unknown_owner {
        Problem::unavailable("this instance stops; the claim ends, for nobody else knows its owner", Certainty::Unknown)
    } else {
        Problem::unavailable("this instance stops; the claim keeps its place", Certainty::Unknown).hint(REPEAT)
    };
    problem.retry_after(Duration::ZERO)
}

impl Claims {
    /// Refuses an acquire because the instance stops. A claim that it repeats is renewed first: until the request is
    /// repeated at another instance nobody else keeps its place.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    pub(crate) async fn refuse_stopping(&self, asked: &AcquireRequest) -> Problem {
        let refused = |message| Problem::unavailable(message, Certainty::NotApplied).retry_after(Duration::ZERO);
        if asked.unknown_owner {
            return refused("this instance stops");
        }
        let claim = &asked.claim;
        let (name, owner) = (asked.name.clone(), claim.owner.clone());
        let renewal = Renewal { name, id: claim.id, owner, ttl: None, number: asked.number };
        let patience = (lease::repeat_after(claim.ttl) * 3).min(KEEP_MAX);
        match self.renew(renewal, patience).await {
            Kept::Held { .. } | Kept::Waits { .. } => {
                refused("this instance stops; the claim keeps its place").hint(REPEAT)
            }
            _ => refused("this instance stops").hint(REPEAT),
        }
    }
}
