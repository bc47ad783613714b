//! A claim on its way: asked for, waited for, granted; or given up without leaving anything behind.
//!
//! A [`Pending`] can be dropped at any point, and can be passed to another task at any point: calls to
//! the store under way travel with it.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::cleanup::{Stage, clean_up, ending};
use super::core::Core;
use super::deadlock;
use super::detach::Detach;
use super::explain;
use super::live::{LiveClaim, Phase, Won};
use super::plan::Plan;
use super::request::Request;
use super::wait::{Wait, call_limit, call_patience, patience_over, pause_before};
use super::watchdog::next_ask;
use crate::backend::{Answer, Block, Claimed, Confirmed, Renewed, Replicas};
use crate::clock::Moment;
use crate::deadlocks;
use crate::error::{Certainty, Error, ErrorKind, Loss, Result, Step};
use crate::lease;
use crate::machine::{Grant, Place};
use crate::observe::{Operation, Wish};
use crate::token::Token;

/// How long the end of a claim is awaited before its caller is told that its time is over.
const WITHDRAWAL_MAX: Duration = Duration::from_millis(500);

pub(crate) struct Pending {
    core: Arc<Core>,
    plan: Arc<Plan>,
    claim: Arc<LiveClaim>,
    stage: Stage,
    /// Whether the store may have the claim.
    sent: bool,
    /// Whether the store has ever answered.
    reached: bool,
    block: u32,
    /// When the present task began to wait; none while nothing had to be waited for.
    started: OnceLock<Moment>,
    tries: u32,
    /// Whether the grant was waited for in the queue.
    waited: bool,
    /// Whether a grant was heard of too late before.
    was_late: bool,
    last_place: Option<Place>,
    /// Whether the last answer was that somebody else holds it.
    was_busy: bool,
    /// Whether a try may have been applied: what fails after it is unknown too.
    unknown: bool,
    /// The claim with the same id that it took over.
    displaced: Option<Arc<LiveClaim>>,
    /// Tells attempts with the same id apart; zero where ids are random.
    attempt: u64,
    /// When to look whether it waits in a deadlock.
    looks: deadlock::Schedule,
    /// Until when somebody else may trust a lease of the name that the store has lost with a claim of ours.
    holder_until: Option<Moment>,
}

impl Pending {
    /// `term` is that of the cohort's leader that asks for it; zero if none does.
    pub(crate) fn new(core: &Arc<Core>, plan: Arc<Plan>, block: u32, term: u64) -> Self {
        let (claim, displaced) = register(core, &plan, term);
        let attempt = if plan.repeatable { rand::random() } else { 0 };
        Self {
            core: core.clone(),
            plan,
            claim,
            stage: Stage::Asking(None),
            sent: false,
            reached: false,
            block,
            started: OnceLock::new(),
            tries: 0,
            waited: false,
            was_late: false,
            last_place: None,
            was_busy: false,
            unknown: false,
            displaced,
            attempt,
            looks: deadlock::Schedule::default(),
            holder_until: None,
        }
    }

    /// A claim that continues the holding of `held`, or waits behind the others.
    pub(crate) fn next_block(
        core: &Arc<Core>,
        plan: Arc<Plan>,
        held: Arc<LiveClaim>,
        block_end: Token,
        block: u32,
    ) -> Self {
        let mut pending = Self::new(core, plan, block, held.term);
        pending.stage = Stage::Block { held, block_end, call: None };
        pending.reached = true;
        pending
    }

    /// Another task goes on with it. Its patience with a store that does not answer counts from when it began
    /// to wait; with one that does, from now.
    pub(crate) fn taken_over(&mut self, since: Option<Moment>) {
        let unreached = since.filter(|_| !self.core.reachable.load(Ordering::Acquire));
        self.started = unreached.map_or_else(OnceLock::new, OnceLock::from);
        self.tries = 0;
        self.core.cohorts.begin(&self.core, &self.claim);
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.plan.ttl
    }

    /// The claim it asks for; while that is not known, the holding it continues.
    fn led(&self) -> &Arc<LiveClaim> {
        if let Stage::Block { held, .. } = &self.stage { held } else { &self.claim }
    }

    /// Whether the store has answered it, so that the watchdog keeps its time.
    pub(crate) fn is_answered(&self) -> bool {
        matches!(self.stage, Stage::Answered | Stage::Block { .. }) && self.led().loss().is_none()
    }

    /// Drops it without ending anything: its caller does.
    pub(crate) fn forget(mut self) {
        self.stage = Stage::Over;
        self.core.registry.remove(&self.claim);
    }

    /// Drives it to the grant. `Ok(None)` if it is held by somebody else and the caller does not wait.
    ///
    /// After an error or `None`, or when this future is dropped, the claim is still pending: pass it on,
    /// withdraw it, or drop it.
    pub(crate) async fn drive(&mut self, wait: Wait, wish: &Wish<'_>) -> Result<Option<Won>> {
        loop {
            self.core.refuse_if_over().map_err(|over| over.at(Step::Acquire).about(&self.plan.name))?;
            match &mut self.stage {
                Stage::Asking(_) => {
                    if !self.ask(wait, wish).await? {
                        return Ok(None);
                    }
                }
                Stage::Answered => {
                    if let Some(won) = self.await_grant(wait, wish).await? {
                        return Ok(Some(won));
                    }
                }
                Stage::Block { .. } => {
                    if let Some(won) = self.ask_block(wait).await? {
                        return Ok(Some(won));
                    }
                }
                // Refused before, for a task that passed it on: this one asks for itself.
                Stage::Over => self.make_anew(),
            }
        }
    }

    /// Drives it into the queue: until the store has answered where it stands. To be driven to the grant afterwards.
    ///
    /// After an error, or when this future is dropped, it is as after [`drive`](Self::drive).
    pub(crate) async fn place(&mut self, wish: &Wish<'_>) -> Result<()> {
        while matches!(self.stage, Stage::Asking(_)) {
            self.core.refuse_if_over().map_err(|over| over.at(Step::Acquire).about(&self.plan.name))?;
            self.ask(Wait::Forever, wish).await?;
        }
        Ok(())
    }

    /// Asks for the claim once. False if it is busy and the caller does not wait.
    async fn ask(&mut self, wait: Wait, wish: &Wish<'_>) -> Result<bool> {
        if self.plan.repeatable && self.claim.loss() == Some(Loss::TakenOver) {
            return Err(self.displaced_by_later());
        }
        let store = self.core.backend.capabilities();
        let queue = (store.queue || store.hints) && !matches!(wait, Wait::No);
        let limit = call_limit(&self.core, &self.plan, &self.started, self.reached, wait);
        let presumed = self.presumed();
        let Stage::Asking(request) = &mut self.stage else { return Ok(true) };
        if request.is_none() {
            let mut asked = self.plan.request(self.claim.id, self.claim.owner.clone(), queue, self.block);
            asked.attempt = self.attempt;
            asked.presumed = presumed;
            self.sent = true;
            let call = self.core.backend.claim(&self.plan.name, asked);
            *request = Some(Request::new(self.claim.clone(), call));
        }
        let Some(under_way) = request else { return Ok(true) };
        wish.asks_as(&self.claim.owner);
        let asked = self.core.clock.now();
        let trip = self.core.observer.metrics.sent(Operation::Claim, asked);
        let answer = self.core.answer_within(limit, under_way).await;
        if under_way.was_attended() {
            self.core.cohorts.begin(&self.core, &self.claim);
        }
        *request = None;
        self.core.reached(asked, answer.as_ref().map(Result::as_ref));
        if let Some(Ok(_)) = &answer {
            self.core.observer.metrics.answered(trip, &*self.core.clock);
        }
        match answer {
            Some(Ok(Answer { value: Claimed::Stands(standing), counted_from })) => {
                self.reached = true;
                self.displaced = None;
                if !self.claim.answered(&standing, counted_from) {
                    // The store has ended what it answered to an earlier request, and made it anew: neither is ours.
                    if !self.plan.repeatable {
                        self.core.release_number_behind(&self.claim, standing.number);
                    }
                    self.core.registry.remove(&self.claim);
                    self.claim.lose(Loss::Gone);
                    self.make_anew();
                    return Ok(true);
                }
                self.stage = Stage::Answered;
                self.core.registry.schedule(self.claim.id, next_ask(&self.claim, &standing, counted_from));
                Ok(true)
            }
            Some(Ok(Answer { value: Claimed::Busy(place), .. })) => {
                self.reached = true;
                // Its place among those that are told when to ask again is all that the store has.
                self.sent = queue && store.hints;
                let held_for = place.holder_expires_in;
                wish.is_behind(&place.holder);
                self.last_place = Some(place);
                self.was_busy = true;
                if matches!(wait, Wait::No) {
                    return Ok(false);
                }
                if !store.queue {
                    self.tries += 1;
                    self.pause(self.plan.strategy.pause(self.tries, held_for, self.sent), wait).await?;
                }
                Ok(true)
            }
            Some(Ok(Answer { value: Claimed::Refused(refusal), .. })) => {
                self.stage = Stage::Over;
                self.core.registry.remove(&self.claim);
                if let Some(displaced) = self.displaced.take() {
                    // It stands in another shape, and nobody has it any more.
                    self.core.release_behind(&displaced);
                }
                Err(explain::refused(&self.core, &self.plan, &refusal))
            }
            None if self.was_busy && self.was_cut_short(asked, wait) => Err(self.timed_out()),
            Some(Err(error)) => self.try_again(wait, error).await.map(|()| true),
            None => self.try_again(wait, self.core.no_answer()).await.map(|()| true),
        }
    }

    /// Waits for the news of the grant. `None` if the claim has to be made anew.
    async fn await_grant(&mut self, wait: Wait, wish: &Wish<'_>) -> Result<Option<Won>> {
        let claim = self.claim.clone();
        let mut changed = pin!(claim.changed());
        changed.as_mut().enable();
        match claim.phase() {
            Phase::Granted(grant) => self.accept(grant, wait).await,
            Phase::Waiting(place) => {
                self.started();
                self.waited = true;
                wish.asks_as(&claim.owner);
                wish.is_behind(&place.holder);
                self.last_place = Some(place);
                if matches!(wait, Wait::No) {
                    // Left in the queue by an attempt with the same id: the caller does not wait for it.
                    return Err(self.timed_out());
                }
                let look_at = self.plan.refuse_deadlock.then(|| self.looks.next(self.core.clock.now()));
                let limit = wait.limit().into_iter().chain(look_at).min();
                if self.core.within(|| limit, changed).await.is_some() {
                    return Ok(None);
                }
                self.core.refuse_if_over()?;
                match look_at.filter(|at| wait.limit().is_none_or(|limit| *at < limit)) {
                    Some(due) => self.refuse_deadlock(wait, due).await.map(|()| None),
                    None => Err(self.timed_out()),
                }
            }
            Phase::Lost(loss) if deadlocks::note_in(&loss).is_some() => {
                // It is not made anew: the one who waits for it is to give back what it holds.
                self.led().take();
                self.stage = Stage::Over;
                let (by, cycle) = deadlocks::note_in(&loss).unwrap_or_default();
                Err(explain::deadlock(&self.core, &self.plan, by, cycle))
            }
            Phase::Lost(Loss::TakenOver) => Err(self.displaced_by_later()),
            Phase::Asking | Phase::Lost(_) => {
                self.make_anew();
                Ok(None)
            }
        }
    }

    /// Looks whether the claim waits in a deadlock and is the one to be refused; if so, ends it unless it holds by
    /// now.
    async fn refuse_deadlock(&mut self, wait: Wait, due: Moment) -> Result<()> {
        let claim = self.claim.clone();
        let mut changed = pin!(claim.changed());
        changed.as_mut().enable();
        if !matches!(claim.phase(), Phase::Waiting(_)) {
            return Ok(());
        }
        let look = pin!(deadlock::to_be_refused(&self.core, &claim, due));
        let looked = self.core.within(|| wait.limit(), select(changed, look)).await;
        self.looks.looked(self.core.clock.now());
        if let Some(Either::Right((Some(found), _))) = looked
            && deadlock::give_up(&self.core, &claim).await
        {
            self.stage = Stage::Over;
            self.core.registry.remove(&claim);
            return Err(explain::deadlock(&self.core, &self.plan, "refuse_deadlock", &found.to_string()));
        }
        Ok(())
    }

    /// Takes a grant that was heard of, unless it was heard too late to be trusted.
    async fn accept(&mut self, grant: Grant, wait: Wait) -> Result<Option<Won>> {
        let claim = self.claim.clone();
        if !claim.plan.renewed && self.waited {
            // Nobody will renew it, so it starts with its full ttl.
            let call = self.core.backend.renew(vec![claim.renewal()], false);
            let answer = self.core.within(|| Some(claim.deadline()), call).await;
            if let Some(Ok(Answer { value, counted_from })) = answer
                && let Some(Renewed::Stands(standing)) = value.first()
                && standing.state.is_ok()
                && claim.answered(standing, counted_from)
            {
                self.waited = false;
            } else {
                return self.heard_too_late(wait).await.map(|()| None);
            }
        }
        if let Some(replicas) = self.plan.replicas {
            self.confirm(&claim, replicas).await?;
        }
        let now = self.core.clock.now();
        if now >= lease::lost_at(claim.deadline()) {
            return self.heard_too_late(wait).await.map(|()| None);
        }
        if !claim.plan.renewed {
            self.core.registry.schedule(claim.id, crate::clock::NEVER);
        }
        self.stage = Stage::Over;
        self.core.take(&claim);
        Ok(Some(Won { claim, grant, at: now, behind: self.behind(), continued: false }))
    }

    /// A grant that was heard of too late is asked for anew: once at once, as this process may have stood still; and
    /// then as after any other failure, for it may be the store that always takes too long.
    async fn heard_too_late(&mut self, wait: Wait) -> Result<()> {
        self.make_anew();
        if !std::mem::replace(&mut self.was_late, true) {
            return Ok(());
        }
        let late = format!("was granted, but the answer took longer than the ttl of {:?} leaves", self.plan.ttl);
        let late = Error::new(ErrorKind::Unavailable, late).with_certainty(Certainty::Unknown);
        self.try_again(wait, late).await
    }

    /// A grant that too few replicas have is given back.
    async fn confirm(&mut self, claim: &Arc<LiveClaim>, replicas: Replicas) -> Result<()> {
        let call = self.core.backend.confirm(claim.renewal(), replicas);
        let failure = match self.core.within(|| Some(claim.deadline()), call).await {
            Some(Ok(confirmed)) if confirmed.is_enough() => return Ok(()),
            Some(Ok(Confirmed { acknowledged, needed })) => Error::new(
                ErrorKind::Replicas,
                format!(
                    "too few replicas: {acknowledged} of the {needed} asked for have the grant, which was given back"
                ),
            ),
            // The grant itself was given, whatever became of the question.
            Some(Err(error)) => error.unknown_if(true),
            None => self.core.no_answer(),
        };
        Err(failure.at(Step::Acquire).about(&claim.plan.name).in_store(self.core.backend.url()))
    }

    /// Asks for the next block once. `None` if there is more to do.
    async fn ask_block(&mut self, wait: Wait) -> Result<Option<Won>> {
        let Stage::Block { held, block_end, call } = &mut self.stage else { return Ok(None) };
        let sent = self.core.clock.now();
        if sent >= lease::lost_at(held.deadline()) {
            self.make_anew();
            return Ok(None);
        }
        let (held, block_end) = (held.clone(), *block_end);
        if call.is_none() {
            let next = self.plan.request(self.claim.id, self.claim.owner.clone(), true, self.block);
            self.sent = true;
            *call = Some(self.core.backend.next_block(&self.plan.name, held.id, block_end, next));
        }
        let Some(under_way) = call else { return Ok(None) };
        let trip = self.core.observer.metrics.sent(Operation::Block, sent);
        let answer = {
            let limit = call_limit(&self.core, &self.plan, &self.started, self.reached, wait);
            self.core.within(|| Some(limit()), under_way).await
        };
        *call = None;
        if let Some(Ok(_)) = &answer {
            self.core.observer.metrics.answered(trip, &*self.core.clock);
        }
        match answer {
            Some(Ok(Answer { value: Block::Given(grant), counted_from })) if grant.token > block_end => {
                let extended = held.extended(grant, counted_from);
                // Heard too late, it is not reported.
                let now = self.core.clock.now();
                if !extended || now >= lease::lost_at(held.deadline()) {
                    self.make_anew();
                    return Ok(None);
                }
                self.core.registry.remove(&self.claim);
                self.stage = Stage::Over;
                self.core.take(&held);
                Ok(Some(Won { claim: held, grant, at: now, behind: None, continued: true }))
            }
            Some(Ok(Answer { value: Block::Moved(standing), counted_from })) => {
                self.core.registry.remove(&held);
                // It has ended as it should: a renewal under way that finds it gone is no news to anybody.
                held.lose(Loss::Gone);
                self.core.cohorts.begin(&self.core, &self.claim);
                self.claim.answered(&standing, counted_from);
                self.stage = Stage::Answered;
                self.core.registry.schedule(self.claim.id, next_ask(&self.claim, &standing, counted_from));
                Ok(None)
            }
            Some(Ok(_)) => {
                self.core.registry.remove(&held);
                held.lose(Loss::Gone);
                self.make_anew();
                Ok(None)
            }
            Some(Err(error)) => self.try_again(wait, error).await.map(|()| None),
            None => self.try_again(wait, self.core.no_answer()).await.map(|()| None),
        }
    }

    /// Decides whether a failed request is repeated, and pauses before it is.
    async fn try_again(&mut self, wait: Wait, error: Error) -> Result<()> {
        self.unknown |= error.certainty() == Certainty::Unknown;
        self.was_busy = false;
        let error = error.unknown_if(self.unknown);
        let error = error.at(Step::Acquire).about(&self.plan.name).in_store(self.core.backend.url());
        if !self.unknown && !self.reached {
            self.sent = false;
        }
        let now = self.core.clock.now();
        let limit = match wait {
            Wait::No => Some(now),
            Wait::Forever if !self.reached => Some(patience_over(&self.core, self.started())),
            Wait::Until(_) | Wait::Forever => wait.limit(),
        };
        let is_over = |now| limit.is_some_and(|limit| now >= limit);
        if is_over(now) || !error.is_retryable() {
            return Err(error);
        }
        self.tries += 1;
        let until = now + pause_before(self.tries);
        let until = limit.map_or(until, |limit| limit.min(until));
        // The store has nothing of it, so that no ttl ends its turn should nobody poll this.
        let missed = self.core.cohorts.miss(&self.core, &self.plan.name, self.claim.term, until + self.plan.ttl);
        self.core.alarm(until).await;
        if missed {
            self.core.cohorts.begin(&self.core, &self.claim);
        }
        // The error that was met says more than that there was no time for another.
        if is_over(self.core.clock.now()) { Err(error) } else { Ok(()) }
    }

    async fn pause(&mut self, pause: Duration, wait: Wait) -> Result<()> {
        let until = self.core.clock.now() + pause;
        let limit = wait.limit();
        let until = limit.map_or(until, |limit| limit.min(until));
        let claim = self.claim.clone();
        self.core.within(|| Some(until), pin!(claim.nudged())).await;
        if limit.is_some_and(|limit| self.core.clock.now() >= limit) {
            return Err(self.timed_out());
        }
        Ok(())
    }

    /// Whether the wait was over before the store had its time to answer: then what it said last counts.
    fn was_cut_short(&self, asked: Moment, wait: Wait) -> bool {
        let now = self.core.clock.now();
        wait.limit().is_some_and(|limit| now >= limit) && now.since(asked) < call_patience(&self.plan)
    }

    fn timed_out(&self) -> Error {
        let waited = self.core.clock.now().since(self.started());
        explain::timed_out(&self.core, &self.plan, waited, self.last_place.as_ref())
    }

    /// Whom it was waited for, as heard of last.
    fn behind(&self) -> Option<Arc<str>> {
        self.last_place.as_ref().map(|place| place.holder.clone())
    }

    fn started(&self) -> Moment {
        *self.started.get_or_init(|| self.core.clock.now())
    }

    /// How long whoever held the name may still trust its lease, if the store has lost both its claim and ours.
    fn presumed(&self) -> Duration {
        self.holder_until.map_or(Duration::ZERO, |until| until.since(self.core.clock.now()))
    }

    /// Gives the present claim up and makes a new one, at the tail.
    fn make_anew(&mut self) {
        if let Some(ttl) = self.claim.holder_ttl() {
            self.holder_until = self.holder_until.max(Some(self.core.clock.now() + ttl));
        }
        if self.plan.repeatable {
            if self.claim.loss() == Some(Loss::TakenOver) {
                // Not to be taken back: it is found so before it would be asked for.
                self.stage = Stage::Asking(None);
                return;
            }
            self.core.registry.remove(&self.claim);
        }
        // Seen, should it be lost: nobody need miss this leader.
        self.led().take();
        self.core.cohorts.begin(&self.core, &self.claim);
        let (fresh, displaced) = register(&self.core, &self.plan, self.claim.term);
        self.displaced = displaced.or(self.displaced.take());
        let old = std::mem::replace(&mut self.claim, fresh);
        let stage = std::mem::replace(&mut self.stage, Stage::Asking(None));
        let sent = std::mem::replace(&mut self.sent, false);
        self.waited = false;
        if self.plan.repeatable && old.id == self.claim.id {
            // The same id again: the new request itself is the retry.
            return;
        }
        clean_up(&self.core, &self.plan, &old, stage, sent);
    }

    /// Ends the claim, and waits a moment for the store to say so; not for one that just failed to answer. False if
    /// it did not: the claim may be granted yet, and lives for a ttl at most.
    pub(crate) async fn withdraw(mut self, after: Option<&Error>) -> bool {
        if after.is_some_and(|error| !matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Replicas)) {
            return true;
        }
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        let Some(ending) = ending(&self.core, &self.plan, &self.claim, stage, self.sent) else { return true };
        let ending = Detach::new(self.core.clone(), ending);
        self.core.within(|| Some(self.core.clock.now() + WITHDRAWAL_MAX), ending).await.is_some()
    }

    /// Another acquire of this client has its claim by now: it ends here, and ends nothing.
    fn displaced_by_later(&mut self) -> Error {
        self.stage = Stage::Over;
        explain::taken_over(&self.core, &self.plan)
    }
}

/// A new claim, known to the watchdog before the store hears of it: news of its grant may come first. Another claim
/// of this client with the same id is lost: nobody would renew it, and whoever has the new one may release it. It is
/// answered too.
fn register(core: &Arc<Core>, plan: &Arc<Plan>, term: u64) -> (Arc<LiveClaim>, Option<Arc<LiveClaim>>) {
    let (id, owner) = plan.new_id();
    let claim = Arc::new(LiveClaim::new(id, owner, plan.clone(), term));
    let displaced = core.registry.add(claim.clone());
    if let Some(displaced) = &displaced {
        core.lose(displaced, Loss::TakenOver);
    }
    (claim, displaced)
}

impl Drop for Pending {
    fn drop(&mut self) {
        let stage = std::mem::replace(&mut self.stage, Stage::Over);
        clean_up(&self.core, &self.plan, &self.claim, stage, self.sent);
    }
}
