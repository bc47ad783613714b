//! Keeping claims alive: one, or many at once.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::backend::{Place, RenewRequest, Renewed};
use tenure::clock::Moment;
use tenure::observe::Asked;
use tenure::{ClaimId, Name, Owner, Token, lease};

use super::shared::Claims;

/// A claim to keep.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) name: Name,
    pub(crate) id: ClaimId,
    pub(crate) owner: Owner,
    /// None keeps the ttl that it has.
    pub(crate) ttl: Option<Duration>,
    /// Only if the store gave it this number.
    pub(crate) number: Option<u64>,
}

/// How it stands.
#[derive(Clone, Debug)]
pub(crate) enum Kept {
    Held { token: Option<Token>, number: u64, ttl: Duration, trusted_until: Moment },
    Waits { number: u64, ttl: Duration, trusted_until: Moment, place: Place },
    Lost,
    Broken { by: Arc<str>, reason: Arc<str> },
    Unknown(String),
}

impl Claims {
    /// Renews a claim.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    pub(crate) async fn renew(&self, renewal: Renewal, patience: Duration) -> Kept {
        let Renewal { name, id, owner, ttl, number } = renewal;
        let request = RenewRequest { name, id, owner, ttl: ttl.unwrap_or_default(), number };
        let told = match self.ask(Asked::Renew, self.backend.renew(vec![request], false), patience).await {
            Ok(told) => told,
            Err(error) => return Kept::Unknown(error.to_string()),
        };
        let Some(renewed) = told.value.into_iter().next() else { return Kept::Unknown("no answer".to_owned()) };
        match renewed {
            Renewed::Stands(standing) => {
                let (number, ttl) = (standing.number, standing.ttl);
                let trusted_until = lease::deadline(told.counted_from, ttl);
                match standing.state {
                    Ok(grant) => {
                        let token = (grant.token != Token(0)).then_some(grant.token);
                        Kept::Held { token, number, ttl, trusted_until }
                    }
                    Err(place) => Kept::Waits { number, ttl, trusted_until, place },
                }
            }
            Renewed::Gone => Kept::Lost,
            Renewed::Broken { by, reason } => Kept::Broken { by, reason },
            Renewed::Unknown(why) => Kept::Unknown(why.to_string()),
        }
    }

    /// Renews many claims; one answer for each, in order. What the store has not answered after `patience` is unknown:
    /// a shard that hangs does not cost the others their answers. (Stores send what is asked for together as one.)
    ///
    /// # Cancel safety
    ///
    /// As [`renew`](Self::renew).
    pub(crate) async fn renew_all(&self, renewals: Vec<Renewal>, patience: Duration) -> Vec<Kept> {
        join_all(renewals.into_iter().map(|renewal| self.renew(renewal, patience))).await
    }
}
