//! Release.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use serde::{Deserialize, Serialize};
use tenure::{Certainty, Name, Token};
use utoipa::ToSchema;

use super::described::{Clashes, Ended, Sent};
use super::fields;
use super::identity::{Identity, one_name};
use crate::auth::{Caller, Right};
use crate::claims::Which;
use crate::limits::BODY_BYTES_MAX;
use crate::problem::{Answer, Problem};
use crate::service::Service;

/// A claim to end.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Release {
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    name: Option<String>,
    #[schema(pattern = "^[!-~]{1,128}$")]
    owner: String,
    /// With it, owner and claim suffice.
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    claim: Option<String>,
    /// Only if it holds with this token.
    #[serde(default)]
    token: Option<u64>,
    /// Only if the store gave it this number.
    #[serde(default)]
    number: Option<u64>,
    /// Only while it waits: 409 `holds` if it holds by now.
    #[serde(default)]
    waiting_only: bool,
}

/// It has ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Released {
    released: bool,
}

#[utoipa::path(post, path = "/v1/locks/{name}/release", tag = "claims", request_body = Release,
    params(("name" = String, Path, description = "the name, percent-encoded")),
    responses((status = 200, body = Released), Sent, Ended, Clashes))]
/// Ends a claim, waiting or holding.
pub(crate) async fn release_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Released>> {
    let name = fields::name_in_path(&request)?;
    let ask = fields::body(request, BODY_BYTES_MAX).await?;
    let caller = service.gate.still(&caller)?;
    release(&service, &caller, Some(name), ask).await
}

#[utoipa::path(post, path = "/v1/release", tag = "claims", request_body = Release,
    responses((status = 200, body = Released), Sent, Ended, Clashes))]
/// The same with the name in the body.
pub(crate) async fn release_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Released>> {
    let ask = fields::body(request, BODY_BYTES_MAX).await?;
    let caller = service.gate.still(&caller)?;
    release(&service, &caller, None, ask).await
}

async fn release(service: &Arc<Service>, caller: &Caller, name: Option<Name>, ask: Release) -> Answer<Json<Released>> {
    let name = one_name(name, ask.name)?;
    caller.needs(Right::Acquire, &name)?;
    let identity = Identity::of(caller, &name, ask.owner, ask.claim)?;
    if identity.claim.is_none() && ask.token.is_none() && ask.number.is_none() {
        let message = "a release without `claim` needs the token or the number of what it ends";
        return Err(Problem::field("token", message).hint("a late copy of it could end the next claim of this owner"));
    }
    let which = Which {
        name: name.clone(),
        id: identity.id,
        owner: identity.shown.clone(),
        number: ask.number,
        token: ask.token.map(Token),
        waiting_only: ask.waiting_only,
    };
    // A task of its own: a caller that leaves does not keep a release from being made.
    let claims = service.claims.clone();
    let released = tokio::spawn(async move {
        let id = which.id;
        let released = claims.release(which).await;
        if released.is_ok() {
            claims.served.released(id);
        }
        released
    });
    let released = released.await.map_err(|_| Problem::unavailable("the service is stopping", Certainty::Unknown))?;
    match released {
        Ok(()) => Ok(Json(Released { released: true })),
        Err(problem) if problem.is_transient() => Err(identity.tell(problem)),
        Err(problem) => Err(problem),
    }
}
