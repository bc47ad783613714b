//! Waiting in the store's queue until a claim is granted, or its time is over.

use std::time::Duration;

use tenure::Certainty;
use tenure::backend::{Answer as StoreAnswer, ClaimRequest, Place, Released, Renewed, Standing};
use tenure::clock::Moment;
use tenure::lease;
use tenure::observe::Asked;
use tokio::time::{Instant, sleep_until};

use super::acquire::{AcquireRequest, Acquired, Held, held};
use super::refusal::{busy, superseded, vanished};
use super::shared::{Claims, Listener, News};
use super::stopping::stopping;
use crate::problem::{Answer, Problem};

/// The soonest that a renewal is repeated which has failed.
const REPEAT_MIN: Duration = Duration::from_millis(50);

/// A claim as it was last heard of.
pub(super) struct Heard {
    pub(super) number: u64,
    pub(super) ttl: Duration,
    pub(super) counted_from: Moment,
    pub(super) place: Place,
}

impl Claims {
    /// Waits until a claim that stands in the queue is granted, or its time is over.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the claim keeps its place until its ttl is over.
    pub(super) async fn wait(
        &self,
        asked: &AcquireRequest,
        heard: &mut Heard,
        until: Instant,
        listener: &mut Listener,
    ) -> Answer<Acquired> {
        let mut failures = 0;
        let mut ask_at = self.ask_at(heard);
        loop {
            let news = tokio::select! {
                biased;
                news = listener.news() => news,
                () = sleep_until(ask_at.min(until)) => News::None,
            };
            match news {
                News::Superseded => return Err(superseded()),
                // News of what the claim was before is old.
                News::Granted { number } | News::Ended { number, .. } if number < heard.number => continue,
                News::Granted { number } | News::Ended { number, .. } if number > heard.number => {
                    return Err(superseded());
                }
                News::Stopping => return Err(stopping(asked)),
                News::None if Instant::now() >= until => {
                    return Box::pin(self.wait_is_over(asked, heard, listener)).await;
                }
                _ => {}
            }
            // A grant that is heard is renewed before it is reported, so that its holder has all of its ttl.
            match Box::pin(self.renew_waiting(asked, heard)).await {
                Ok(Some(held)) => return Ok(Acquired::Held(held)),
                Ok(None) => {
                    failures = 0;
                    ask_at = self.ask_at(heard);
                }
                Err(problem)
                    if problem.is_transient()
                        && !problem.is_vanished()
                        && !self.is_dead(heard)
                        && Instant::now() < until =>
                {
                    failures += 1;
                    ask_at = Instant::now() + (REPEAT_MIN * (1 << failures.min(4))).min(lease::repeat_after(heard.ttl));
                }
                Err(problem) => return Err(problem),
            }
        }
    }

    fn ask_at(&self, heard: &Heard) -> Instant {
        let place = &heard.place;
        let at = lease::ask_at(heard.counted_from, heard.ttl, place.holder_expires_in, place.waiters_ahead);
        Instant::now() + at.since(self.now())
    }

    fn is_dead(&self, heard: &Heard) -> bool {
        self.now() >= lease::deadline(heard.counted_from, heard.ttl)
    }

    /// Renews a claim that waits; answers what it holds if it does.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    pub(super) async fn renew_waiting(&self, asked: &AcquireRequest, heard: &mut Heard) -> Answer<Option<Held>> {
        let ClaimRequest { id, owner, .. } = &asked.claim;
        let request = tenure::backend::RenewRequest {
            name: asked.name.clone(),
            id: *id,
            owner: owner.clone(),
            ttl: Duration::ZERO,
            // What another request has taken over is left to it, where it is.
            number: Some(heard.number),
        };
        let call = self.backend.renew(vec![request], false);
        let StoreAnswer { mut value, counted_from } =
            self.ask(Asked::Renew, call, lease::repeat_after(heard.ttl) * 2).await?;
        match value.pop() {
            Some(Renewed::Stands(standing)) if standing.number != heard.number => Err(superseded()),
            Some(Renewed::Stands(Standing { number, ttl, state: Ok(grant) })) => {
                let behind = Some(heard.place.holder.clone());
                Ok(Some(Held { behind, ..held(number, grant.token, ttl, counted_from) }))
            }
            Some(Renewed::Stands(Standing { ttl, state: Err(place), .. })) => {
                *heard = Heard { number: heard.number, ttl, counted_from, place };
                Ok(None)
            }
            Some(Renewed::Broken { by, reason }) => Err(Problem::broken(&by, &reason)),
            Some(Renewed::Unknown(why)) => {
                Err(Problem::unavailable(format!("the renewal was not answered: {why}"), Certainty::Unknown))
            }
            Some(Renewed::Gone) | None => Err(vanished(heard.place.holder_ttl)),
        }
    }

    /// The time to wait is over: the claim keeps its place, or ends unless it holds by now.
    async fn wait_is_over(
        &self,
        asked: &AcquireRequest,
        heard: &mut Heard,
        listener: &mut Listener,
    ) -> Answer<Acquired> {
        if asked.queue {
            // With all of its ttl before it, and a place that is true.
            return match self.renew_waiting(asked, heard).await? {
                Some(held) => Ok(Acquired::Held(held)),
                None => Ok(waits(heard)),
            };
        }
        let ClaimRequest { id, owner, .. } = &asked.claim;
        let end = tenure::backend::ReleaseRequest {
            id: *id,
            owner: owner.clone(),
            number: Some(heard.number),
            waiting_only: true,
        };
        let ended = self
            .ask(Asked::Release, self.backend.release(&asked.name, end), lease::repeat_after(heard.ttl) * 4)
            .await?;
        match ended {
            Released::Yes => Err(busy(&heard.place, asked)),
            Released::Holds => match self.renew_waiting(asked, heard).await? {
                Some(held) => Ok(Acquired::Held(held)),
                None => Err(Problem::unavailable("the store calls it holding, and then waiting", Certainty::Unknown)),
            },
            Released::Broken { by, reason } => Err(Problem::broken(&by, &reason)),
            // Gone, or another request has taken it over a moment ago and this one has not heard of it yet.
            _ if matches!(listener.latest(), News::Superseded) => Err(superseded()),
            _ => match self.find(&asked.name, *id).await? {
                Some(_) => Err(superseded()),
                None => Err(vanished(heard.place.holder_ttl)),
            },
        }
    }
}

fn waits(heard: &Heard) -> Acquired {
    let trusted_until = lease::deadline(heard.counted_from, heard.ttl);
    Acquired::Waits { number: heard.number, place: heard.place.clone(), ttl: heard.ttl, trusted_until }
}
