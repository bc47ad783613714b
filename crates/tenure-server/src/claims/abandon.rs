//! Ending what a request has left behind.

use std::sync::Arc;

use tenure::backend::{Answer as StoreAnswer, ClaimRequest, Claimed};
use tenure::{ClaimId, Name, Owner};
use tokio::task::JoinHandle;

use super::acquire::{AcquireRequest, Acquired, Held};
use super::shared::Claims;
use crate::problem::Answer;

/// Ends a claim that nobody will ask for again, should the request be dropped.
pub(super) struct Abandon {
    claims: Option<Arc<Claims>>,
    name: Name,
    id: ClaimId,
    owner: Owner,
    pub(super) number: Option<u64>,
    call: Option<JoinHandle<Answer<StoreAnswer<Claimed>>>>,
}

impl Abandon {
    pub(super) fn new(claims: &Arc<Claims>, asked: &AcquireRequest) -> Self {
        let ClaimRequest { id, owner, .. } = &asked.claim;
        Self {
            claims: asked.unknown_owner.then(|| claims.clone()),
            name: asked.name.clone(),
            id: *id,
            owner: owner.clone(),
            number: None,
            call: None,
        }
    }

    /// Awaits the call; should this be dropped meanwhile, the call goes on and what it leaves is ended.
    ///
    /// # Cancel safety
    ///
    /// Cancelling ends the claim once the store has answered, unless somebody else knows its owner.
    pub(super) async fn ask(
        &mut self,
        call: JoinHandle<Answer<StoreAnswer<Claimed>>>,
    ) -> Option<Answer<StoreAnswer<Claimed>>> {
        let call = self.call.insert(call);
        let told = call.await.ok();
        self.call = None;
        if let Some(Ok(StoreAnswer { value: Claimed::Stands(standing), .. })) = &told {
            self.number = Some(standing.number);
        }
        told
    }

    pub(super) fn answered(&mut self, held: Held) -> Acquired {
        self.disarm();
        Acquired::Held(held)
    }

    pub(super) fn disarm(&mut self) {
        self.claims = None;
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        let Some(claims) = self.claims.take() else { return };
        let (name, id, owner, number, call) =
            (self.name.clone(), self.id, self.owner.clone(), self.number, self.call.take());
        let end = async move {
            let number = match call {
                Some(call) => match call.await {
                    Ok(Ok(StoreAnswer { value: Claimed::Stands(standing), .. })) => Some(standing.number),
                    Ok(Ok(_)) => return,
                    // Not known: what it may have left ends by its ttl.
                    _ => number,
                },
                None => number,
            };
            if number.is_some() {
                claims.give_up(&name, id, owner, number).await;
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(end);
        }
    }
}
