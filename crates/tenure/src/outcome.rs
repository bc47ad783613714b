//! What is asked of a store, as the machine's operations, and what their outcomes are to those who asked: for stores
//! that run the machine itself.

use crate::backend::{Block, BreakRequest, Claimed, Refusal, ReleaseRequest, Released, Renewed, WaiterBreak};
use crate::machine::{Op, Outcome};

impl From<ReleaseRequest> for Op {
    fn from(request: ReleaseRequest) -> Self {
        let ReleaseRequest { id, number, waiting_only, owner: _ } = request;
        Self::Release { id, number, waiting_only }
    }
}

impl From<BreakRequest> for Op {
    fn from(request: BreakRequest) -> Self {
        let BreakRequest { owner, up_to, by, reason } = request;
        Self::Break { owner, up_to, by, reason }
    }
}

impl From<WaiterBreak> for Op {
    fn from(request: WaiterBreak) -> Self {
        let WaiterBreak { id, number, by, reason } = request;
        Self::BreakWaiter { id, number, by, reason }
    }
}

/// An outcome the machine cannot answer to this operation; answered as "not there".
pub(crate) fn claimed(outcome: Outcome) -> Claimed {
    match outcome {
        Outcome::Stands(standing) | Outcome::Moved(standing) => Claimed::Stands(standing),
        Outcome::Busy(place) => Claimed::Busy(place),
        Outcome::Refused(refusal) => Claimed::Refused(refusal),
        _ => Claimed::Refused(Refusal::NotHeld),
    }
}

pub(crate) fn renewed(outcome: Outcome) -> Renewed {
    match outcome {
        Outcome::Stands(standing) | Outcome::Moved(standing) => Renewed::Stands(standing),
        Outcome::Broken(mark) => Renewed::Broken { by: mark.by, reason: mark.reason },
        _ => Renewed::Gone,
    }
}

pub(crate) fn released(outcome: Outcome) -> Released {
    match outcome {
        Outcome::Released => Released::Yes,
        Outcome::Holds => Released::Holds,
        Outcome::Broken(mark) => Released::Broken { by: mark.by, reason: mark.reason },
        _ => Released::NotFound,
    }
}

pub(crate) fn block(outcome: Outcome) -> Block {
    match outcome {
        Outcome::Stands(standing) => standing.state.map_or(Block::Gone, Block::Given),
        Outcome::Moved(standing) => Block::Moved(standing),
        Outcome::Broken(mark) => Block::Broken { by: mark.by, reason: mark.reason },
        _ => Block::Gone,
    }
}

pub(crate) fn waiter_ended(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::WaiterEnded { .. })
}

pub(crate) fn evicted(outcome: &Outcome) -> usize {
    if let Outcome::Evicted(evicted) = outcome { evicted.len() } else { 0 }
}
