//! The one background task of a client: it renews every live claim and keeps every deadline.
//!
//! Losses come first: whatever else is due, holders are told before their deadline. What a loss leaves to be done comes
//! after all of them are told.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::Notify;

use super::core::Core;
use super::live::LiveClaim;
use super::registry::{Key, Kind, Table};
use super::request::Request;
use crate::backend::{Answer, Backend, Call, Confirmed, RenewRequest, Renewed, Replicas};
use crate::clock::{Clock, Moment, NEVER};
use crate::error::{Loss, Result};
use crate::lease;
use crate::machine::Standing;
use crate::name::Name;
use crate::observe::{Operation, Renewal, Trip};

/// The most claims in one request.
const BATCH_MAX: usize = 256;
/// How many claims are asked for to learn whether a store answers again.
const PROBE_MAX: usize = 16;
/// The most due slots looked at before other tasks get their turn.
const ROUND_MAX: usize = 1024;
/// The most answers that are taken note of before losses are looked for again.
const ANSWERS_MAX: usize = 4;

/// How often metrics are told that were only counted.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// Runs until the client is gone.
pub(crate) async fn watch(core: Weak<Core>, bell: Arc<Notify>, clock: Arc<dyn Clock>) {
    let mut timer = clock.timer();
    let mut calls = FuturesUnordered::new();
    let mut told = VecDeque::new();
    let mut metrics_told = None;
    if let Some(client) = core.upgrade() {
        client.registry.table().jitter = rand::random();
    }
    loop {
        let Some(client) = core.upgrade() else { return };
        // An answer that is there already may save a lease.
        for _ in 0..ANSWERS_MAX {
            let Some(Some((claims, trip, answer))) = calls.next().now_or_never() else { break };
            take_answers(&client, claims, trip, answer);
        }
        if tell_losses(&client, clock.now(), &mut told) {
            drop(client);
            tokio::task::yield_now().await;
            continue;
        }
        for (claim, was_granted) in told.drain(..told.len().min(ROUND_MAX)) {
            client.follow_loss(&claim, &Loss::Expired, was_granted);
        }
        let round = collect(&client, clock.now());
        for batch in round.batches {
            let trip = client.observer.metrics.sent(Operation::Renew, clock.now());
            let mut call = Box::pin(renew(&client, batch.fresh, &batch.claims));
            // A store that answers at once spares the table the repetition.
            match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answer) => take_answers(&client, batch.claims, trip, answer),
                Poll::Pending => {
                    repeat_later(&client, &batch.claims);
                    calls.push(async move { (batch.claims, trip, call.await) });
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
            client.observer.metrics.of(name).held_too_long();
            tracing::warn!(%name, owner = %claim.owner, "held longer than warn_after");
        }
        let tell_at = tell_metrics(&client, clock.now(), &mut metrics_told);
        let next = client.registry.table().sleep().min(tell_at);
        drop(client);
        if next <= clock.now() || !told.is_empty() {
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
        if let (Some((claims, trip, answer)), Some(client)) = (finished, core.upgrade()) {
            take_answers(&client, claims, trip, answer);
        }
    }
}

/// Tells metrics at most once in [`TELL_EVERY`], at once if that is over. Answers when to come again.
fn tell_metrics(core: &Core, now: Moment, told: &mut Option<Moment>) -> Moment {
    let metrics = &core.observer.metrics;
    if !metrics.is_due() {
        return NEVER;
    }
    match told.map(|told| told + TELL_EVERY) {
        Some(at) if now < at => at,
        _ => {
            metrics.tell();
            *told = Some(now);
            NEVER
        }
    }
}

#[derive(Default)]
struct Round {
    batches: Vec<Batch>,
    asked: usize,
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
    fn ask(&mut self, table: &mut Table, fresh: bool, key: Key, claim: Arc<LiveClaim>) {
        if let Some(beat) = table.beat(key) {
            beat.unanswered = beat.unanswered.saturating_add(1);
        }
        table.set_due(key, NEVER);
        self.asked += 1;
        let replicated = claim.plan.replicas.is_some();
        let room = |batch: &&mut Batch| {
            batch.fresh == fresh && batch.replicated == replicated && batch.claims.len() < BATCH_MAX
        };
        match self.batches.iter_mut().rev().find(room) {
            Some(batch) => batch.claims.push((key, claim)),
            None => self.batches.push(Batch { claims: vec![(key, claim)], fresh, replicated }),
        }
    }
}

/// Tells holders that their leases have run out, and keeps in mind who was told, and whether it held. True if there may
/// be more of them.
fn tell_losses(core: &Core, now: Moment, told: &mut VecDeque<(Arc<LiveClaim>, bool)>) -> bool {
    let mut lost = Vec::new();
    let mut table = core.registry.table();
    // Fewer are left with each that is told, which must not put off the rest.
    table.telling = table.telling.max(table.claims());
    let mut looks = 0..ROUND_MAX;
    while looks.next().is_some()
        && let Some(key) = table.first_loss(now)
    {
        let Some(claim) = table.beat(key).map(|beat| beat.claim.clone()) else { break };
        let tell_at = if claim.is_granted() { table.tell_at(&claim) } else { NEVER };
        if now < tell_at {
            let look_at = lease::look_at(tell_at, claim.plan.ttl);
            table.set_loss(key, if now < look_at { look_at } else { tell_at });
            continue;
        }
        // One that nobody took by now was left alone, however late its grant was heard of.
        claim.leave_alone();
        table.remove_claim(claim.id);
        lost.push(claim);
    }
    if !looks.is_empty() {
        table.telling = 0;
    }
    drop(table);
    for claim in lost {
        if let Some(was_granted) = claim.lose(Loss::Expired) {
            told.push_back((claim, was_granted));
        }
    }
    looks.is_empty()
}

/// Takes what is due off the table.
fn collect(core: &Core, now: Moment) -> Round {
    let mut round = Round::default();
    let mut wakers = Vec::new();
    let mut silence: Option<Arc<str>> = None;
    let mut table = core.registry.table();
    for _ in 0..ROUND_MAX {
        let Some(key) = table.first_due(now) else { break };
        let Some(beat) = table.beat(key) else {
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
        let (claim, failures) = (beat.claim.clone(), beat.unanswered);
        let due = table.due(key);
        if claim.leave_alone() || (claim.is_granted() && now >= table.tell_at(&claim)) {
            table.set_due(key, NEVER);
            table.watch_loss(key);
            continue;
        }
        if failures > 0 && table.is_silent(due, claim.plan.ttl) {
            // The store failed all, and not this one.
            if let Some(beat) = table.beat(key) {
                beat.unanswered = 0;
            }
            table.outage.silent(now, silence.get_or_insert_with(|| super::core::no_answer().to_string().into()));
        }
        // While the store is out of reach a few are asked for all the same that it has not failed yet: it may be that
        // it has failed others only.
        if table.outage.on && (failures > 0 || round.asked == BATCH_MAX) {
            table.set_aside(key);
            continue;
        }
        round.ask(&mut table, failures > 0, key, claim);
    }
    for (key, claim) in table.probe(now, PROBE_MAX) {
        round.ask(&mut table, true, key, claim);
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
pub(crate) fn renew(
    core: &Core,
    fresh: bool,
    claims: &[(Key, Arc<LiveClaim>)],
) -> impl Future<Output = Result<Answer<Vec<Renewed>>>> + use<> {
    let ttl_max = claims.iter().map(|(_, claim)| claim.plan.ttl).max().unwrap_or_default();
    let call: Call<_> = core.backend.renew(claims.iter().map(|(_, claim)| claim.renewal()).collect(), fresh);
    let replicated: Vec<_> = claims
        .iter()
        .enumerate()
        .filter_map(|(index, (_, claim))| Some((index, claim.renewal(), claim.plan.replicas?)))
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
        table.set_due(*key, now + lease::repeat_after(claim.plan.ttl));
        table.watch_loss(*key);
    }
}

/// Takes note of what the store answered to renewals.
fn take_answers(core: &Arc<Core>, claims: Claims, trip: Option<Trip>, answer: Result<Answer<Vec<Renewed>>>) {
    let Answer { value, counted_from } = match answer {
        Ok(answer) if answer.value.len() == claims.len() => answer,
        Ok(answer) => {
            tracing::warn!(claims = claims.len(), answers = answer.value.len(), "a renewal was not answered in full");
            return fail(core, &claims, &"the store did not answer for each claim".into());
        }
        Err(error) => {
            tracing::debug!(%error, claims = claims.len(), "renewal failed");
            core.reached::<()>(core.clock.now(), Some(Err(&error)));
            return fail(core, &claims, &error.to_string().into());
        }
    };
    // One that fails each claim by itself (a shard that hangs, a replica that is away) says nothing of the others.
    let says_something = value.iter().any(|renewed| !matches!(renewed, Renewed::Unknown(_)));
    if says_something {
        core.reached(counted_from, Some(Ok(())));
    }
    let metrics = &core.observer.metrics;
    metrics.answered(trip, &*core.clock);
    let (mut ended, mut late, mut margins) = (Vec::new(), Late::default(), Vec::new());
    let mut counts = [0; 4];
    let mut table = core.registry.table();
    let now = core.clock.now();
    match value.first() {
        _ if says_something => drop(table.store_answered(now)),
        // A probe that found nothing out: the next one follows as after any other failure.
        Some(Renewed::Unknown(why)) if table.outage.on => table.outage.failed(now, why, rand::random()),
        _ => {}
    }
    for ((key, claim), renewed) in claims.into_iter().zip(value) {
        if table.beat(key).is_none() {
            // Released, or lost, while this was under way: that it is gone is no news.
            continue;
        }
        match renewed {
            Renewed::Stands(standing) => {
                let left = claim.deadline().since(now);
                if !claim.answered(&standing, counted_from) {
                    counts[Renewal::Gone as usize] += 1;
                    ended.push((claim, Loss::Gone));
                    continue;
                }
                counts[Renewal::Renewed as usize] += 1;
                if claim.is_granted() {
                    margins.push(left);
                    late.add(&claim, left);
                }
                if let Some(beat) = table.beat(key) {
                    beat.unanswered = 0;
                    table.set_due(key, next_ask(&claim, &standing, counted_from));
                    table.watch_loss(key);
                }
            }
            Renewed::Unknown(why) => {
                counts[Renewal::Failed as usize] += 1;
                claim.renewal_failed(&why);
                table.retry(key, now);
            }
            Renewed::Gone => {
                counts[Renewal::Gone as usize] += 1;
                ended.push((claim, Loss::Gone));
            }
            Renewed::Broken { by, reason } => {
                counts[Renewal::Broken as usize] += 1;
                ended.push((claim, Loss::Broken { by: by.to_string(), reason: reason.to_string() }));
            }
        }
    }
    drop(table);
    for (outcome, count) in Renewal::ALL.into_iter().zip(counts) {
        metrics.renewed(outcome, count);
    }
    margins.into_iter().for_each(|left| metrics.margin(left));
    late.warn();
    for (claim, loss) in ended {
        core.lose(&claim, loss);
    }
}

/// Renewals of a batch that were answered when little of the lease was left.
#[derive(Default)]
struct Late {
    count: usize,
    /// The one with the least, and how much that was.
    worst: Option<(Name, Duration)>,
}

impl Late {
    fn add(&mut self, claim: &LiveClaim, left: Duration) {
        if left >= claim.plan.ttl / 6 {
            return;
        }
        self.count += 1;
        if self.worst.as_ref().is_none_or(|(_, least)| left < *least) {
            self.worst = Some((claim.plan.name.clone(), left));
        }
    }

    /// One line for all: where one is late, a thousand are.
    fn warn(self) {
        if let Some((name, left)) = self.worst {
            tracing::warn!(%name, ?left, leases = self.count, "renewed late: less than a sixth of the ttl was left");
        }
    }
}

/// A request for these claims failed as a whole: the store is out of reach.
fn fail(core: &Core, claims: &[(Key, Arc<LiveClaim>)], failure: &Arc<str>) {
    core.observer.metrics.renewed(Renewal::Failed, claims.len());
    let mut table = core.registry.table();
    table.outage.failed(core.clock.now(), failure, rand::random());
    for (key, claim) in claims {
        claim.renewal_failed(failure);
        table.set_aside(*key);
    }
}

/// When a claim that was just answered for is asked for again.
pub(crate) fn next_ask(claim: &LiveClaim, standing: &Standing, counted_from: Moment) -> Moment {
    // Where a claim lives by its holding's lease, that may be shorter than what it asked for.
    let ttl = claim.plan.ttl.min(standing.ttl);
    match &standing.state {
        Ok(_) if !claim.plan.renewed => NEVER,
        Ok(_) => {
            let exact = lease::renew_at(counted_from, ttl).as_micros();
            Moment(exact - exact % lease::grid(ttl))
        }
        Err(place) => lease::ask_at(counted_from, ttl, place.holder_expires_in, place.waiters_ahead),
    }
}
