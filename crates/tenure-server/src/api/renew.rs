//! Renew, one claim or many.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tenure::clock::Moment;
use tenure::{Certainty, Name, TTL_DEFAULT, lease};
use utoipa::ToSchema;

use super::described::{Ended, Sent};
use super::fields;
use super::identity::{Identity, one_name};
use crate::auth::{Caller, Right};
use crate::claims::{Kept, Renewal};
use crate::limits::{BODY_BYTES_MAX, RENEWAL_BYTES_MAX, RENEWALS_MAX};
use crate::problem::{Answer, Problem, ms};
use crate::service::Service;

/// How long a batch of renewals may take at least.
const BATCH_MIN: Duration = Duration::from_millis(50);

/// One claim to keep.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewOne {
    #[schema(min_length = 1, max_length = 512)]
    name: String,
    #[schema(pattern = "^[!-~]{1,128}$")]
    owner: String,
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    claim: Option<String>,
    /// A shorter ttl than it has keeps the longer one.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400_000)]
    ttl_ms: Option<u64>,
    /// Only if the store gave it this number: one that has another is left as it is, and the answer tells its number.
    #[serde(default)]
    number: Option<u64>,
}

/// A claim to keep, or many.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Renew {
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    name: Option<String>,
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    owner: Option<String>,
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    claim: Option<String>,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86_400_000)]
    ttl_ms: Option<u64>,
    #[serde(default)]
    number: Option<u64>,
    /// Up to 1,000 claims; never beside `name`.
    #[serde(default)]
    #[schema(max_items = 1000)]
    locks: Option<Vec<RenewOne>>,
}

/// How a claim stands.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Renewed {
    name: String,
    owner: String,
    claim: Option<String>,
    shown: String,
    /// `held`, `waiting`, `lost`, `broken` or `unknown`.
    state: &'static str,
    token: Option<u64>,
    number: Option<u64>,
    ttl_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    /// How many claims stand before one that waits, holders included.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waiters_ahead: Option<usize>,
    /// The label of the first holder, for one that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_expires_in_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_ttl_ms: Option<u64>,
    /// Who broke it.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Why it was broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// Why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
}

/// The answers to many renewals, in order.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RenewedAll {
    locks: Vec<Renewed>,
}

/// The answer to one renewal, or to many.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, clippy::large_enum_variant, reason = "only describes")]
pub(crate) enum RenewedAny {
    One(Renewed),
    All(RenewedAll),
}

#[utoipa::path(post, path = "/v1/locks/{name}/renew", tag = "claims", request_body = Renew,
    params(("name" = String, Path, description = "the name, percent-encoded")),
    responses((status = 200, body = Renewed), Sent, Ended))]
/// Keeps a claim alive, waiting or holding.
pub(crate) async fn renew_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let name = fields::name_in_path(&request)?;
    let ask: Renew = fields::body(request, BODY_BYTES_MAX).await?;
    let caller = service.gate.still(&caller)?;
    if ask.locks.is_some() {
        return Err(Problem::field("locks", "the path has a name already"));
    }
    let name = one_name(Some(name), ask.name.clone())?;
    renew_one(&service, &caller, name, ask).await
}

#[utoipa::path(post, path = "/v1/renew", tag = "claims", request_body = Renew,
    responses((status = 200, body = RenewedAny), Sent, Ended))]
/// The same for the name in the body, or for up to 1,000 claims at once.
///
/// Many are answered within a ninth of their shortest ttl; what is not known by then is `unknown`.
pub(crate) async fn renew_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let ask: Renew = fields::body(request, RENEWAL_BYTES_MAX).await?;
    let caller = service.gate.still(&caller)?;
    let Some(locks) = ask.locks else {
        let name = one_name(None, ask.name.clone())?;
        return renew_one(&service, &caller, name, ask).await;
    };
    for (field, given) in [
        ("name", ask.name.is_some()),
        ("owner", ask.owner.is_some()),
        ("claim", ask.claim.is_some()),
        ("ttl_ms", ask.ttl_ms.is_some()),
        ("number", ask.number.is_some()),
    ] {
        if given {
            return Err(Problem::field(field, format!("{field} stands beside locks: one of the two")));
        }
    }
    if locks.len() > RENEWALS_MAX {
        return Err(Problem::field("locks", format!("{} claims: at most {RENEWALS_MAX}", locks.len())));
    }
    let at = |place: usize, problem: Problem| problem.at_place("locks", place);
    let mut renewals = Vec::with_capacity(locks.len());
    let mut identities = Vec::with_capacity(locks.len());
    for (place, one) in locks.into_iter().enumerate() {
        let name = fields::name(&one.name).map_err(|problem| at(place, problem))?;
        caller.needs_any(Right::Acquire)?;
        // A right that was taken away costs that name, not the others.
        let may = caller.needs(Right::Acquire, &name).is_ok();
        let ttl = renewal_ttl(&service, one.ttl_ms).map_err(|problem| at(place, problem))?;
        let identity = Identity::of(&caller, &name, one.owner, one.claim).map_err(|problem| at(place, problem))?;
        let (id, owner, number) = (identity.id, identity.shown.clone(), one.number);
        renewals.push(Renewal { name, id, owner, ttl, number });
        identities.push((identity, may));
    }
    if let (Some(first), true) = (names_of(&renewals).next(), identities.iter().all(|(_, may)| !may)) {
        caller.needs(Right::Acquire, first)?;
    }
    let shortest = renewals.iter().map(|renewal| renewal.ttl.unwrap_or(TTL_DEFAULT)).min().unwrap_or(TTL_DEFAULT);
    let names: Vec<Name> = names_of(&renewals).cloned().collect();
    let allowed: Vec<Renewal> =
        renewals.into_iter().zip(&identities).filter(|(_, (_, may))| *may).map(|(renewal, _)| renewal).collect();
    let mut kept = service.claims.renew_all(allowed, (shortest / 9).max(BATCH_MIN)).await.into_iter();
    let mut locks = Vec::with_capacity(names.len());
    for (name, (identity, may)) in names.iter().zip(identities) {
        let kept = if may { kept.next() } else { None };
        let kept = kept.unwrap_or_else(|| Kept::Unknown(format!("{} may not renew this name", caller.shown())));
        locks.push(service.renewed(name, identity, kept));
    }
    Ok(Json(RenewedAll { locks }).into_response())
}

fn names_of(renewals: &[Renewal]) -> impl Iterator<Item = &Name> {
    renewals.iter().map(|renewal| &renewal.name)
}

/// A shorter ttl than the store allows keeps the longer one that the claim has.
fn renewal_ttl(service: &Service, ttl_ms: Option<u64>) -> Answer<Option<Duration>> {
    let Some(ttl_ms) = ttl_ms else { return Ok(None) };
    let (min, max) = service.claims.backend.capabilities().ttl_limits();
    let ttl = fields::within("ttl_ms", ttl_ms, Duration::from_millis(1), max)?;
    Ok(Some(service.ttl(ttl.max(min))))
}

async fn renew_one(service: &Service, caller: &Caller, name: Name, ask: Renew) -> Answer<Response> {
    let Renew { owner, claim, ttl_ms, number, .. } = ask;
    caller.needs(Right::Acquire, &name)?;
    let owner = owner.ok_or_else(|| Problem::field("owner", "missing field `owner`"))?;
    let ttl = renewal_ttl(service, ttl_ms)?;
    let identity = Identity::of(caller, &name, owner, claim)?;
    let (id, owner) = (identity.id, identity.shown.clone());
    let renewal = Renewal { name: name.clone(), id, owner, ttl, number };
    let patience = lease::repeat_after(ttl.unwrap_or(TTL_DEFAULT)) * 3;
    match service.claims.renew(renewal, patience).await {
        Kept::Lost => {
            service.observe_renewal(identity.id, &Kept::Lost);
            Err(Problem::gone("lost", "the store has no such claim: its ttl was over, or it was released"))
        }
        Kept::Broken { by, reason } => {
            let problem = Problem::broken(&by, &reason);
            service.observe_renewal(identity.id, &Kept::Broken { by, reason });
            Err(problem)
        }
        Kept::Unknown(why) => {
            service.claims.served.renewal_failed();
            Err(identity.tell(Problem::unavailable(why, Certainty::Unknown)))
        }
        kept => Ok(Json(service.renewed(&name, identity, kept)).into_response()),
    }
}

impl Service {
    /// What is left of a lease now.
    pub(super) fn left(&self, trusted_until: Moment) -> u64 {
        ms(trusted_until.since(self.claims.now()))
    }

    fn renewed(&self, name: &Name, identity: Identity, kept: Kept) -> Renewed {
        let Identity { owner, claim, shown, id } = identity;
        let mut renewed = Renewed {
            name: name.to_string(),
            owner,
            claim,
            shown: shown.to_string(),
            state: "unknown",
            token: None,
            number: None,
            ttl_ms: None,
            expires_in_ms: None,
            ahead: None,
            waiters_ahead: None,
            holder: None,
            holder_expires_in_ms: None,
            holder_ttl_ms: None,
            by: None,
            reason: None,
            message: None,
        };
        self.observe_renewal(id, &kept);
        match kept {
            Kept::Held { token, number, ttl, trusted_until } => {
                renewed.state = "held";
                renewed.token = token.map(|token| token.0);
                (renewed.number, renewed.ttl_ms) = (Some(number), Some(ms(ttl)));
                renewed.expires_in_ms = Some(self.left(trusted_until));
            }
            Kept::Waits { number, ttl, trusted_until, place } => {
                renewed.state = "waiting";
                (renewed.ahead, renewed.waiters_ahead) = (Some(place.ahead), Some(place.waiters_ahead));
                renewed.holder = Some(place.holder.to_string());
                renewed.holder_expires_in_ms = Some(ms(place.holder_expires_in));
                renewed.holder_ttl_ms = Some(ms(place.holder_ttl));
                (renewed.number, renewed.ttl_ms) = (Some(number), Some(ms(ttl)));
                renewed.expires_in_ms = Some(self.left(trusted_until));
            }
            Kept::Lost => renewed.state = "lost",
            Kept::Broken { by, reason } => {
                renewed.state = "broken";
                (renewed.by, renewed.reason) = (Some(by.to_string()), Some(reason.to_string()));
            }
            Kept::Unknown(why) => renewed.message = Some(why),
        }
        renewed
    }
}
