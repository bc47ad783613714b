//! Names as the service shows them.

use std::time::Duration;

use serde::Deserialize;

use super::answer::{read, shape};
use crate::error::{Error, ErrorKind, Result};
use crate::machine::{BreakView, HolderView, NameView, WaiterView};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

#[derive(Deserialize)]
struct Lock {
    name: String,
    capacity: Option<u32>,
    holders: Vec<Holder>,
    waiters: Vec<Waiter>,
    #[serde(default)]
    breaks: Vec<Break>,
}

#[derive(Deserialize)]
struct Holder {
    owner: Option<Owner>,
    label: Option<String>,
    token: Option<u64>,
    shape: Option<String>,
    units: Option<u32>,
    held_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    renewed_ms: Option<u64>,
    #[serde(default)]
    claims: Vec<Claim>,
    #[serde(default)]
    within: Vec<Owner>,
}

#[derive(Deserialize)]
struct Waiter {
    owner: Option<Owner>,
    label: Option<String>,
    shape: Option<String>,
    units: Option<u32>,
    waited_ms: Option<u64>,
    claim: Claim,
    #[serde(default)]
    within: Vec<Owner>,
}

#[derive(Deserialize)]
struct Claim {
    id: String,
    number: u64,
    of: Option<u32>,
}

#[derive(Deserialize)]
struct Break {
    claim: String,
    by: String,
    reason: String,
}

/// One name.
pub(super) fn one(body: &[u8]) -> Result<NameView> {
    view(read(body)?)
}

/// A page of them.
pub(super) fn many(body: &[u8]) -> Result<Vec<NameView>> {
    read::<Vec<Lock>>(body)?.into_iter().map(view).collect()
}

fn view(lock: Lock) -> Result<NameView> {
    let millis = |millis: Option<u64>| millis.map(Duration::from_millis);
    let mut view = NameView::free(Name::new(lock.name)?);
    view.capacity = lock.capacity;
    for holder in lock.holders {
        let of = holder.claims.first().and_then(|claim| claim.of);
        let claims = holder.claims.iter().map(|claim| Ok((id(&claim.id)?, claim.number)));
        view.holders.push(HolderView {
            owner: holder.owner,
            label: holder.label,
            token: holder.token.map(Token),
            shape: holder.shape.and_then(|word| shape(&word, holder.units.unwrap_or(1), of)),
            units: holder.units,
            held: millis(holder.held_ms),
            expires_in: millis(holder.expires_in_ms),
            renewed: millis(holder.renewed_ms),
            claims: claims.collect::<Result<_>>()?,
            within: holder.within,
        });
    }
    for waiter in lock.waiters {
        view.waiters.push(WaiterView {
            owner: waiter.owner,
            label: waiter.label,
            shape: waiter.shape.and_then(|word| shape(&word, waiter.units.unwrap_or(1), waiter.claim.of)),
            units: waiter.units,
            waited: millis(waiter.waited_ms),
            claim: (id(&waiter.claim.id)?, waiter.claim.number),
            within: waiter.within,
        });
    }
    for mark in lock.breaks {
        view.breaks.push(BreakView { claim: id(&mark.claim)?, by: mark.by, reason: mark.reason });
    }
    Ok(view)
}

fn id(text: &str) -> Result<ClaimId> {
    u64::from_str_radix(text, 16).map(ClaimId).map_err(|_| {
        Error::new(ErrorKind::Store, format!("{text:?} is no id of a claim: this is no answer of a tenure service"))
    })
}
