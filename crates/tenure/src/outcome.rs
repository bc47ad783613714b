//! What the machine's outcomes are to those who asked, where a store runs the machine itself.

use crate::backend::{Block, Claimed, Refusal, Released, Renewed};
use crate::machine::Outcome;

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

pub(crate) fn evicted(outcome: &Outcome) -> usize {
    if let Outcome::Evicted(evicted) = outcome { evicted.len() } else { 0 }
}
