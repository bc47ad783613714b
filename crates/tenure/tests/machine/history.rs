//! The world a random history happens to: it turns steps, which name claims by small numbers so that they
//! often meet, into operations of the machine.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::Moment;
use tenure::machine::{Claim, ClaimRequest, Op, Queue, Shape};
use tenure::{ClaimId, Owner, Token};

use crate::steps::{Change, NextId, Number, OWNERS, Reenter, SLOTS, Step, Wish};

/// What a history happens to: the machine's state, its time, and what the clients know.
pub(crate) struct World {
    pub(crate) queue: Queue,
    pub(crate) now: Moment,
    pub(crate) wall: u64,
    slots: Vec<ClaimRequest>,
    sent: Vec<Op>,
    ids: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            queue: Queue::new(0),
            now: Moment(1_000_000),
            wall: 50_000_000,
            slots: Vec::new(),
            sent: Vec::new(),
            ids: 0,
        };
        // Ids of claims that never came.
        world.slots = (0..SLOTS).map(|_| world.request(0, Shape::Exclusive, 0)).collect();
        world
    }

    /// The operation of a step, if it is one.
    pub(crate) fn op(&mut self, step: Step) -> Option<Op> {
        let op = match step {
            Step::Pass(millis) => {
                let passed = Duration::from_millis(u64::from(millis));
                self.now = self.now + passed;
                self.wall += u64::try_from(passed.as_micros()).unwrap();
                return None;
            }
            Step::MoveWall(by) => {
                self.wall = self.wall.saturating_add_signed(i64::from(by));
                return None;
            }
            Step::Claim { slot, wish } => {
                if self.queue.find(self.slots[slot].id).is_none() {
                    self.slots[slot] = self.wished(wish);
                }
                Op::Claim(self.slots[slot].clone())
            }
            Step::Again { slot, change } => Op::Claim(self.changed(slot, change)),
            Step::LateCopy { age } => self.sent.iter().rev().nth(age)?.clone(),
            Step::Renew { slot, ttl } => Op::Renew { id: self.slots[slot].id, ttl: time_to_live(ttl), number: None },
            Step::Release { slot, number, waiting_only } => {
                let id = self.slots[slot].id;
                let right = self.queue.find(id).map_or(1, |claim| claim.number);
                let number = match number {
                    Number::Any => None,
                    Number::Right => Some(right),
                    Number::Wrong => Some(right + 1),
                };
                Op::Release { id, number, waiting_only }
            }
            Step::NextBlock { by_holder, slot, right_end, next, block } => {
                let holder = self.queue.holders().next().filter(|held| by_holder && held.owner == own_owner(held.id));
                let id = holder.map_or(self.slots[slot].id, |held| held.id);
                self.next_block(slot, id, right_end, next, block)?
            }
            Step::Break { owner, of_slot, up_to } => {
                let owner = if of_slot { Some(self.slots[0].owner.clone()) } else { owner.map(owner_number) };
                let up_to = up_to.and_then(|nth| self.queue.holders().nth(nth)?.grant).map(|grant| grant.token);
                Op::Break { owner, up_to, by: "operator".into(), reason: format!("break at {:?}", self.now).into() }
            }
            Step::BreakWaiter { first, slot, right } => {
                let first = self.queue.waiters().next().filter(|_| first).map(|waiter| waiter.id);
                let id = first.unwrap_or(self.slots[slot].id);
                let number = self.queue.find(id).map_or(1, |claim| claim.number) + u64::from(!right);
                Op::BreakWaiter { id, number, by: "operator".into(), reason: "deadlock: them".into() }
            }
            Step::Skip { first, slot, behind } => {
                let first = self.queue.waiters().next().filter(|_| first).map(|waiter| waiter.id);
                Op::Skip { id: first.unwrap_or(self.slots[slot].id), behind: self.slots[behind].id }
            }
        };
        self.sent.push(op.clone());
        Some(op)
    }

    fn request(&mut self, owner: u8, shape: Shape, ttl: u8) -> ClaimRequest {
        self.ids += 1;
        ClaimRequest {
            id: ClaimId(self.ids),
            owner: owner_number(owner),
            label: format!("owner {owner}").into(),
            shape,
            ttl: time_to_live(ttl),
            queue: true,
            block: 1,
            strict: false,
            inbox: Arc::from("one"),
            within: Vec::new(),
            reenter: None,
            solo: false,
            attempt: 0,
            presumed: Duration::ZERO,
        }
    }

    fn wished(&mut self, wish: Wish) -> ClaimRequest {
        let request = self.request(wish.owner, wish.shape, wish.ttl);
        let held = self.queue.holders().find(|held| held.owner == request.owner).and_then(|held| held.grant);
        let reenter = match wish.reenter {
            Reenter::No => None,
            Reenter::Right => held.map(|grant| grant.block_end),
            Reenter::Wrong => Some(Token(held.map_or(3, |grant| grant.block_end.0 + 1))),
        };
        // A cohort's claim has an owner of its own, which never re-enters.
        let owner = if wish.block > 1 { own_owner(request.id) } else { request.owner.clone() };
        ClaimRequest { queue: wish.queue, block: wish.block, strict: wish.strict, reenter, owner, ..request }
    }

    fn changed(&self, slot: usize, change: Change) -> ClaimRequest {
        let same = self.slots[slot].clone();
        match change {
            Change::Nothing => same,
            Change::InboxAndTtl => ClaimRequest { inbox: "two".into(), ttl: same.ttl * 2, ..same },
            Change::Owner => ClaimRequest { owner: owner_number(OWNERS), ..same },
            Change::Shape => {
                let shape = if same.shape == Shape::Shared { Shape::Exclusive } else { Shape::Shared };
                ClaimRequest { shape, ..same }
            }
        }
    }

    /// As a cohort asks: for a claim that it holds exclusively, with a next task of its own kind.
    fn next_block(&mut self, slot: usize, id: ClaimId, right_end: bool, next: NextId, block: u32) -> Option<Op> {
        let held = self.queue.find(id).map(|claim| (claim.owner.clone(), claim.shape));
        let (owner, shape) = held.unwrap_or((self.slots[slot].owner.clone(), self.slots[slot].shape));
        if shape != Shape::Exclusive || owner != own_owner(id) {
            return None;
        }
        let fresh = self.request(0, Shape::Exclusive, 0);
        let next = match next {
            NextId::OfSlot(other) if self.slots[other].id != id => {
                ClaimRequest { shape: Shape::Exclusive, ..self.slots[other].clone() }
            }
            _ => ClaimRequest { owner: own_owner(fresh.id), block, ..fresh },
        };
        let end = self.queue.find(id).and_then(|claim| claim.grant).map_or(Token(9), |grant| grant.block_end);
        let block_end = if right_end { end } else { Token(end.0.saturating_sub(1)) };
        // The next task's claim is one of those in hand, as the one that asked still is.
        self.slots[(slot + 1) % SLOTS] = next.clone();
        Some(Op::NextBlock { id, block_end, next })
    }
}

fn own_owner(id: ClaimId) -> Owner {
    Owner::new(format!("cohort-{id}")).unwrap()
}

fn owner_number(number: u8) -> Owner {
    Owner::new(format!("owner-{number}")).unwrap()
}

/// Short enough that claims often die.
fn time_to_live(choice: u8) -> Duration {
    Duration::from_millis(100 + u64::from(choice) * 5)
}

/// A claim by its append, which no other claim of a history shares.
pub(crate) fn by_number(queue: &Queue, number: u64) -> Option<&Claim> {
    queue.claims.iter().find(|claim| claim.number == number)
}
