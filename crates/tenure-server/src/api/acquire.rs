//! Acquire.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::{Certainty, Name};
use utoipa::ToSchema;

use super::asked::{Acquire, checked};
use super::described::{Clashes, Ended, Sent, TooMany};
use super::fields;
use super::identity::Identity;
use crate::answer::Undelivered;
use crate::auth::{Caller, Right};
use crate::claims::{AcquireRequest, Acquired};
use crate::connection::Peer;
use crate::limits::BODY_BYTES_MAX;
use crate::problem::{Answer, Problem, ms};
use crate::service::Service;

/// A claim that holds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Granted {
    name: String,
    /// To be sent back as it is.
    owner: String,
    /// To be sent back as it is.
    claim: Option<String>,
    /// The owner as others see it.
    shown: String,
    /// The fencing token; null where the store has none.
    token: Option<u64>,
    /// Which append this is, in the store.
    number: u64,
    ttl_ms: u64,
    /// The lease may be trusted for so long, from before the request was sent.
    expires_in_ms: u64,
}

/// A claim that waits.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Waiting {
    /// `waiting`.
    state: &'static str,
    name: String,
    owner: String,
    claim: Option<String>,
    shown: String,
    number: u64,
    /// How many claims stand before it, holders included.
    ahead: usize,
    /// How many of them wait.
    waiters_ahead: usize,
    /// The label of the first holder.
    holder: String,
    /// How long the first holder still holds unless it renews.
    holder_expires_in_ms: u64,
    /// The longest ttl of those who hold.
    holder_ttl_ms: u64,
    ttl_ms: u64,
    /// How long it keeps its place without a renewal.
    expires_in_ms: u64,
}

#[utoipa::path(post, path = "/v1/locks/{name}/acquire", tag = "claims", request_body = Acquire,
    params(("name" = String, Path, description = "the name, percent-encoded: orders%2F42")),
    responses((status = 200, body = Granted), (status = 202, body = Waiting),
        Sent, Ended, Clashes, TooMany))]
/// Takes a lock, at once or after a wait.
///
/// The same owner and claim again is a retry: same claim, same place, at any instance.
pub(crate) async fn acquire_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<Response> {
    let name = fields::name_in_path(&request)?;
    let asked = fields::body(request, BODY_BYTES_MAX).await?;
    // The body may have taken its time, and the right have been taken away meanwhile.
    let caller = service.gate.still(&caller)?;
    acquire(&service, &caller, &peer, Some(name), asked).await
}

#[utoipa::path(post, path = "/v1/acquire", tag = "claims", request_body = Acquire,
    responses((status = 200, body = Granted), (status = 202, body = Waiting),
        Sent, Ended, Clashes, TooMany))]
/// The same with the name in the body, where no proxy can change it.
pub(crate) async fn acquire_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<Response> {
    let asked = fields::body(request, BODY_BYTES_MAX).await?;
    // The body may have taken its time, and the right have been taken away meanwhile.
    let caller = service.gate.still(&caller)?;
    acquire(&service, &caller, &peer, None, asked).await
}

async fn acquire(
    service: &Arc<Service>,
    caller: &Caller,
    peer: &Peer,
    name: Option<Name>,
    ask: Acquire,
) -> Answer<Response> {
    // What was read of the request is gone before it waits: many thousands may wait.
    let (asked, identity) = checked(service, caller, peer, name, ask)?;
    if service.claims.is_stopping() {
        return Err(identity.tell(service.claims.refuse_stopping(&asked).await));
    }
    let permits = match asked.wait.is_zero() {
        true => None,
        false => Some((service.waiters.enter(&caller.name, &asked.name)?, peer.begin_to_wait()?)),
    };
    let acquired = {
        // Pinned here, so that it is not kept twice.
        let acquiring = pin!(service.claims.acquire(&asked));
        tokio::select! {
            acquired = service.observe_acquire(&asked, acquiring) => acquired,
            problem = loses_right(service, caller, peer, &asked.name) => Err(problem),
        }
    };
    drop(permits);
    answer(service, peer, asked, identity, acquired)
}

/// The answer to the caller.
fn answer(
    service: &Arc<Service>,
    peer: &Peer,
    asked: AcquireRequest,
    identity: Identity,
    acquired: Answer<Acquired>,
) -> Answer<Response> {
    let acquired = match acquired {
        Ok(acquired) => acquired,
        Err(problem) if problem.is_transient() => return Err(identity.tell(problem)),
        Err(problem) => return Err(problem),
    };
    let Identity { owner, claim, shown, .. } = identity;
    let (name, shown) = (asked.name.to_string(), shown.to_string());
    match acquired {
        Acquired::Held(held) => {
            let granted = Granted {
                name,
                owner,
                claim,
                shown,
                token: held.token.map(|token| token.0),
                number: held.number,
                ttl_ms: ms(held.ttl),
                expires_in_ms: service.left(held.trusted_until),
            };
            Ok(delivered(service, peer, &asked, held.number, Json(granted).into_response()))
        }
        Acquired::Waits { number, place, ttl, trusted_until } => {
            let waiting = Waiting {
                state: "waiting",
                name,
                owner,
                claim,
                shown,
                number,
                ahead: place.ahead,
                waiters_ahead: place.waiters_ahead,
                holder: place.holder.to_string(),
                holder_expires_in_ms: ms(place.holder_expires_in),
                holder_ttl_ms: ms(place.holder_ttl),
                ttl_ms: ms(ttl),
                expires_in_ms: service.left(trusted_until),
            };
            let response = (StatusCode::ACCEPTED, Json(waiting)).into_response();
            Ok(delivered(service, peer, &asked, number, response))
        }
    }
}

/// An answer that names a claim. If nobody else knows its owner and the answer is not taken, the claim ends.
fn delivered(service: &Arc<Service>, peer: &Peer, asked: &AcquireRequest, number: u64, response: Response) -> Response {
    if !asked.unknown_owner {
        return response;
    }
    let (claims, name, id, owner) =
        (service.claims.clone(), asked.name.clone(), asked.claim.id, asked.claim.owner.clone());
    let end = move || claims.abandon(name.clone(), id, owner.clone(), number);
    if peer.is_gone() {
        // What is written now would be taken for delivered.
        end();
        return response;
    }
    response.map(|body| Undelivered::then(body, end))
}

/// Resolves when the caller has lost its right to the name, or has to show its certificate again.
async fn loses_right(service: &Service, caller: &Caller, peer: &Peer, name: &Name) -> Problem {
    let mut reloads = service.gate.reloads.subscribe();
    loop {
        // First of all: it may have been taken away before this began to listen.
        if let Err(problem) = service.gate.still(caller).and_then(|caller| caller.needs(Right::Acquire, name)) {
            return problem;
        }
        if reloads.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        if peer.certified.is_some() {
            let message = "certificates were read again: come over a new connection";
            return Problem::unavailable(message, Certainty::Unknown).retry_after(Duration::ZERO);
        }
    }
}
