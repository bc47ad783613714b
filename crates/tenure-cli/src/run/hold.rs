//! What a run holds: a lease of its own, or a share in that of the run around it.

use std::time::Duration;

use tenure::clock::Moment;
use tenure::{ClaimId, ErrorKind, Guard, Loss, Name, Owner, Token};

use super::share::Share;

/// What the command runs under.
pub(crate) enum Hold {
    /// A lease of this run.
    Own(Guard),
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
    pub(crate) fn name(&self) -> &Name {
        match self {
            Self::Own(guard) => guard.name(),
            Self::Shared(share) => share.name(),
        }
    }

    pub(crate) fn owner(&self) -> &Owner {
        match self {
            Self::Own(guard) => guard.owner(),
            Self::Shared(share) => share.owner(),
        }
    }

    pub(crate) fn claim_id(&self) -> ClaimId {
        match self {
            Self::Own(guard) => guard.claim_id(),
            Self::Shared(share) => share.claim_id(),
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Own(guard) => guard.token(),
            Self::Shared(share) => share.token(),
        }
    }

    /// Until when it can be trusted; the zero moment once it is lost.
    pub(crate) fn deadline(&self) -> Moment {
        match self {
            Self::Own(guard) => guard.deadline(),
            Self::Shared(share) => share.deadline(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Own(guard) => guard.remaining(),
            Self::Shared(share) => share.remaining(),
        }
    }

    /// Why the last renewal failed, as it is told behind a loss; empty if it did not.
    pub(crate) fn last_failure(&self) -> String {
        let failure = match self {
            Self::Own(guard) => guard.renewal_failure(),
            Self::Shared(share) => share.renewal_failure(),
        };
        failure.map(|failure| format!(" (last failure: {failure})")).unwrap_or_default()
    }

    /// Resolves when it is lost, with the reason in words.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once.
    pub(crate) async fn lost(&self) -> String {
        match self {
            Self::Own(guard) => told(&guard.lost().await, &self.last_failure()),
            Self::Shared(share) => share.lost().await,
        }
    }

    /// Gives it back; a share is only let go.
    pub(crate) async fn release(self) -> Given {
        let failure = self.last_failure();
        match self {
            Self::Own(guard) => match guard.release().await {
                Ok(()) => Given::Back,
                Err(error) if error.kind() == ErrorKind::Lost => {
                    Given::Lost(error.loss().map_or_else(|| error.to_string(), |loss| told(loss, &failure)))
                }
                Err(error) => Given::Unknown(error.to_string()),
            },
            Self::Shared(share) => share.let_go().await,
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
