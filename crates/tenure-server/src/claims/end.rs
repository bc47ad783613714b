//! Ending claims: by their owners, and by others.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{BreakRequest, ReleaseRequest, Released};
use tenure::observe::Asked;
use tenure::{ClaimId, Name, Owner, Token};

use super::shared::Claims;
use crate::problem::{Answer, Problem};

/// How often ending a claim is tried that its request has left.
const TRIES: u32 = 5;

/// Which claim to end.
#[derive(Debug)]
pub(crate) struct Which {
    pub(crate) name: Name,
    pub(crate) id: ClaimId,
    pub(crate) owner: Owner,
    pub(crate) number: Option<u64>,
    pub(crate) token: Option<Token>,
    /// Only while it waits.
    pub(crate) waiting_only: bool,
}

impl Claims {
    /// Ends a claim, waiting or holding.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: repeat it, or leave the claim to its ttl.
    pub(crate) async fn release(&self, which: Which) -> Answer<()> {
        let Which { name, id, owner, mut number, token, waiting_only } = which;
        let _turn = self.turn(id).await;
        if let Some(token) = token {
            // A token is looked up, so that the release then names the number of just this claim.
            let view = self.ask(Asked::Inspect, self.backend.inspect(&name), Duration::MAX).await?;
            let mut holders = view.holders.iter().filter(|holder| holder.token == Some(token));
            let found = holders.find_map(|holder| holder.claims.iter().find(|(claim, _)| *claim == id));
            match (found, number) {
                (Some((_, found)), None) => number = Some(*found),
                (Some((_, found)), Some(number)) if *found == number => {}
                _ => return Err(gone()),
            }
        }
        let request = ReleaseRequest { id, owner, number, waiting_only };
        match self.ask(Asked::Release, self.backend.release(&name, request), Duration::MAX).await? {
            Released::Yes => Ok(()),
            Released::Holds => Err(Problem::conflict("holds", "it holds by now, and was to end only while it waits")),
            Released::Broken { by, reason } => Err(Problem::broken(&by, &reason)),
            _ => Err(gone()),
        }
    }

    /// Ends holders' claims up to a token; answers how many.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: look who holds.
    pub(crate) async fn break_up_to(
        &self,
        name: &Name,
        owner: Option<Owner>,
        token: Token,
        by: &str,
        reason: &str,
    ) -> Answer<usize> {
        let request = BreakRequest { owner, up_to: Some(token), by: by.into(), reason: reason.into() };
        Ok(self.ask(Asked::Break, self.backend.break_holders(name, request), Duration::MAX).await?)
    }

    /// Ends a claim in the background.
    pub(crate) fn abandon(self: &Arc<Self>, name: Name, id: ClaimId, owner: Owner, number: u64) {
        let claims = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { claims.give_up(&name, id, owner, Some(number)).await });
        }
    }

    /// Ends a claim that its request has left, if the store can be asked; else its ttl does.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the claim to its ttl.
    pub(super) async fn give_up(self: Arc<Self>, name: &Name, id: ClaimId, owner: Owner, number: Option<u64>) {
        let mut pause = Duration::from_millis(50);
        for _ in 0..TRIES {
            let request = ReleaseRequest { id, owner: owner.clone(), number, waiting_only: false };
            if self.ask(Asked::Release, self.backend.release(name, request), Duration::MAX).await.is_ok() {
                return;
            }
            tokio::time::sleep(pause).await;
            pause *= 3;
        }
        tracing::debug!(?name, "a claim that its request has left could not be ended; its ttl ends it");
    }
}

fn gone() -> Problem {
    Problem::gone("gone", "the store has no such claim: it was released before, or lost")
}
