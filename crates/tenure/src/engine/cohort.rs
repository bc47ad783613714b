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
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::fast::RandomState;
use tokio::sync::oneshot;

use super::core::Core;
use super::explain;
use super::guard::Guard;
use super::lease;
use super::live::LiveClaim;
use super::pending::{Pending, Wait, Won};
use super::plan::Plan;
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::machine::Place;
use crate::name::Name;
use crate::owner::ClaimId;
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
}

struct Cohort {
    plan: Arc<Plan>,
    /// The claim whose guard is out; none while a leader drives one.
    holder: Option<ClaimId>,
    token: Token,
    block_end: Token,
    granted_at: Moment,
    handovers: u32,
    waiters: BTreeMap<u64, oneshot::Sender<Turn>>,
    tickets: u64,
}

/// What a waiting task is handed.
enum Turn {
    /// The lease.
    Hold(Guard),
    /// The claim, to drive on.
    Lead(Box<Leader>),
}

/// The right, and the duty, to drive the cohort's claim. Dropped, it passes to the next task.
pub(crate) struct Leader {
    core: Arc<Core>,
    name: Name,
    pending: Option<Pending>,
}

enum Joined {
    Leads(Leader),
    Waits(Ticket),
    /// Other options, or no wait: not in this cohort.
    Apart {
        holds: bool,
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
pub(crate) async fn acquire(core: &Arc<Core>, plan: &Arc<Plan>, wait: Wait) -> Result<Option<Guard>> {
    loop {
        let leader = match core.cohorts.join(core, plan, wait) {
            Joined::Leads(leader) => leader,
            Joined::Apart { holds: true } if matches!(wait, Wait::No) => return Ok(None),
            Joined::Apart { .. } => return super::lock::acquire_apart(core, plan, wait).await,
            Joined::Waits(mut ticket) => {
                let limit = if let Wait::Until(limit) = wait { Some(limit) } else { None };
                // Only a wait that can run out is measured: a hand-over should cost no look at the clock.
                let started = limit.map(|_| core.clock.now());
                let turn = core.within(|| limit, &mut ticket.turn).await;
                ticket.called = turn.is_some();
                drop(ticket);
                match turn {
                    None => return Err(timed_out(core, plan, started)),
                    Some(Ok(Turn::Lead(mut leader))) => {
                        if let Some(pending) = &mut leader.pending {
                            pending.taken_over();
                        }
                        *leader
                    }
                    // A guard that reached us too late is dropped here, which passes it on.
                    Some(Ok(Turn::Hold(mut guard))) => {
                        if guard.is_held() {
                            guard.take();
                            guard.begin(plan);
                            return Ok(Some(guard));
                        }
                        continue;
                    }
                    // The cohort ended without us: join the next one.
                    Some(Err(_)) => continue,
                }
            }
        };
        return leader.lead(plan, wait).await;
    }
}

fn timed_out(core: &Core, plan: &Plan, started: Option<Moment>) -> Error {
    let now = core.clock.now();
    let ahead = core.cohorts.ahead(&plan.name);
    // Held by a task of this very process, as far as is known here.
    let place = Place { ahead, waiters_ahead: ahead, holder: core.label.clone(), holder_expires_in: Duration::ZERO };
    explain::timed_out(core, plan, now.since(started.unwrap_or(now)), Some(&place))
}

impl Leader {
    async fn lead(mut self, plan: &Plan, wait: Wait) -> Result<Option<Guard>> {
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let outcome = pending.drive(wait).await;
        match outcome {
            Ok(Some(won)) => {
                self.pending = None;
                let mut guard = self.core.cohorts.hold(&self.core, &won);
                guard.begin(plan);
                Ok(Some(guard))
            }
            other => {
                self.resign(other.as_ref().err()).await;
                other.map(|_| None)
            }
        }
    }

    /// Passes the claim on, or ends it if nobody wants it.
    async fn resign(mut self, after: Option<&Error>) {
        if let Some(pending) = self.pending.take()
            && let Some(unwanted) = self.core.cohorts.pass_on(&self.core, &self.name, pending)
        {
            unwanted.withdraw(after).await;
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            drop(self.core.cohorts.pass_on(&self.core, &self.name, pending));
        }
    }
}

impl Cohorts {
    fn shard(&self, name: &Name) -> MutexGuard<'_, HashMap<Name, Cohort, RandomState>> {
        let index = usize::try_from(self.hasher.hash_one(name) >> 32).unwrap_or(0) % SHARDS;
        super::unpoisoned(self.shards[index].lock())
    }

    /// How many local tasks stand before one that gives up now, the holder included.
    fn ahead(&self, name: &Name) -> usize {
        self.shard(name).get(name).map_or(1, |cohort| cohort.waiters.len() + 1)
    }

    fn join(&self, core: &Arc<Core>, plan: &Arc<Plan>, wait: Wait) -> Joined {
        let mut shard = self.shard(&plan.name);
        let Some(cohort) = shard.get_mut(&plan.name) else {
            shard.insert(plan.name.clone(), Cohort::new(plan.clone()));
            drop(shard);
            let pending = Pending::new(core, plan.clone(), 1);
            return Joined::Leads(Leader { core: core.clone(), name: plan.name.clone(), pending: Some(pending) });
        };
        if matches!(wait, Wait::No) || !cohort.plan.same_cohort(plan) {
            return Joined::Apart { holds: cohort.holder.is_some() };
        }
        cohort.tickets += 1;
        let number = cohort.tickets;
        let (sender, turn) = oneshot::channel();
        cohort.waiters.insert(number, sender);
        drop(shard);
        Joined::Waits(Ticket { core: core.clone(), name: plan.name.clone(), number, turn, called: false })
    }

    /// The leader's claim was granted: its guard is out.
    fn hold(&self, core: &Arc<Core>, won: &Won) -> Guard {
        let Won { claim, grant } = won;
        let guard = Guard::new(core.clone(), claim.clone(), grant.token, true);
        let mut shard = self.shard(&claim.name);
        if let Some(cohort) = shard.get_mut(&claim.name) {
            cohort.holder = Some(claim.id);
            cohort.token = grant.token;
            cohort.block_end = grant.block_end;
            cohort.granted_at = core.clock.now();
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
    fn pass_on(&self, core: &Arc<Core>, name: &Name, pending: Pending) -> Option<Pending> {
        let mut leader = Box::new(Leader { core: core.clone(), name: name.clone(), pending: Some(pending) });
        let mut shard = self.shard(name);
        while let Some((_, sender)) = shard.get_mut(name).and_then(|cohort| cohort.waiters.pop_first()) {
            match sender.send(Turn::Lead(leader)) {
                Ok(()) => return None,
                Err(Turn::Lead(back)) => leader = back,
                Err(Turn::Hold(_)) => return None,
            }
        }
        shard.remove(name);
        drop(shard);
        leader.pending.take()
    }

    /// A guard of this claim was released. True if the lease lives on in this cohort.
    pub(crate) fn hand_over(&self, core: &Arc<Core>, claim: &Arc<LiveClaim>) -> bool {
        let mut shard = self.shard(&claim.name);
        let Some(cohort) = shard.get_mut(&claim.name).filter(|cohort| cohort.holder == Some(claim.id)) else {
            // Lost before: the others have gone on without it.
            return true;
        };
        if cohort.waiters.is_empty() {
            shard.remove(&claim.name);
            return false;
        }
        let now = core.clock.now();
        let trusted = now < lease::lost_at(claim.deadline());
        let in_turn = cohort.handovers < HANDOVERS_MAX && now.since(cohort.granted_at) < TURN_MAX;
        let mut turn = if trusted && in_turn && cohort.token < cohort.block_end {
            cohort.token = Token(cohort.token.0 + 1);
            cohort.handovers += 1;
            claim.offer();
            Turn::Hold(Guard::new(core.clone(), claim.clone(), cohort.token, true))
        } else {
            cohort.holder = None;
            let block = if cohort.waiters.len() > 1 { HANDOVERS_MAX } else { 1 };
            let pending = if trusted {
                Pending::next_block(core, cohort.plan.clone(), claim.clone(), cohort.block_end, block)
            } else {
                Pending::new(core, cohort.plan.clone(), block)
            };
            Turn::Lead(Box::new(Leader { core: core.clone(), name: claim.name.clone(), pending: Some(pending) }))
        };
        while let Some((_, sender)) = cohort.waiters.pop_first() {
            match sender.send(turn) {
                Ok(()) => return true,
                Err(back) => turn = back,
            }
        }
        shard.remove(&claim.name);
        drop(shard);
        turn.defuse();
        false
    }

    /// The lease of this claim was lost: its guard has been told, the others start anew.
    pub(crate) fn lost(&self, core: &Arc<Core>, claim: &Arc<LiveClaim>) {
        let mut shard = self.shard(&claim.name);
        let Some(cohort) = shard.get_mut(&claim.name).filter(|cohort| cohort.holder == Some(claim.id)) else { return };
        cohort.holder = None;
        let block = if cohort.waiters.len() > 1 { HANDOVERS_MAX } else { 1 };
        let plan = cohort.plan.clone();
        let waits = !cohort.waiters.is_empty();
        if !waits {
            shard.remove(&claim.name);
            return;
        }
        drop(shard);
        let pending = Pending::new(core, plan, block);
        drop(self.pass_on(core, &claim.name, pending));
    }
}

impl Turn {
    /// Makes dropping it harmless: what it stands for is ended by the caller.
    fn defuse(self) {
        match self {
            Self::Hold(guard) => guard.defuse(),
            Self::Lead(mut leader) => drop(leader.pending.take().map(Pending::forget)),
        }
    }
}

impl Cohort {
    fn new(plan: Arc<Plan>) -> Self {
        Self {
            plan,
            holder: None,
            token: Token(0),
            block_end: Token(0),
            granted_at: Moment(0),
            handovers: 0,
            waiters: BTreeMap::new(),
            tickets: 0,
        }
    }
}
