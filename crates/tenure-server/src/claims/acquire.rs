//! From the request to the grant, or to the end of the wait.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Answer as StoreAnswer, ClaimRequest, Claimed, Place, Standing};
use tenure::clock::Moment;
use tenure::observe::Asked;
use tenure::{Certainty, ClaimId, Name, Result, Token, lease};
use tokio::time::Instant;

use super::abandon::Abandon;
use super::refusal::{busy, refused};
use super::shared::Claims;
use super::wait::Heard;
use crate::problem::{Answer, Problem};

/// What a caller asks for.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) name: Name,
    /// With the ids that the store sees. Whether it queues, and its attempt, are decided here.
    pub(crate) claim: ClaimRequest,
    pub(crate) wait: Duration,
    /// Whether it keeps its place when the wait is over.
    pub(crate) queue: bool,
    /// Whether nobody but this request knows the owner: then its claim ends with it.
    pub(crate) unknown_owner: bool,
    /// Only go on with the claim that has this number, and never begin another.
    pub(crate) number: Option<u64>,
    /// Behind so many waiters no place is kept.
    pub(crate) waiters_max: usize,
}

/// What becomes of it.
#[derive(Debug)]
pub(crate) enum Acquired {
    Held(Held),
    /// The wait is over and it keeps its place.
    Waits {
        number: u64,
        place: Place,
        ttl: Duration,
        trusted_until: Moment,
    },
}

/// A claim that holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) number: u64,
    pub(crate) token: Option<Token>,
    pub(crate) ttl: Duration,
    /// Until when its holder may trust it.
    pub(crate) trusted_until: Moment,
    /// Whom it was waited for.
    pub(crate) behind: Option<Arc<str>>,
}

impl Claims {
    /// Asks for a claim and waits for it. Answers a problem for everything but a grant or a place that is kept.
    ///
    /// # Cancel safety
    ///
    /// Cancelling ends the claim if nobody else knows its owner; else it keeps its place until its ttl is over, for
    /// the request that repeats this one.
    pub(crate) async fn acquire(self: &Arc<Self>, asked: &AcquireRequest) -> Answer<Acquired> {
        let store = self.backend.capabilities();
        let attempt = rand::random::<u64>().max(1);
        let began = Instant::now();
        let until = began + asked.wait;
        let mut abandon = Abandon::new(self, asked);
        // Before the store is asked: news of a grant may come before the answer. Whoever waits for this claim here
        // goes on until the store has given it to this request.
        let mut listener = self.listen(asked.claim.id, attempt);
        if !store.queue {
            return Box::pin(self.try_until(asked, attempt, until, &mut listener, &mut abandon)).await;
        }
        let waits = asked.queue || !asked.wait.is_zero();
        // Calls of the store are boxed here and in `wait`: many thousands may wait, and need no room for them
        // meanwhile.
        let told = Box::pin(self.claim(asked, attempt, waits, &mut abandon)).await?;
        let mut heard = match told.value {
            Claimed::Stands(Standing { number, ttl, state: Ok(grant) }) => {
                listener.take_over(number);
                return Ok(abandon.answered(held(number, grant.token, ttl, told.counted_from)));
            }
            Claimed::Stands(Standing { number, ttl, state: Err(place) }) => {
                listener.take_over(number);
                abandon.number = Some(number);
                Heard { number, ttl, counted_from: told.counted_from, place }
            }
            Claimed::Busy(place) => {
                abandon.disarm();
                return Err(busy(&place, asked));
            }
            Claimed::Refused(refusal) => {
                abandon.disarm();
                return Err(refused(&refusal));
            }
        };
        if asked.queue && heard.place.waiters_ahead >= asked.waiters_max && !self.stood_before(asked, began).await? {
            let count = heard.place.waiters_ahead;
            abandon.disarm();
            self.abandon(asked.name.clone(), asked.claim.id, asked.claim.owner.clone(), heard.number);
            return Err(Problem::too_many(format!("{count} claims wait for this name already")));
        }
        let stays = self.wait(asked, &mut heard, until, &mut listener).await;
        match stays {
            Ok(Acquired::Held(held)) => Ok(abandon.answered(held)),
            Ok(waits) => {
                abandon.disarm();
                Ok(waits)
            }
            Err(problem) => {
                // What is only not known now may be asked for again, with the owner that the answer names. An instance
                // that stops keeps the places of those whose owner is the client's.
                if !(self.is_stopping() && asked.unknown_owner) {
                    abandon.disarm();
                }
                Err(problem)
            }
        }
    }

    /// Refuses unless the store has the claim with this number: a copy of a request that arrives after the release of
    /// its claim must not begin another.
    async fn still_stands(&self, asked: &AcquireRequest, number: u64) -> Answer<()> {
        let place = Place {
            ahead: 0,
            waiters_ahead: 0,
            holder: "".into(),
            holder_expires_in: Duration::ZERO,
            holder_ttl: Duration::ZERO,
        };
        let mut heard = Heard { number, ttl: asked.claim.ttl, counted_from: self.now(), place };
        match self.renew_waiting(asked, &mut heard).await {
            Ok(_) => Ok(()),
            Err(problem) if problem.is_vanished() => {
                Err(Problem::gone("gone", "the store has no such claim any more: it was released, or lost"))
            }
            Err(problem) => Err(problem),
        }
    }

    /// Whether a claim that waits stood in the queue before a request that began then: such a claim is never ended for
    /// the sake of a limit.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    async fn stood_before(&self, asked: &AcquireRequest, began: Instant) -> Result<bool> {
        if asked.number.is_some() {
            return Ok(true);
        }
        let view = self.ask(Asked::Inspect, self.backend.inspect(&asked.name), Duration::MAX).await?;
        let own = view.waiters.iter().find(|waiter| waiter.claim.0 == asked.claim.id);
        // One that is not there holds by now. Of one that the store does not tell the age of it is not known.
        Ok(own.and_then(|waiter| waiter.waited).is_none_or(|waited| waited > began.elapsed()))
    }

    /// The number of a claim in the store.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn find(&self, name: &Name, id: ClaimId) -> Result<Option<u64>> {
        let view = self.ask(Asked::Inspect, self.backend.inspect(name), Duration::MAX).await?;
        let holding = view.holders.iter().flat_map(|holder| &holder.claims);
        let mut claims = holding.chain(view.waiters.iter().map(|waiter| &waiter.claim));
        Ok(claims.find(|(claim, _)| *claim == id).map(|(_, number)| *number))
    }

    /// Asks the store for the claim once.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the call to its task; `abandon` then ends what nobody else knows of.
    pub(super) async fn claim(
        self: &Arc<Self>,
        asked: &AcquireRequest,
        attempt: u64,
        queue: bool,
        abandon: &mut Abandon,
    ) -> Answer<StoreAnswer<Claimed>> {
        let patience = asked.claim.ttl.max(Duration::from_secs(1));
        let (claims, asked) = (self.clone(), asked.clone());
        let (id, ttl) = (asked.claim.id, asked.claim.ttl);
        // A task of its own: a caller that leaves does not keep the answer from being heard, which tells what to end.
        let call = tokio::spawn(async move {
            // No copy of this request, and no release of its claim, comes between; not even if the caller leaves.
            let _turn = claims.turn(id).await;
            if let Some(number) = asked.number {
                claims.still_stands(&asked, number).await?;
            }
            let request = ClaimRequest { attempt, queue, ..asked.claim };
            Ok(claims.ask(Asked::Claim, claims.backend.claim(&asked.name, request), patience).await?)
        });
        match abandon.ask(call).await {
            Some(Ok(told)) => {
                if lease::deadline(told.counted_from, ttl) <= self.now() && stands(&told.value) {
                    let late = "the answer came when the claim's ttl was over already";
                    return Err(Problem::unavailable(late, Certainty::Unknown));
                }
                Ok(told)
            }
            Some(Err(problem)) => Err(problem),
            None => Err(Problem::unavailable("the service is stopping", Certainty::Unknown)),
        }
    }
}

fn stands(claimed: &Claimed) -> bool {
    matches!(claimed, Claimed::Stands(_))
}

pub(super) fn held(number: u64, token: Token, ttl: Duration, counted_from: Moment) -> Held {
    let token = (token != Token(0)).then_some(token);
    Held { number, token, ttl, trusted_until: lease::deadline(counted_from, ttl), behind: None }
}
