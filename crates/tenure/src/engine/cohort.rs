//! Tasks of one process that want the same name queue up here; one store claim stands for them.
//!
//! While the lease is out, a released guard is handed to the next local task without the network, with
//! the next token of a reserved block. After [`HANDOVERS_MAX`] hand-overs or [`TURN_MAX`] since the grant,
//! and while no guard is out, the cohort asks the store for the next block, which is the release if
//! others wait there. So tasks of other processes are passed by at most that much per turn.
//!
//! A cohort exists from the moment its first task (the leader) asks the store until a guard is released
//! with nobody waiting. Its leader drives the store claim; if it gives up, the next task leads on.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::oneshot;

use super::core::{Core, no_answer};
use super::explain;
use super::guard::Guard;
use super::live::{LiveClaim, Won};
use super::lock::Acquired;
use super::pending::Pending;
use super::plan::Plan;
use super::registry::{Key, Kind};
use super::wait::Wait;
use crate::clock::Moment;
use crate::error::{Error, Result, Step};
use crate::lease;
use crate::machine::Place;
use crate::name::Name;
use crate::observe::{HandOver, Wish};
use crate::token::Token;

/// The most hand-overs in one turn, and the size of a block of tokens.
pub(crate) const HANDOVERS_MAX: u32 = 32;
/// The longest turn.
const TURN_MAX: Duration = Duration::from_millis(10);
const SHARDS: usize = 16;

/// The cohorts of one client.
#[derive(Default)]
pub(crate) struct Cohorts {
    shards: [Mutex<HashMap<Name, Cohort, RandomState>>; SHARDS],
    hasher: RandomState,
    /// Terms given so far: no two leaders of this client have the same, whatever cohort they led.
    terms: AtomicU64,
}

type Shard<'a> = MutexGuard<'a, HashMap<Name, Cohort, RandomState>>;

struct Cohort {
    plan: Arc<Plan>,
    /// The claim whose guard is out; none while a leader drives one.
    holder: Option<Arc<LiveClaim>>,
    /// Which leader it has: one that was deposed is nobody here.
    term: u64,
    /// Until when a task that was called to lead has to begin, or one that leads has to do something that shows.
    summons: Option<Key>,
    token: Token,
    block_end: Token,
    granted_at: Moment,
    handovers: u32,
    waiters: BTreeMap<u64, oneshot::Sender<Turn>>,
    tickets: u64,
}

/// What a waiting task is handed.
enum Turn {
    /// The lease, handed over then.
    Hold(Guard, Moment),
    /// The claim, to drive on.
    Lead(Box<Leader>),
}

/// What became of a guard that was released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandedOver {
    /// The lease lives on in this cohort.
    Yes,
    /// Nobody here waits for it.
    No,
    /// It had run out, or was lost before: the others go on without it.
    Lost,
}

/// The right, and the duty, to drive the cohort's claim. Dropped, it passes to the next task.
pub(crate) struct Leader {
    core: Arc<Core>,
    name: Name,
    pending: Option<Pending>,
    term: u64,
}

enum Joined {
    Leads(Leader),
    Waits(Ticket),
    /// Other options, or no wait: not in this cohort. If one of its tasks holds, with its label.
    Apart {
        holder: Option<Arc<str>>,
    },
}

/// A place in the local queue. Dropped, the place is given up.
struct Ticket {
    core: Arc<Core>,
    name: Name,
    number: u64,
    turn: oneshot::Receiver<Turn>,
    /// Called up: the place is gone already.
    called: bool,
    /// Since when it waits, if that may matter: behind a leader whom the store may not answer.
    since: Option<Moment>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.called {
            return;
        }
        let mut shard = self.core.cohorts.shard(&self.name);
        let sender = shard.get_mut(&self.name).and_then(|cohort| cohort.waiters.remove(&self.number));
        drop(shard);
        drop(sender);
    }
}

/// Acquires through the cohort of the name. `None` if it is busy and the caller does not wait.
pub(crate) async fn acquire(
    core: &Arc<Core>,
    plan: &Arc<Plan>,
    wait: Wait,
    wish: &Wish<'_>,
) -> Result<Option<Acquired>> {
    let mut waited = false;
    loop {
        let leader = match core.cohorts.join(core, plan, wait) {
            Joined::Leads(leader) => leader,
            Joined::Apart { holder: Some(holder) } if matches!(wait, Wait::No) => {
                wish.is_behind(&holder);
                return Ok(None);
            }
            Joined::Apart { .. } => return super::lock::acquire_apart(core, plan, wait, wish).await,
            Joined::Waits(mut ticket) => {
                waited = true;
                wish.is_behind_own();
                let limit = if let Wait::Until(limit) = wait { Some(limit) } else { None };
                // Only a wait that can run out is measured: a hand-over should cost no look at the clock.
                let started = ticket.since.or_else(|| limit.map(|_| core.clock.now()));
                let turn = core.within(|| limit, &mut ticket.turn).await;
                ticket.called = turn.is_some();
                drop(ticket);
                match turn {
                    None => {
                        core.refuse_if_over()?;
                        return Err(timed_out(core, plan, started));
                    }
                    Some(Ok(Turn::Lead(mut leader))) => {
                        if let Some(pending) = &mut leader.pending {
                            pending.taken_over(started);
                        }
                        *leader
                    }
                    // A guard that reached us too late is dropped here, which passes it on.
                    Some(Ok(Turn::Hold(guard, at))) => {
                        if guard.is_held() {
                            guard.take();
                            core.observer.metrics.handed_over(HandOver::Local);
                            return Ok(Some(Acquired { guard, at, behind: Some(plan.label.clone()) }));
                        }
                        continue;
                    }
                    // The cohort ended without us: join the next one.
                    Some(Err(_)) => continue,
                }
            }
        };
        return leader.lead(plan, wait, waited, wish).await;
    }
}

fn timed_out(core: &Core, plan: &Plan, started: Option<Moment>) -> Error {
    let now = core.clock.now();
    let place = core.cohorts.place(core, &plan.name);
    if place.is_none() && !core.reachable.load(Ordering::Acquire) {
        // Behind a leader whom the store does not answer.
        return no_answer().at(Step::Acquire).about(&plan.name).in_store(core.backend.url());
    }
    explain::timed_out(core, plan, now.since(started.unwrap_or(now)), place.as_ref())
}

impl Leader {
    /// Drives the claim. `waited`: whether the task waited for another of this process before.
    async fn lead(mut self, plan: &Plan, wait: Wait, waited: bool, wish: &Wish<'_>) -> Result<Option<Acquired>> {
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let outcome = pending.drive(wait, wish).await;
        match outcome {
            Ok(Some(won)) => {
                self.pending = None;
                let guard = self.core.cohorts.hold(&self.core, &won, self.term);
                let Won { at, behind, continued, .. } = won;
                if continued || behind.is_some() {
                    let by = if continued { HandOver::Local } else { HandOver::Store };
                    self.core.observer.metrics.handed_over(by);
                }
                let behind = behind.or_else(|| waited.then(|| plan.label.clone()));
                Ok(Some(Acquired { guard, at, behind }))
            }
            other => {
                let withdrawn = self.resign(other.as_ref().err()).await;
                other.map(|_| None).map_err(|error| error.unknown_if(!withdrawn))
            }
        }
    }

    /// Passes the claim on, or ends it if nobody wants it. False if the store did not say that it has ended.
    async fn resign(mut self, after: Option<&Error>) -> bool {
        if let Some(pending) = self.pending.take()
            && let Some(unwanted) = self.core.cohorts.pass_on(&self.core, &self.name, pending, self.term)
        {
            return unwanted.withdraw(after).await;
        }
        true
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            drop(self.core.cohorts.pass_on(&self.core, &self.name, pending, self.term));
        }
    }
}

impl Cohorts {
    fn next_term(&self) -> u64 {
        // Zero is nobody's.
        self.terms.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn shard(&self, name: &Name) -> Shard<'_> {
        let index = usize::try_from(self.hasher.hash_one(name) >> 32).unwrap_or(0) % SHARDS;
        super::unpoisoned(self.shards[index].lock())
    }

    /// Who stands before a task that gives up now: the local tasks and, if one has it, the local holder.
    fn place(&self, core: &Core, name: &Name) -> Option<Place> {
        let shard = self.shard(name);
        let cohort = shard.get(name)?;
        let holder = cohort.holder.as_ref()?;
        let waiters_ahead = cohort.waiters.len();
        let holder_expires_in = holder.deadline().since(core.clock.now());
        Some(Place {
            ahead: waiters_ahead + 1,
            waiters_ahead,
            holder: cohort.plan.label.clone(),
            holder_expires_in,
            holder_ttl: cohort.plan.ttl,
        })
    }

    fn join(&self, core: &Arc<Core>, plan: &Arc<Plan>, wait: Wait) -> Joined {
        let mut shard = self.shard(&plan.name);
        if core.is_over() {
            // Nobody would call it up.
            return Joined::Apart { holder: None };
        }
        let Some(cohort) = shard.get_mut(&plan.name) else {
            let term = self.next_term();
            shard.insert(plan.name.clone(), Cohort::new(plan.clone(), term));
            drop(shard);
            let pending = Pending::new(core, plan.clone(), 1, term);
            return Joined::Leads(Leader { core: core.clone(), name: plan.name.clone(), pending: Some(pending), term });
        };
        if matches!(wait, Wait::No) || !cohort.plan.same_cohort(plan) {
            let holder = cohort.holder.as_ref().map(|_| cohort.plan.label.clone());
            return Joined::Apart { holder };
        }
        cohort.tickets += 1;
        let number = cohort.tickets;
        let (sender, turn) = oneshot::channel();
        cohort.waiters.insert(number, sender);
        let since = cohort.holder.is_none().then(|| core.clock.now());
        drop(shard);
        Joined::Waits(Ticket { core: core.clone(), name: plan.name.clone(), number, turn, called: false, since })
    }

    /// The leader's claim was granted: its guard is out.
    fn hold(&self, core: &Arc<Core>, won: &Won, term: u64) -> Guard {
        let Won { claim, grant, at, .. } = won;
        let mut shard = self.shard(&claim.plan.name);
        let cohort = shard.get_mut(&claim.plan.name).filter(|cohort| cohort.term == term && cohort.holder.is_none());
        // A leader that was deposed has won for itself alone.
        let guard = Guard::new(core.clone(), claim.clone(), grant.token, cohort.is_some());
        if let Some(cohort) = cohort {
            cohort.holder = Some(claim.clone());
            cohort.token = grant.token;
            cohort.block_end = grant.block_end;
            cohort.granted_at = *at;
            cohort.handovers = 0;
        }
        drop(shard);
        if claim.loss().is_some() {
            // Lost in this very moment: the guard says so, and the others go on.
            self.lost(core, claim);
        }
        guard
    }

    /// The leader gave up. Answers the claim if no other task wants it: the cohort is then over.
    fn pass_on(&self, core: &Arc<Core>, name: &Name, pending: Pending, term: u64) -> Option<Pending> {
        let mut leader = Box::new(Leader { core: core.clone(), name: name.clone(), pending: Some(pending), term });
        let mut shard = self.shard(name);
        if shard.get(name).is_none_or(|cohort| cohort.term != term) {
            return leader.pending.take();
        }
        // One that the store has answered is missed by its ttl; one that it has not, by this.
        let unheard = leader.pending.as_ref().filter(|pending| !pending.is_answered()).map(Pending::ttl);
        while let Some((_, sender)) = shard.get_mut(name).and_then(|cohort| cohort.waiters.pop_first()) {
            match sender.send(Turn::Lead(leader)) {
                Ok(()) => {
                    if let (Some(ttl), Some(cohort)) = (unheard, shard.get_mut(name)) {
                        cohort.summon(core, core.clock.now() + ttl);
                    }
                    return None;
                }
                Err(Turn::Lead(back)) => leader = back,
                Err(Turn::Hold(..)) => return None,
            }
        }
        shard.remove(name);
        drop(shard);
        leader.pending.take()
    }

    /// A guard of this claim was released. `in_block`: whether the next task may have a token of the same block.
    pub(crate) fn hand_over(&self, core: &Arc<Core>, claim: &Arc<LiveClaim>, in_block: bool) -> HandedOver {
        let mut shard = self.shard(&claim.plan.name);
        let Some(cohort) = shard.get_mut(&claim.plan.name).filter(|cohort| cohort.is_held_by(claim)) else {
            // Lost before: the others have gone on without it.
            return HandedOver::Lost;
        };
        if cohort.waiters.is_empty() {
            shard.remove(&claim.plan.name);
            return HandedOver::No;
        }
        let now = core.clock.now();
        if now >= lease::lost_at(claim.deadline()) {
            return HandedOver::Lost;
        }
        let in_turn = in_block && cohort.handovers < HANDOVERS_MAX && now.since(cohort.granted_at) < TURN_MAX;
        let mut turn = if in_turn && cohort.token < cohort.block_end {
            cohort.token = Token(cohort.token.0 + 1);
            cohort.handovers += 1;
            claim.offer();
            Turn::Hold(Guard::new(core.clone(), claim.clone(), cohort.token, true), now)
        } else {
            cohort.holder = None;
            let block = if cohort.waiters.len() > 1 { HANDOVERS_MAX } else { 1 };
            // Nobody has it in hand until the next task asks on: unpolled, it must not be kept alive.
            claim.offer();
            let pending = Pending::next_block(core, cohort.plan.clone(), claim.clone(), cohort.block_end, block);
            let (name, term) = (claim.plan.name.clone(), cohort.term);
            Turn::Lead(Box::new(Leader { core: core.clone(), name, pending: Some(pending), term }))
        };
        while let Some((_, sender)) = cohort.waiters.pop_first() {
            match sender.send(turn) {
                Ok(()) => return HandedOver::Yes,
                Err(back) => turn = back,
            }
        }
        shard.remove(&claim.plan.name);
        drop(shard);
        turn.defuse();
        HandedOver::No
    }

    /// This claim was lost, or its lease left to itself: the others start anew, at once if nobody can be expected to
    /// go on with it.
    pub(crate) fn lost(&self, core: &Arc<Core>, claim: &Arc<LiveClaim>) {
        if claim.term == 0 {
            return;
        }
        let mut shard = self.shard(&claim.plan.name);
        let Some(cohort) = shard.get_mut(&claim.plan.name).filter(|cohort| cohort.term == claim.term) else { return };
        if cohort.is_held_by(claim) {
            cohort.holder = None;
        } else if cohort.holder.is_some() || claim.is_taken() {
            return;
        } else if !claim.was_left_alone() {
            // Its leader is about to look. If nobody polls that, there is no claim whose ttl would end its turn.
            return cohort.summon(core, core.clock.now() + claim.plan.ttl);
        }
        // Either the guard that was out is lost, or a leader was granted it and never looked.
        drop(self.start_anew(core, shard, &claim.plan.name));
    }

    /// A task was called to lead and has not begun for a whole ttl: nobody polls it.
    pub(crate) fn depose(&self, core: &Arc<Core>, name: &Name, term: u64) {
        let mut shard = self.shard(name);
        let stuck = |cohort: &&mut Cohort| cohort.term == term && cohort.summons.is_some() && cohort.holder.is_none();
        if shard.get_mut(name).filter(stuck).is_some() {
            drop(self.start_anew(core, shard, name));
        }
    }

    /// Gives the cohort another leader, with a claim of its own. The one it had, should it wake up, goes on alone.
    fn start_anew(&self, core: &Arc<Core>, mut shard: Shard<'_>, name: &Name) -> Option<Pending> {
        let cohort = shard.get_mut(name)?;
        let term = self.next_term();
        cohort.term = term;
        cohort.stop_summons(core);
        if cohort.waiters.is_empty() {
            shard.remove(name);
            return None;
        }
        let block = if cohort.waiters.len() > 1 { HANDOVERS_MAX } else { 1 };
        let plan = cohort.plan.clone();
        drop(shard);
        self.pass_on(core, name, Pending::new(core, plan, block, term), term)
    }

    /// The leader of this term does nothing that shows: if it has not gone on by then, it is deposed.
    pub(crate) fn miss(&self, core: &Arc<Core>, name: &Name, term: u64, at: Moment) -> bool {
        if term == 0 {
            return false;
        }
        let mut shard = self.shard(name);
        let cohort = shard.get_mut(name).filter(|cohort| cohort.term == term && cohort.holder.is_none());
        cohort.map(|cohort| cohort.summon(core, at)).is_some()
    }

    /// The task that leads with this claim has begun, or goes on.
    pub(crate) fn begin(&self, core: &Core, claim: &LiveClaim) {
        if claim.term == 0 {
            return;
        }
        let name = &claim.plan.name;
        if let Some(cohort) = self.shard(name).get_mut(name).filter(|cohort| cohort.term == claim.term) {
            cohort.stop_summons(core);
        }
    }

    /// Nobody is called up any more: those who wait find that the client is over.
    pub(crate) fn end(&self) {
        for shard in &self.shards {
            super::unpoisoned(shard.lock()).clear();
        }
    }
}

impl Turn {
    /// Makes dropping it harmless: what it stands for is ended by the caller.
    fn defuse(self) {
        match self {
            Self::Hold(guard, _) => guard.defuse(),
            Self::Lead(mut leader) => drop(leader.pending.take().map(Pending::forget)),
        }
    }
}

impl Cohort {
    fn is_held_by(&self, claim: &Arc<LiveClaim>) -> bool {
        self.holder.as_ref().is_some_and(|holder| Arc::ptr_eq(holder, claim))
    }

    /// If its leader has not gone on by then, it is deposed.
    fn summon(&mut self, core: &Core, at: Moment) {
        self.stop_summons(core);
        self.summons = Some(core.registry.add_timer(Kind::Summons(self.plan.name.clone(), self.term), at));
    }

    fn stop_summons(&mut self, core: &Core) {
        if let Some(timer) = self.summons.take() {
            core.registry.remove_timer(timer);
        }
    }

    fn new(plan: Arc<Plan>, term: u64) -> Self {
        Self {
            plan,
            holder: None,
            term,
            summons: None,
            token: Token(0),
            block_end: Token(0),
            granted_at: Moment(0),
            handovers: 0,
            waiters: BTreeMap::new(),
            tickets: 0,
        }
    }
}
