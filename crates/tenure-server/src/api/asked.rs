//! What an acquire asks for, checked against the caller's rights and what the store can do.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use tenure::backend::{ClaimRequest, Shape};
use tenure::backends::http::shown_owner;
use tenure::{Name, Owner, Token};
use utoipa::ToSchema;

use super::fields;
use super::identity::{Identity, one_name};
use crate::auth::{Caller, Right};
use crate::claims::AcquireRequest;
use crate::connection::Peer;
use crate::limits::{LABEL_BYTES_MAX, WAIT_MAX, WITHIN_MAX};
use crate::problem::{Answer, Problem};
use crate::service::Service;

/// A request to hold a name.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Acquire {
    /// The name, where the path does not have it: 1 to 512 bytes without control characters.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    name: Option<String>,
    /// Who claims: 1 to 128 visible ASCII characters, best a random id that is new for each claim. Without it one is
    /// chosen, and the claim ends if the connection breaks before the answer.
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    owner: Option<String>,
    /// One attempt of this owner, never used again: 1 to 128 visible ASCII characters.
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    claim: Option<String>,
    /// How long it lives without a renewal.
    #[schema(minimum = 100, maximum = 86_400_000)]
    ttl_ms: u64,
    /// How long to wait for it.
    #[serde(default)]
    #[schema(maximum = 50_000)]
    wait_ms: u64,
    /// Whether it keeps its place when the wait is over.
    #[serde(default)]
    queue: bool,
    /// How many permits it takes; needs `capacity`.
    #[serde(default)]
    #[schema(minimum = 1)]
    units: Option<u32>,
    /// Of how many permits.
    #[serde(default)]
    #[schema(minimum = 1)]
    capacity: Option<u32>,
    /// Whether others may hold it shared at the same time.
    #[serde(default)]
    shared: bool,
    /// The owner, for people.
    #[serde(default)]
    #[schema(max_length = 256)]
    label: Option<String>,
    /// Only re-enter: refused unless the owner holds it with this token.
    #[serde(default)]
    reenter: Option<u64>,
    /// Owners of yours that this one works for, so that deadlocks can be found.
    #[serde(default)]
    #[schema(max_items = 16)]
    within: Vec<String>,
    /// `holder_expires_in_ms` of a 503 answer that this request repeats.
    #[serde(default)]
    #[schema(maximum = 86_400_000)]
    presumed_ms: u64,
    /// Only go on with the claim that the store gave this number, as an answer before told it: 410 if that has ended.
    /// Without it a late copy of a request begins a new claim.
    #[serde(default)]
    number: Option<u64>,
}

/// What the store is to be asked, and for whom.
pub(super) fn checked(
    service: &Service,
    caller: &Caller,
    peer: &Peer,
    name: Option<Name>,
    mut ask: Acquire,
) -> Answer<(AcquireRequest, Identity)> {
    let name = one_name(name, ask.name.take())?;
    caller.needs(Right::Acquire, &name)?;
    let store = service.claims.backend.capabilities();
    let (min, max) = store.ttl_limits();
    let ttl = service.ttl(fields::within("ttl_ms", ask.ttl_ms, min, max)?);
    let wait = fields::within("wait_ms", ask.wait_ms, Duration::ZERO, WAIT_MAX)?;
    let presumed = fields::within("presumed_ms", ask.presumed_ms, Duration::ZERO, tenure::TTL_MAX)?;
    if !presumed.is_zero() && wait.is_zero() && !ask.queue {
        let message = "presumed_ms is of those who wait: give wait_ms or queue";
        return Err(Problem::field("presumed_ms", message));
    }
    let shape = shape(&ask)?;
    if ask.queue && !store.queue {
        let message = "this store has no queue, so no place can be kept in it";
        return Err(Problem::field("queue", message).hint("use wait_ms alone"));
    }
    let missing = match shape {
        Shape::Shared if !store.shared => Some(("shared", "this store has no shared locks")),
        Shape::Permits { .. } if !store.permits => Some(("capacity", "this store has no permits")),
        _ if ask.reenter.is_some() && !store.sessions => Some(("reenter", "nothing can be re-entered in this store")),
        _ => None,
    };
    if let Some((field, message)) = missing {
        return Err(Problem::field(field, message));
    }
    let label = label(ask.label.take(), caller, peer)?;
    if ask.within.len() > WITHIN_MAX {
        return Err(Problem::field("within", format!("more than {WITHIN_MAX} owners")));
    }
    let mut within = Vec::with_capacity(ask.within.len());
    for owner in &ask.within {
        Owner::new(owner).map_err(|error| Problem::field("within", error.to_string()))?;
        within.push(shown_owner(&caller.name, owner));
    }
    let unknown_owner = ask.owner.is_none();
    if unknown_owner && ask.claim.is_some() {
        let message = "claim needs owner: without it every request is another owner's";
        return Err(
            Problem::field("claim", message).hint("send the owner that the first answer named, or leave both out")
        );
    }
    let random = || Owner::random().to_string();
    let claim = ask.claim.take().or_else(|| unknown_owner.then(random));
    let identity = Identity::of(caller, &name, ask.owner.take().unwrap_or_else(random), claim)?;
    let request = ClaimRequest {
        id: identity.id,
        owner: identity.shown.clone(),
        label,
        shape,
        ttl,
        queue: false,
        block: 1,
        strict: store.queue,
        inbox: "".into(),
        within,
        reenter: ask.reenter.map(Token),
        solo: false,
        attempt: 0,
        presumed,
    };
    let (queue, number, waiters_max) = (ask.queue, ask.number, service.waiters.for_name_max());
    Ok((AcquireRequest { name, claim: request, wait, queue, unknown_owner, number, waiters_max }, identity))
}

fn shape(ask: &Acquire) -> Answer<Shape> {
    match (ask.shared, ask.units, ask.capacity) {
        (false, None, None) => Ok(Shape::Exclusive),
        (true, None, None) => Ok(Shape::Shared),
        (true, ..) => Err(Problem::field(
            "shared",
            "shared stands beside units or capacity: a claim is shared, or takes units of a capacity",
        )),
        (false, Some(_), None) => Err(Problem::field("units", "units of how many? capacity is missing")),
        (false, units, Some(of)) => {
            let units = units.unwrap_or(1);
            if of == 0 {
                return Err(Problem::field("capacity", "capacity is 0: at least 1"));
            }
            if units == 0 || units > of {
                return Err(Problem::field("units", format!("units is {units}: 1 to {of}")));
            }
            Ok(Shape::Permits { units, of })
        }
    }
}

fn label(label: Option<String>, caller: &Caller, peer: &Peer) -> Answer<Arc<str>> {
    let Some(label) = label else { return Ok(format!("{}@{}", caller.shown(), peer.address()).into()) };
    if label.len() > LABEL_BYTES_MAX || label.chars().any(char::is_control) {
        return Err(Problem::field(
            "label",
            format!("label is at most {LABEL_BYTES_MAX} bytes without control characters"),
        ));
    }
    Ok(label.into())
}
