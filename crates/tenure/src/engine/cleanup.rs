//! What is left to do when a claim is given up on its way.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use super::core::{Core, release};
use super::live::LiveClaim;
use super::plan::Plan;
use super::request::Request;
use crate::backend::{Answer, Block, Call, Claimed};
use crate::token::Token;

/// How long giving up a place is waited for.
const DECLINE_MAX: Duration = Duration::from_secs(1);

/// How far a claim has come.
pub(super) enum Stage {
    /// The claim is to be asked for, or being asked for.
    Asking(Option<Arc<Request>>),
    /// The store has it.
    Answered,
    /// `held` asks for its next block of tokens; `claim` is the next one's, should it be moved.
    Block { held: Arc<LiveClaim>, block_end: Token, call: Option<Call<Answer<Block>>> },
    /// Granted, refused, or handed to the background: nothing to clean up.
    Over,
}

/// Ends in the background what the store may have of a claim that was given up.
pub(super) fn clean_up(core: &Arc<Core>, plan: &Plan, claim: &Arc<LiveClaim>, stage: Stage, sent: bool) {
    if let Stage::Answered = stage {
        core.registry.remove(claim);
        core.release_behind(claim);
    } else if let Some(ending) = ending(core, plan, claim, stage, sent) {
        core.errand(ending);
    }
}

type Ending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Gives up the place of a claim among those that are told when to ask again.
async fn decline(core: Arc<Core>, claim: &LiveClaim) {
    if core.backend.capabilities().hints {
        let declined = core.backend.decline(&claim.plan.name, claim.id);
        core.within(|| Some(core.clock.now() + DECLINE_MAX), declined).await;
    }
}

/// The work of ending a claim that was given up, if there is any. A request under way is awaited first:
/// a release that overtakes it would leave the claim behind until its ttl.
pub(super) fn ending(
    core: &Arc<Core>,
    plan: &Plan,
    claim: &Arc<LiveClaim>,
    stage: Stage,
    sent: bool,
) -> Option<Ending> {
    if matches!(stage, Stage::Over) {
        return None;
    }
    core.registry.remove(claim);
    let ttl = plan.ttl;
    let (core, claim, repeatable) = (core.clone(), claim.clone(), plan.repeatable);
    match stage {
        Stage::Over => None,
        Stage::Asking(None) if !sent => None,
        Stage::Asking(request) => Some(Box::pin(async move {
            let mut number = claim.number();
            if let Some(request) = request
                && let Some(Ok(answer)) = core.answer_within(|| core.clock.now() + ttl, &request).await
            {
                match answer.value {
                    Claimed::Stands(standing) => number = Some(standing.number),
                    Claimed::Busy(_) | Claimed::Refused(_) => return decline(core, &claim).await,
                }
            }
            if repeatable && core.registry.find(claim.id).is_some() {
                // Acquired again meanwhile: whatever the store has is the later attempt's, also if this one's request
                // came after it.
                return;
            }
            // An id that is used again is ended only by its number; if that is not known, by its ttl.
            if !repeatable || number.is_some() {
                drop(release(core.clone(), &claim, number).await);
            } else {
                decline(core, &claim).await;
            }
        })),
        Stage::Answered => Some(Box::pin(async move {
            drop(release(core, &claim, claim.number()).await);
        })),
        Stage::Block { held, call, .. } => Some(Box::pin(async move {
            core.registry.remove(&held);
            if let Some(call) = call {
                let _ = core.within(|| Some(core.clock.now() + ttl), call).await;
            }
            drop(release(core.clone(), &held, held.number()).await);
            if sent {
                drop(release(core, &claim, None).await);
            }
        })),
    }
}
