//! The lease, as a value.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use tracing::{Instrument as _, Span};

use super::cohort::HandedOver;
use super::core::{Core, release};
use super::detach::Detach;
use super::live::LiveClaim;
use super::memo::Writing;
use super::plan::Plan;
use super::registry::{Key, Kind};
use super::watchdog::{self, next_ask};
use crate::backend::{Answer, Released, Renewed};
use crate::error::{Error, ErrorKind, Loss, Result, Step};
use crate::lease;
use crate::machine::Shape;
use crate::name::Name;
use crate::observe::{Ended, Story};
use crate::owner::Owner;
use crate::token::Token;

/// How long a release is awaited.
const RELEASE_MAX: Duration = Duration::from_secs(5);

/// A lock that is held. Dropping it releases the lock; [`release`](Self::release) also tells how that went.
///
/// A guard is a *lease*: the watchdog renews it in the background, and if that fails, [`lost`](Self::lost)
/// resolves before anybody else can be granted the lock (assuming only that clocks run at about the same
/// rate). Nothing can stop a process that is paused at the wrong moment, so work on a resource that two
/// holders must not touch at once carries the [`token`](Self::token) as well ([`fence`](crate::fence)).
#[must_use = "dropping a guard releases the lock at once"]
#[clippy::has_significant_drop]
pub struct Guard {
    pub(super) core: Arc<Core>,
    pub(super) claim: Arc<LiveClaim>,
    pub(super) token: Token,
    in_cohort: bool,
    armed: bool,
    timers: [Option<Key>; 2],
    /// What is told of it once it is gone; none before a task has it.
    story: Option<Story>,
    /// What it knows of its memo, once it writes one.
    writing: OnceLock<Box<Writing>>,
}

/// What is left of a guard whose claim goes on without it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lease {
    /// The name.
    pub name: Name,
    /// The owner: enough to renew and release it.
    pub owner: Owner,
    /// The fencing token; absent while the claim waits, or where the store has none.
    pub token: Option<Token>,
    /// How long it holds unless it is renewed.
    pub expires_in: Duration,
}

impl Guard {
    pub(crate) fn new(core: Arc<Core>, claim: Arc<LiveClaim>, token: Token, in_cohort: bool) -> Self {
        Self { core, claim, token, in_cohort, armed: true, timers: [None, None], story: None, writing: OnceLock::new() }
    }

    /// Starts the story and the clocks that are this guard's own.
    pub(crate) fn begin(&mut self, plan: &Plan, story: Option<Story>) {
        self.story = story;
        if plan.max_hold.is_none() && plan.warn_after.is_none() {
            return;
        }
        let now = self.core.clock.now();
        let turn = self.claim.turn();
        let timer = |after: Option<Duration>, kind: fn(Arc<LiveClaim>, u64) -> Kind| {
            after.map(|after| self.core.registry.add_timer(kind(self.claim.clone(), turn), now + after))
        };
        self.timers = [timer(plan.max_hold, Kind::MaxHold), timer(plan.warn_after, Kind::Warn)];
    }

    /// A task has it in hand.
    pub(crate) fn take(&self) {
        self.core.take(&self.claim);
    }

    pub(crate) fn loss(&self) -> Option<Loss> {
        self.claim.loss()
    }

    /// Makes dropping it do nothing.
    pub(crate) fn defuse(mut self) {
        self.disarm();
    }

    /// Passes the lease to the next local task, if one waits. One that has run out is lost, which tells the others.
    fn hand_over(&self) -> HandedOver {
        if !self.in_cohort {
            return HandedOver::No;
        }
        // A write that still may take effect names this guard's token: the next task gets one of another block.
        let in_block = !self.writing.get().is_some_and(|writing| writing.is_unanswered());
        let handed_over = self.core.cohorts.hand_over(&self.core, &self.claim, in_block);
        if handed_over == HandedOver::Lost {
            self.core.lose(&self.claim, Loss::Expired);
        }
        handed_over
    }

    pub(super) fn writing(&self) -> &Writing {
        self.writing.get_or_init(Box::default)
    }

    /// Tells how it ended, once.
    fn told(&mut self, ended: Ended) {
        if let Some(story) = self.story.take() {
            let about = (&self.claim.plan.name, &self.claim.plan.label);
            story.end(&self.core.observer, self.core.clock.now(), about, self.token(), ended);
        }
    }

    fn disarm(&mut self) {
        self.armed = false;
        for timer in &mut self.timers {
            if let Some(key) = timer.take() {
                self.core.registry.remove_timer(key);
            }
        }
    }

    /// What is locked.
    pub fn name(&self) -> &Name {
        &self.claim.plan.name
    }

    /// Who holds it.
    pub fn owner(&self) -> &Owner {
        &self.claim.owner
    }

    /// The claim's id.
    pub fn claim_id(&self) -> crate::ClaimId {
        self.claim.id
    }

    /// Its owner and its id as views show them: the same, but through a service.
    pub fn shown(&self) -> (Owner, crate::ClaimId) {
        self.core.backend.shown(&self.claim.owner, &self.claim.plan.name, self.claim.id)
    }

    /// The fencing token: send it with every operation on what the lock protects. `None` where the store
    /// has none ([`Capabilities::tokens`](crate::backend::Capabilities)).
    pub fn token(&self) -> Option<Token> {
        self.core.backend.capabilities().tokens.then_some(self.token)
    }

    /// The token, also where it is none to show.
    pub(crate) fn term(&self) -> Token {
        self.token
    }

    /// How long the claim outlives its last renewal.
    pub(crate) fn ttl(&self) -> Duration {
        self.claim.plan.ttl
    }

    /// How much of the name it takes.
    pub fn shape(&self) -> Shape {
        self.claim.plan.shape
    }

    /// Whether the lease can be trusted now. Compares clocks; no I/O.
    pub fn is_held(&self) -> bool {
        self.core.clock.now() < self.claim.deadline()
    }

    /// How long the lease can be trusted from now on if no renewal succeeds; zero once it is lost.
    pub fn remaining(&self) -> Duration {
        self.claim.deadline().since(self.core.clock.now())
    }

    /// The moment [`remaining`](Self::remaining) counts to, on the client's [`Clock`](crate::clock::Clock);
    /// the zero moment once the lease is lost.
    pub fn deadline(&self) -> crate::clock::Moment {
        self.claim.deadline()
    }

    /// Why the last renewal failed, if it did: what stands behind a [`Loss::Expired`].
    pub fn renewal_failure(&self) -> Option<String> {
        self.claim.renewal_failure().map(|failure| failure.to_string())
    }

    /// Renews the lease now, and answers how long it can be trusted. The watchdog does so by itself every third of the
    /// ttl; this is for [`no_renewal`](crate::Lock::no_renewal), and for a full ttl before a step that cannot be
    /// stopped.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lease is lost.
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the store did not answer: the lease can be trusted
    /// for as long as before ([`remaining`](Self::remaining)).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a renewal that arrives late only lengthens a live claim.
    pub async fn renew(&self) -> Result<Duration> {
        if self.core.clock.now() >= lease::lost_at(self.claim.deadline()) {
            self.core.lose(&self.claim, Loss::Expired);
        }
        if let Some(loss) = self.claim.loss() {
            return Err(self.lost_by(loss));
        }
        let call =
            Box::pin(watchdog::renew(&self.core, false, std::slice::from_ref(&(Key::default(), self.claim.clone()))));
        let answer = self.core.within(|| Some(self.claim.deadline()), call).await;
        let Answer { value, counted_from } =
            answer.unwrap_or_else(|| Err(self.core.no_answer())).map_err(|error| self.not_renewed(error))?;
        let loss = match value.into_iter().next() {
            Some(Renewed::Stands(standing)) if self.claim.answered(&standing, counted_from) => {
                self.core.registry.schedule(self.claim.id, next_ask(&self.claim, &standing, counted_from));
                return match self.claim.loss() {
                    None if self.is_held() => Ok(self.remaining()),
                    loss => Err(self.lost_by(loss.unwrap_or(Loss::Expired))),
                };
            }
            Some(Renewed::Unknown(why)) => {
                let message = format!("the renewal was not answered: {why}");
                return Err(self.not_renewed(Error::new(ErrorKind::Unavailable, message)));
            }
            Some(Renewed::Broken { by, reason }) => Loss::Broken { by: by.to_string(), reason: reason.to_string() },
            Some(Renewed::Stands(_) | Renewed::Gone) | None => Loss::Gone,
        };
        self.core.lose(&self.claim, loss.clone());
        Err(self.lost_by(loss))
    }

    fn not_renewed(&self, error: Error) -> Error {
        error.at(Step::Renew).about(self.name()).in_store(self.core.backend.url())
    }

    /// Resolves when the lease is lost, with the reason: before its deadline, or as soon after it as the
    /// process, its runtime and this task run again. The runtime is the one the client was connected on: when
    /// that ends nobody renews any more, and the lease is lost ([`Loss::SessionEnded`]).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a later call resolves at once if the lease was lost meanwhile.
    pub async fn lost(&self) -> Loss {
        loop {
            let mut changed = pin!(self.claim.changed());
            changed.as_mut().enable();
            if let Some(loss) = self.claim.loss() {
                return loss;
            }
            changed.await;
        }
    }

    /// As [`lost`](Self::lost), for a while.
    ///
    /// # Cancel safety
    ///
    /// As [`lost`](Self::lost).
    pub(crate) async fn lost_within(&self, limit: Duration) -> Option<Loss> {
        self.within(limit, pin!(self.lost())).await
    }

    /// Awaits `work` for a while, by the client's clock.
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops `work` where it stands.
    pub(crate) async fn within<T>(&self, limit: Duration, work: impl Future<Output = T> + Unpin) -> Option<T> {
        let until = self.core.clock.now() + limit;
        self.core.within(|| Some(until), work).await
    }

    /// [`is_held`](Self::is_held), with the reason if it is not.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_held() { Ok(()) } else { Err(self.lost_by(self.claim.loss().unwrap_or(Loss::Expired))) }
    }

    /// Runs `work` under the lease and drops it the moment the lease is lost.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), tenure::Error> {
    /// # let tenure = tenure::Tenure::connect("memory:").await?;
    /// let guard = tenure.lock("report").acquire().await?;
    /// let sum = guard.protect(async { 1 + 1 }).await?;
    /// assert_eq!(sum, 2);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lease was lost before the work ended, or if it had
    /// run out by the time the work ended (a process that slept through its deadline): the work may have
    /// overlapped with the next holder's. Why it could not be renewed, if that is known, is its source.
    ///
    /// # Cancel safety
    ///
    /// Cancelling drops `work` where it stands; the lock stays held.
    pub async fn protect<W: Future>(&self, work: W) -> Result<W::Output> {
        let mut lost = pin!(self.lost());
        let mut work = pin!(work);
        let output = poll_fn(|cx| {
            if let Poll::Ready(loss) = lost.as_mut().poll(cx) {
                return Poll::Ready(Err(loss));
            }
            work.as_mut().poll(cx).map(Ok)
        })
        .await;
        match output {
            Ok(output) if self.is_held() => Ok(output),
            Ok(_) => Err(self.lost_by(self.claim.loss().unwrap_or(Loss::Expired))),
            Err(loss) => Err(self.lost_by(loss)),
        }
    }

    /// The error of this loss; of one that ran out, with what kept it from being renewed.
    pub(crate) fn lost_by(&self, loss: Loss) -> Error {
        let failure = self.claim.renewal_failure().filter(|_| loss == Loss::Expired);
        let error = Error::lost(self.name(), loss);
        match failure {
            Some(failure) => error.because(failure.to_string()),
            None => error,
        }
    }

    /// Releases the lock and waits for the store's answer.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) if the lease had been lost: somebody else may have held
    /// the lock meanwhile. [`ErrorKind::Closed`](crate::ErrorKind::Closed) if the client's runtime has ended: the
    /// claim ends with its ttl. [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the store did not answer
    /// for five seconds (or a shorter ttl): the release goes on in the background, and the claim ends with its ttl at
    /// the latest.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: once called, the lock is released in the background if this future is dropped.
    pub async fn release(mut self) -> Result<()> {
        let span = self.story.as_mut().map_or_else(Span::none, Story::release_span);
        let released = self.release_claim().instrument(span).await;
        if let Some(loss) = released.as_ref().err().and_then(Error::loss) {
            if self.claim.loss().is_none() {
                // Nobody knew before the store said so.
                self.core.observer.metrics.of(self.name()).lost(loss);
            }
            self.told(Ended::Lost(loss.clone()));
        }
        released
    }

    async fn release_claim(&mut self) -> Result<()> {
        self.disarm();
        self.core.refuse_if_over().map_err(|error| error.at(Step::Release).about(self.name()))?;
        if let Some(loss) = self.claim.loss() {
            return Err(self.lost_by(loss).at(Step::Release));
        }
        match self.hand_over() {
            HandedOver::Yes => return Ok(()),
            HandedOver::Lost => {
                return Err(self.lost_by(self.claim.loss().unwrap_or(Loss::Expired)).at(Step::Release));
            }
            HandedOver::No => {}
        }
        self.core.registry.remove(&self.claim);
        let (core, claim) = (self.core.clone(), &self.claim);
        let work = release(core.clone(), claim, claim.number());
        let limit = || Some(lease::about(core.clock.now() + claim.plan.ttl.min(RELEASE_MAX)));
        let answer = core.within(limit, Detach::new(core.clone(), Box::pin(work))).await;
        match answer.unwrap_or_else(|| Err(core.no_answer().at(Step::Release).about(&claim.plan.name))) {
            Ok(Released::Yes) => Ok(()),
            // Only what was to end while it waits is left as it is.
            Ok(Released::Holds) => Err(Error::new(ErrorKind::Store, "the store did not end it").about(self.name())),
            Ok(Released::NotFound) => Err(Error::lost(self.name(), Loss::Gone).at(Step::Release)),
            Ok(Released::Broken { by, reason }) => {
                let loss = Loss::Broken { by: by.to_string(), reason: reason.to_string() };
                Err(Error::lost(self.name(), loss).at(Step::Release))
            }
            Err(error) => Err(error.in_store(self.core.backend.url())),
        }
    }

    /// Leaves the claim to live on without this guard, until its ttl.
    ///
    /// If the lock was [`repeatable`](crate::Lock::repeatable), the owner is all that is needed to renew or
    /// release it elsewhere ([`Tenure::renew_as`](crate::Tenure::renew_as),
    /// [`Tenure::release_as`](crate::Tenure::release_as)); any other claim just runs out.
    pub fn leave(mut self) -> Lease {
        self.disarm();
        self.told(Ended::Left);
        if self.in_cohort {
            self.core.cohorts.lost(&self.core, &self.claim);
        }
        let lease = Lease {
            name: self.name().clone(),
            owner: self.owner().clone(),
            token: self.token(),
            expires_in: self.remaining(),
        };
        self.core.registry.remove(&self.claim);
        lease
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let loss = self.claim.loss().or_else(|| (self.armed && !self.is_held()).then_some(Loss::Expired));
        self.give_back();
        // Last of all: whoever listens may panic.
        self.told(loss.map_or(Ended::Released, Ended::Lost));
    }
}

impl Guard {
    /// Releases it behind, or passes it on, unless that was done.
    fn give_back(&mut self) {
        if !self.armed {
            return;
        }
        self.disarm();
        match self.claim.loss() {
            // Lost with the runtime that is ending: the store is told if it needs none.
            Some(Loss::SessionEnded) => {}
            Some(_) => return,
            None if self.hand_over() != HandedOver::No => return,
            None => {}
        }
        self.core.registry.remove(&self.claim);
        self.core.release_behind(&self.claim);
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("name", self.name())
            .field("token", &self.token)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
