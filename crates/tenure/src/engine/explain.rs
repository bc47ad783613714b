//! Why a claim was not granted, in words.

use std::time::Duration;

use super::core::Core;
use super::plan::Plan;
use crate::error::{Error, ErrorKind, Holder, Step};
use crate::machine::{Place, Refusal};

/// The time to wait is over.
pub(super) fn timed_out(core: &Core, plan: &Plan, waited: Duration, place: Option<&Place>) -> Error {
    let in_order = core.backend.capabilities().queue;
    let holder = place.map(|place| Holder {
        label: place.holder.to_string(),
        expires_in: place.holder_expires_in,
        ahead: if in_order { place.ahead } else { 0 },
    });
    told(core, plan, ErrorKind::Timeout, format!("not acquired within {}", rounded(waited))).held_by(holder)
}

/// The store refused it.
pub(super) fn refused(core: &Core, plan: &Plan, refusal: &Refusal) -> Error {
    let message = match refusal {
        Refusal::Mixed { live, asked } => {
            format!("in use with another shape: {live} now, {asked} asked for; wait until it is free, or use one shape")
        }
        Refusal::Upgrade => {
            "this owner holds it shared and asks for it exclusively: release the shared lock first".to_owned()
        }
        Refusal::PermitsWithinPermits => {
            "this owner holds permits of it and asks for more, which could wait for itself for ever: take all that is needed by one claim (a nested run takes none)".to_owned()
        }
        Refusal::NotSession => {
            "this owner holds it outside a session: take the outer lock through a session to re-enter it".to_owned()
        }
        Refusal::NotHeld => "this owner does not hold it with that token, so there is nothing to re-enter".to_owned(),
        Refusal::Units { asked } => format!("{asked} cannot be taken"),
    };
    let kind = if *refusal == Refusal::NotHeld { ErrorKind::NotHeld } else { ErrorKind::Conflict };
    told(core, plan, kind, message)
}

/// It waited in a deadlock, and somebody ended that: `cycle` says who waited for whom.
pub(super) fn deadlock(core: &Core, plan: &Plan, by: &str, cycle: &str) -> Error {
    told(core, plan, ErrorKind::Deadlock, format!("refused by {by}, for it waited in a deadlock: {cycle}"))
}

/// The same claim was acquired again by this client, and is the later one's.
pub(super) fn taken_over(core: &Core, plan: &Plan) -> Error {
    told(core, plan, ErrorKind::Conflict, "given up: this client acquires it again with the same owner".to_owned())
}

fn told(core: &Core, plan: &Plan, kind: ErrorKind, message: String) -> Error {
    Error::new(kind, message).at(Step::Acquire).about(&plan.name).in_store(core.backend.url())
}

/// A duration as people say it.
fn rounded(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms < 10_000 { format!("{ms} ms") } else { format!("{} s", duration.as_secs()) }
}
