//! Why a claim was not granted, as callers are told.

use std::time::Duration;

use tenure::Certainty;
use tenure::backend::{Place, Refusal};

use super::acquire::AcquireRequest;
use crate::problem::Problem;

pub(super) fn busy(place: &Place, asked: &AcquireRequest) -> Problem {
    let (kind, message) = if asked.wait.is_zero() {
        ("busy", format!("{} is held", asked.name))
    } else {
        ("timeout", format!("{} was not free within {}", asked.name, humantime::format_duration(asked.wait)))
    };
    Problem::conflict(kind, message).certain(Certainty::NotApplied).held_by(place)
}

pub(super) fn superseded() -> Problem {
    Problem::conflict("superseded", "a later request has taken this claim over")
        .hint("repeat once; if that is superseded too, another client uses this owner and claim")
}

/// The store does not have the claim any more: it may have lost the holder's too, which may trust its lease for a
/// while.
pub(super) fn vanished(holder_ttl: Duration) -> Problem {
    Problem::unavailable("the store has lost the claim that waited", Certainty::NotApplied)
        .hint("repeat the request with holder_expires_in_ms as presumed_ms")
        .holder_may_live(holder_ttl)
}

pub(super) fn refused(refusal: &Refusal) -> Problem {
    let conflict = |message: &str| Problem::conflict("conflict", message);
    match refusal {
        Refusal::Mixed { live, asked } => {
            conflict(&format!("the name is in use as {live}, and was asked for as {asked}"))
                .refused("mixed", Some(*live))
        }
        Refusal::Upgrade => conflict("the owner holds it shared and asks for it exclusively")
            .hint("release the shared claim first")
            .refused("upgrade", None),
        Refusal::PermitsWithinPermits => conflict("the owner holds permits of it already")
            .hint("use another owner")
            .refused("permits_within_permits", None),
        Refusal::NotSession => conflict("the owner holds it outside a session")
            .hint("use another owner: what a program hands over among its tasks cannot be re-entered")
            .refused("not_session", None),
        Refusal::NotHeld => {
            Problem::conflict("not_held", "the owner does not hold it with that token").refused("not_held", None)
        }
        Refusal::Units { asked } => {
            Problem::field("units", format!("{asked} cannot be had: take 1 to capacity")).refused("units", None)
        }
    }
}
