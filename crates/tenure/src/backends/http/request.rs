//! What is sent.

use std::time::Duration;

use serde::Serialize;

use crate::backend::{ClaimRequest, ReleaseRequest, RenewRequest};
use crate::machine::Shape;
use crate::name::Name;

/// A claim.
#[derive(Serialize)]
pub(super) struct Acquire {
    name: String,
    owner: String,
    claim: String,
    ttl_ms: u64,
    wait_ms: u64,
    pub(super) queue: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
    shared: bool,
    label: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    reenter: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    within: Vec<String>,
    presumed_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
}

impl Acquire {
    /// With `number`, only to go on with a claim that stands.
    pub(super) fn of(name: &Name, request: &ClaimRequest, wait: Duration, number: Option<u64>) -> Self {
        let (units, capacity) = match request.shape {
            Shape::Permits { units, of } => (Some(units), Some(of)),
            Shape::Exclusive | Shape::Shared => (None, None),
        };
        Self {
            name: name.to_string(),
            owner: request.owner.to_string(),
            claim: request.id.to_string(),
            ttl_ms: millis(request.ttl),
            wait_ms: millis(wait),
            queue: request.queue,
            units,
            capacity,
            shared: request.shape == Shape::Shared,
            label: request.label.to_string(),
            reenter: request.reenter.map(|token| token.0),
            within: request.within.iter().map(ToString::to_string).collect(),
            presumed_ms: millis(request.presumed),
            number,
        }
    }
}

/// Claims to keep.
#[derive(Serialize)]
pub(super) struct Renew {
    locks: Vec<RenewOne>,
}

#[derive(Serialize)]
struct RenewOne {
    name: String,
    owner: String,
    claim: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
}

impl Renew {
    /// With `number` telling the one that the service knows a claim by.
    pub(super) fn of(batch: &[RenewRequest], number: impl Fn(&RenewRequest) -> Option<u64>) -> Self {
        let one = |claim: &RenewRequest| RenewOne {
            name: claim.name.to_string(),
            owner: claim.owner.to_string(),
            claim: claim.id.to_string(),
            ttl_ms: (!claim.ttl.is_zero()).then(|| millis(claim.ttl)),
            number: number(claim),
        };
        Self { locks: batch.iter().map(one).collect() }
    }
}

/// A claim to end.
#[derive(Serialize)]
pub(super) struct Release {
    name: String,
    owner: String,
    claim: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    waiting_only: bool,
}

impl Release {
    pub(super) fn of(name: &Name, request: &ReleaseRequest, number: Option<u64>) -> Self {
        Self {
            name: name.to_string(),
            owner: request.owner.to_string(),
            claim: request.id.to_string(),
            number,
            waiting_only: request.waiting_only,
        }
    }
}

/// Rounded up: what was asked for is kept.
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
