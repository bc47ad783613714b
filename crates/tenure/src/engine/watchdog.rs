//! The one background task of a client: it renews every live claim and keeps every deadline.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Notify;

use super::core::Core;
use super::lease;
use super::live::LiveClaim;
use super::registry::{Key, Kind, Slot};
use super::request::Request;
use crate::backend::{Answer, Backend, Call, Confirmed, RenewRequest, Renewed, Replicas};
use crate::clock::{Clock, Moment, NEVER};
use crate::error::{Loss, Result};
use crate::machine::Standing;
use crate::name::Name;

/// The most claims in one request.
const BATCH_MAX: usize = 256;
/// The most due slots looked at before other tasks get their turn.
const ROUND_MAX: usize = 1024;
/// Renewals are rounded down to this part of the ttl, so that many become due together.
const GRID: u64 = 64;
const RETRY_MIN: Duration = Duration::from_millis(20);

/// Runs until the client is gone.
pub(crate) async fn watch(core: Weak<Core>, bell: Arc<Notify>, clock: Arc<dyn Clock>) {
    let mut timer = clock.timer();
    let mut calls = FuturesUnordered::new();
    loop {
        let Some(client) = core.upgrade() else { return };
        let round = collect(&client, clock.now());
        for batch in round.batches {
            let mut call = Box::pin(renew(&client, batch.fresh, &batch.claims));
            // A store that answers at once spares the table the repetition.
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => take_answers(&client, batch.claims, answer),
                Poll::Pending => {
                    repeat_later(&client, &batch.claims);
                    calls.push(async move { (batch.claims, call.await) });
                }
            }
        }
        for (claim, loss) in round.lost {
            client.lose(&claim, loss);
        }
        for (name, term) in round.summons {
            client.cohorts.depose(&client, &name, term);
        }
        for (request, asker) in round.unanswered {
            client.attend(request, asker.clone());
            asker.wake();
        }
        for claim in round.warn {
            let name = &claim.plan.name;
            tracing::warn!(%name, owner = %claim.owner, "held longer than warn_after");
        }
        let next = client.registry.table().sleep();
        drop(client);
        if next <= clock.now() {
            tokio::task::yield_now().await;
            continue;
        }
        let mut rung = pin!(bell.notified());
        let finished = poll_fn(|cx| {
            if let Poll::Ready(Some(finished)) = calls.poll_next_unpin(cx) {
                return Poll::Ready(Some(finished));
            }
            if rung.as_mut().poll(cx).is_ready() || timer.poll_until(next, cx).is_ready() {
                return Poll::Ready(None);
            }
            Poll::Pending
        })
        .await;
        if let (Some((claims, answer)), Some(client)) = (finished, core.upgrade()) {
            take_answers(&client, claims, answer);
        }
    }
}

#[derive(Default)]
struct Round {
    batches: Vec<Batch>,
    lost: Vec<(Arc<LiveClaim>, Loss)>,
    warn: Vec<Arc<LiveClaim>>,
    summons: Vec<(Name, u64)>,
    unanswered: Vec<(Arc<Request>, Waker)>,
}

struct Batch {
    claims: Claims,
    fresh: bool,
    /// Whether replicas are waited for: that must not hold up those who do not.
    replicated: bool,
}

impl Round {
    /// Adds a claim to a batch that has room. Requests that went unanswered are repeated apart from the
    /// others, on a fresh connection.
    fn ask(&mut self, fresh: bool, claim: (Key, Arc<LiveClaim>)) {
        let replicated = claim.1.plan.replicas.is_some();
        let room = |batch: &&mut Batch| {
            batch.fresh == fresh && batch.replicated == replicated && batch.claims.len() < BATCH_MAX
        };
        match self.batches.iter_mut().rev().find(room) {
            Some(batch) => batch.claims.push(claim),
            None => self.batches.push(Batch { claims: vec![claim], fresh, replicated }),
        }
    }
}

/// Takes what is due off the table.
fn collect(core: &Core, now: Moment) -> Round {
    let mut round = Round::default();
    let mut wakers = Vec::new();
    let mut table = core.registry.table();
    for _ in 0..ROUND_MAX {
        let Some(key) = table.first_due(now) else { break };
        let Some(Slot { kind: Kind::Claim(beat), .. }) = table.slot(key) else {
            match table.remove(key) {
                Some(Kind::Alarm(waker)) => wakers.push(waker),
                Some(Kind::Unanswered(request, asker)) => round.unanswered.push((request, asker)),
                Some(Kind::MaxHold(claim, turn)) if claim.turn() == turn => round.lost.push((claim, Loss::MaxHold)),
                Some(Kind::Warn(claim, turn)) if claim.turn() == turn => round.warn.push(claim),
                Some(Kind::Summons(name, term)) => round.summons.push((name, term)),
                _ => {}
            }
            continue;
        };
        if beat.claim.is_granted() && now >= lease::lost_at(beat.claim.deadline()) {
            let claim = beat.claim.clone();
            // One that nobody took by now was left alone, however late its grant was heard of.
            claim.leave_alone();
            table.remove_claim(claim.id);
            round.lost.push((claim, Loss::Expired));
            continue;
        }
        if beat.claim.leave_alone() {
            beat.ask_at = NEVER;
            table.reschedule(key);
            continue;
        }
        let fresh = beat.unanswered > 0;
        beat.unanswered = beat.unanswered.saturating_add(1);
        beat.ask_at = NEVER;
        round.ask(fresh, (key, beat.claim.clone()));
        table.set_due(key, NEVER);
    }
    drop(table);
    for waker in wakers {
        waker.wake();
    }
    round
}

type Claims = Vec<(Key, Arc<LiveClaim>)>;

/// Sends one batch. It is given up after the longest ttl in it: by then every claim in it has been
/// asked for again, or is lost.
fn renew(
    core: &Core,
    fresh: bool,
    claims: &[(Key, Arc<LiveClaim>)],
) -> impl Future<Output = Result<Answer<Vec<Renewed>>>> + use<> {
    let ttl_max = claims.iter().map(|(_, claim)| claim.plan.ttl).max().unwrap_or_default();
    let request = |claim: &LiveClaim| RenewRequest { name: claim.plan.name.clone(), id: claim.id, ttl: claim.plan.ttl };
    let call: Call<_> = core.backend.renew(claims.iter().map(|(_, claim)| request(claim)).collect(), fresh);
    let replicated: Vec<_> = claims
        .iter()
        .enumerate()
        .filter_map(|(index, (_, claim))| Some((index, request(claim), claim.plan.replicas?)))
        .collect();
    let backend = core.backend.clone();
    async move {
        let answered = async {
            let mut answer = call.await?;
            if !replicated.is_empty() {
                confirm(&*backend, replicated, &mut answer.value).await;
            }
            Ok(answer)
        };
        match tokio::time::timeout(ttl_max, answered).await {
            Ok(answer) => answer,
            Err(elapsed) => Err(super::core::no_answer().because(elapsed)),
        }
    }
}

/// A renewal that too few replicas have does not count.
async fn confirm(backend: &dyn Backend, replicated: Vec<(usize, RenewRequest, Replicas)>, answers: &mut [Renewed]) {
    let questions = replicated.into_iter().filter_map(|(index, claim, replicas)| {
        let held = matches!(answers.get(index), Some(Renewed::Stands(Standing { state: Ok(_), .. })));
        held.then(|| {
            let call = backend.confirm(claim, replicas);
            async move { (index, call.await) }
        })
    });
    let questions: Vec<_> = questions.collect();
    for (index, confirmed) in futures_util::future::join_all(questions).await {
        let failure = match confirmed {
            Ok(confirmed) if confirmed.is_enough() => continue,
            Ok(Confirmed { acknowledged, needed }) => {
                format!("only {acknowledged} of {needed} replicas have the renewal")
            }
            Err(error) => error.to_string(),
        };
        if let Some(answer) = answers.get_mut(index) {
            *answer = Renewed::Unknown(failure.into());
        }
    }
}

/// Asks again, on a fresh connection, should no answer come.
fn repeat_later(core: &Core, claims: &[(Key, Arc<LiveClaim>)]) {
    let now = core.clock.now();
    let mut table = core.registry.table();
    for (key, claim) in claims {
        if let Some(Slot { kind: Kind::Claim(beat), .. }) = table.slot(*key) {
            beat.ask_at = now + lease::repeat_after(claim.plan.ttl);
            table.reschedule(*key);
        }
    }
}

fn take_answers(core: &Arc<Core>, claims: Claims, answer: Result<Answer<Vec<Renewed>>>) {
    core.reached(Some(answer.as_ref()));
    let Answer { value, counted_from } = match answer {
        Ok(answer) if answer.value.len() == claims.len() => answer,
        Ok(answer) => {
            tracing::warn!(claims = claims.len(), answers = answer.value.len(), "a renewal was not answered in full");
            return retry(core, &claims);
        }
        Err(error) => {
            tracing::debug!(%error, claims = claims.len(), "renewal failed");
            let failure: Arc<str> = error.to_string().into();
            claims.iter().for_each(|(_, claim)| claim.renewal_failed(&failure));
            return retry(core, &claims);
        }
    };
    let mut ended = Vec::new();
    let mut unanswered = Vec::new();
    let mut table = core.registry.table();
    for ((key, claim), renewed) in claims.into_iter().zip(value) {
        match renewed {
            Renewed::Stands(standing) => {
                if !claim.answered(&standing, counted_from) {
                    ended.push((claim, Loss::Gone));
                    continue;
                }
                if let Some(Slot { kind: Kind::Claim(beat), .. }) = table.slot(key) {
                    beat.unanswered = 0;
                    beat.ask_at = next_ask(&claim, &standing, counted_from);
                    table.reschedule(key);
                }
            }
            Renewed::Unknown(why) => {
                claim.renewal_failed(&why);
                unanswered.push((key, claim));
            }
            Renewed::Gone => ended.push((claim, Loss::Gone)),
            Renewed::Broken { by, reason } => {
                ended.push((claim, Loss::Broken { by: by.to_string(), reason: reason.to_string() }));
            }
        }
    }
    drop(table);
    if !unanswered.is_empty() {
        retry(core, &unanswered);
    }
    for (claim, loss) in ended {
        core.lose(&claim, loss);
    }
}

/// When a claim that was just answered for is asked for again.
pub(crate) fn next_ask(claim: &LiveClaim, standing: &Standing, counted_from: Moment) -> Moment {
    // Where a claim lives by its holding's lease, that may be shorter than what it asked for.
    let ttl = claim.plan.ttl.min(standing.ttl);
    match &standing.state {
        Ok(_) if !claim.plan.renewed => NEVER,
        Ok(_) => {
            let grid = (super::micros(ttl) / GRID).max(1);
            let exact = lease::renew_at(counted_from, ttl).as_micros();
            Moment(exact - exact % grid)
        }
        Err(place) => lease::ask_at(counted_from, ttl, place.holder_expires_in, place.waiters_ahead),
    }
}

/// Asks again soon, a little apart from others that failed with us.
fn retry(core: &Core, claims: &[(Key, Arc<LiveClaim>)]) {
    let now = core.clock.now();
    let mut table = core.registry.table();
    for (key, claim) in claims {
        let Some(Slot { kind: Kind::Claim(beat), .. }) = table.slot(*key) else { continue };
        let limit = lease::repeat_after(claim.plan.ttl);
        let pause = RETRY_MIN.saturating_mul(1 << beat.unanswered.min(6)).min(limit);
        beat.ask_at = beat.ask_at.min(now + pause.mul_f64(0.5 + rand::random::<f64>() / 2.0));
        table.reschedule(*key);
    }
}
