//! What a run holds: a lease of its own, or a share in that of the run around it.

use std::time::Duration;

use tenure::clock::Moment;
use tenure::{Attempt, ClaimId, ErrorKind, Guard, Loss, Name, Owner, Token};

use super::share::Share;

/// What the command runs under.
pub(crate) enum Hold {
    /// A lease of this run.
    Own(Guard),
    /// A lease of this run, for a slot that is recorded as begun.
    Slot(Box<Attempt>),
    /// The enclosing run's, on stores where a holder cannot re-enter.
    Shared(Share),
}

/// How giving it back went.
pub(crate) enum Given {
    /// It is back, or was never ours to give.
    Back,
    /// It had been lost before; how.
    Lost(String),
    /// The store did not confirm it; why.
    Unknown(String),
}

impl Hold {
    /// The lease, or the share in another's.
    fn lease(&self) -> Result<&Guard, &Share> {
        match self {
            Self::Own(guard) => Ok(guard),
            Self::Slot(attempt) => Ok(attempt.guard()),
            Self::Shared(share) => Err(share),
        }
    }

    pub(crate) fn name(&self) -> &Name {
        self.lease().map_or_else(Share::name, Guard::name)
    }

    pub(crate) fn owner(&self) -> &Owner {
        self.lease().map_or_else(Share::owner, Guard::owner)
    }

    pub(crate) fn claim_id(&self) -> ClaimId {
        self.lease().map_or_else(Share::claim_id, Guard::claim_id)
    }

    pub(crate) fn token(&self) -> Option<Token> {
        self.lease().map_or_else(Share::token, Guard::token)
    }

    /// Until when it can be trusted; the zero moment once it is lost.
    pub(crate) fn deadline(&self) -> Moment {
        self.lease().map_or_else(Share::deadline, Guard::deadline)
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.lease().map_or_else(Share::remaining, Guard::remaining)
    }

    /// Why the last renewal failed, as it is told behind a loss; empty if it did not.
    pub(crate) fn last_failure(&self) -> String {
        let failure = self.lease().map_or_else(Share::renewal_failure, Guard::renewal_failure);
        failure.map(|failure| format!(" (last failure: {failure})")).unwrap_or_default()
    }

    /// Resolves when it is lost, with the reason in words.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once.
    pub(crate) async fn lost(&self) -> String {
        match self.lease() {
            Ok(guard) => told(&guard.lost().await, &self.last_failure()),
            Err(share) => share.lost().await,
        }
    }

    /// Gives it back; a share is only let go.
    pub(crate) async fn release(self) -> Given {
        let failure = self.last_failure();
        let guard = match self {
            Self::Own(guard) => guard,
            Self::Slot(attempt) => attempt.into_guard(),
            Self::Shared(share) => return share.let_go().await,
        };
        match guard.release().await {
            Ok(()) => Given::Back,
            Err(error) if error.kind() == ErrorKind::Lost => {
                Given::Lost(error.loss().map_or_else(|| error.to_string(), |loss| told(loss, &failure)))
            }
            Err(error) => Given::Unknown(error.to_string()),
        }
    }
}

/// A loss, with what kept the lease from being renewed.
pub(super) fn told(loss: &Loss, failure: &str) -> String {
    match loss {
        Loss::Expired => format!("{loss}{failure}"),
        _ => loss.to_string(),
    }
}
