//! One random history on one name: what it asks next, and what the machine made of it so far.

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use redis::Value;

use super::super::op;
use super::compare::Pairs;
use crate::backend::{BreakRequest, MemoWrite, MemoWritten, WaiterBreak};
use crate::clock::Moment;
use crate::machine::{Applied, ClaimRequest, MemoRecord, Op, Queue, Shape};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How many claims a history has in hand at a time.
const SLOTS: usize = 6;
/// How many sessions there are, beside owners of one claim only.
const SESSIONS: u32 = 4;
const LABELS: [&str; 5] = ["worker", "a label of words", "", "2 owners 3", "größer"];
/// A number or token that nobody was given.
pub(super) const NOBODYS: u64 = 9;

/// What was asked, what the machine made of it, and what the server answered.
pub(super) enum Logged {
    Op(Moment, Op, Applied, Value),
    Memo(Moment, MemoWrite, MemoWritten, Value),
}

pub(super) struct History {
    pub(super) seed: u64,
    pub(super) index: u64,
    pub(super) name: Name,
    pub(super) queue: Queue,
    pub(super) numbers: Pairs,
    pub(super) tokens: Pairs,
    pub(super) steps_left: u32,
    /// Not before this moment.
    pub(super) due: Moment,
    /// How far the server's two clocks were apart at most.
    pub(super) slop: u64,
    /// When it was last asked, in the server's time.
    pub(super) asked_at: Moment,
    /// A claim died too near to an operation to tell which came first.
    pub(super) spoiled: bool,
    /// The first letter of the record, when it was last seen.
    pub(super) record: u8,
    /// The memo, as the machine has it.
    pub(super) memo: Option<MemoRecord>,
    /// The memos that were sent.
    pub(super) writes: Vec<MemoWrite>,
    pub(super) log: Vec<Logged>,
    pub(super) rng: StdRng,
    channels: Arc<str>,
    permits: bool,
    pub(super) slots: Vec<ClaimRequest>,
    sent: Vec<Op>,
    ids: u64,
}

impl History {
    pub(super) fn new(seed: u64, index: u64, channels: Arc<str>, due: Moment) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut history = Self {
            seed,
            index,
            name: Name::new(format!("{channels}{index}")).unwrap(),
            queue: Queue::new(0),
            numbers: Pairs::default(),
            tokens: Pairs::default(),
            steps_left: rng.random_range(10..=60),
            due,
            slop: 0,
            asked_at: Moment(0),
            spoiled: false,
            record: b' ',
            memo: None,
            writes: Vec::new(),
            log: Vec::new(),
            permits: rng.random_bool(0.25),
            rng,
            channels,
            slots: Vec::new(),
            sent: Vec::new(),
            ids: 0,
        };
        // Ids of claims that never came.
        history.slots = (0..SLOTS).map(|_| history.wish()).collect();
        history
    }

    pub(super) fn chance(&mut self, of_100: u32) -> bool {
        self.rng.random_ratio(of_100, 100)
    }

    pub(super) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.rng.random_range(0..from.len())].clone()
    }

    fn slot(&mut self) -> usize {
        self.rng.random_range(0..SLOTS)
    }

    /// A slot whose claim is in the queue, mostly.
    pub(super) fn live_slot(&mut self) -> usize {
        let live: Vec<usize> = (0..SLOTS).filter(|slot| self.queue.find(self.slots[*slot].id).is_some()).collect();
        if live.is_empty() || self.chance(25) { self.slot() } else { self.pick(&live) }
    }

    /// How long to wait before the next step.
    pub(super) fn pause(&mut self) -> Duration {
        let longest = self.pick(&[1, 1, 20, 20, 20, 60, 60, 350]);
        Duration::from_millis(self.rng.random_range(0..=longest))
    }

    /// What is asked next. `alone` if nothing else happens to the name in the same call.
    pub(super) fn draw(&mut self, now: Moment, alone: bool) -> Op {
        let op = match self.rng.random_range(0..100_u32) {
            0..30 => {
                let slot = self.slot();
                if self.queue.find(self.slots[slot].id).is_none() || self.chance(30) {
                    self.slots[slot] = self.wish();
                }
                Op::Claim(self.slots[slot].clone())
            }
            30..38 => self.again(),
            38..44 => match self.sent.len() {
                0 => self.again(),
                sent => self.sent[sent - 1 - self.rng.random_range(0..sent.min(30))].clone(),
            },
            44..56 => self.renew(),
            56..74 => self.release(),
            74..86 => self.next_block(),
            86..89 => self.break_waiter(),
            89..94 => {
                let owner = match self.rng.random_range(0..3_u32) {
                    0 => None,
                    1 => Some(self.session()),
                    _ => self.queue.claims.front().map(|claim| claim.owner.clone()),
                };
                let by = self.pick(&["operator", "Jürgen at host:1", ""]);
                let reason = self.pick(&["", "it hung", "1 2 3"]);
                let up_to = if self.chance(60) { Some(self.known_token()) } else { None };
                Op::Break { owner, up_to: up_to.map(Token), by: by.into(), reason: reason.into() }
            }
            _ if alone => match self.intrude(now) {
                // Not to be sent again: an owner of one claim is of that claim only.
                Some(op) => return op,
                None => self.again(),
            },
            _ => self.renew(),
        };
        self.sent.push(op.clone());
        op
    }

    fn session(&mut self) -> Owner {
        Owner::new(format!("session-{}", self.rng.random_range(0..SESSIONS))).unwrap()
    }

    fn ttl(&mut self) -> Duration {
        let ms = if self.chance(50) { self.rng.random_range(100..300) } else { self.rng.random_range(1_000..20_000) };
        Duration::from_millis(ms)
    }

    fn shape(&mut self) -> Shape {
        if self.permits ^ self.chance(3) {
            let of = if self.chance(4) { 4 } else { 3 };
            return Shape::Permits { units: self.rng.random_range(1..=of), of };
        }
        if self.chance(60) { Shape::Exclusive } else { Shape::Shared }
    }

    fn inbox(&mut self) -> Arc<str> {
        let which = self.pick(&["heard0", "heard1", "deaf0", "deaf1"]);
        format!("{}{which}", self.channels).into()
    }

    fn new_id(&mut self) -> ClaimId {
        self.ids += 1;
        ClaimId(self.index << 40 | u64::from(self.rng.random::<u16>()) << 24 | self.ids)
    }

    fn wish(&mut self) -> ClaimRequest {
        let (id, shape) = (self.new_id(), self.shape());
        let solo = shape == Shape::Exclusive && self.chance(40);
        let alone = solo || self.chance(if self.permits { 60 } else { 20 });
        let owner = if alone { own_owner(id) } else { self.session() };
        let reenter = if solo || !self.chance(12) { None } else { Some(self.token_to_reenter(&owner)) };
        let presumed = if self.chance(8) { self.rng.random_range(50..300) } else { 0 };
        let within = (0..self.pick(&[0, 0, 1, 2])).map(|_| self.session()).collect();
        ClaimRequest {
            id,
            owner,
            label: self.pick(&LABELS).into(),
            shape,
            ttl: self.ttl(),
            queue: self.chance(80),
            block: if solo || self.chance(10) { self.pick(&[0, 1, 32, 32]) } else { 1 },
            strict: self.chance(20),
            inbox: self.inbox(),
            within,
            reenter,
            solo,
            attempt: self.pick(&[0, 0, 7]),
            presumed: Duration::from_millis(presumed),
        }
    }

    fn token_to_reenter(&mut self, owner: &Owner) -> Token {
        let held = self.queue.holders().find(|held| held.owner == *owner).and_then(|held| held.grant);
        match held {
            Some(grant) if self.chance(80) => Token(self.rng.random_range(grant.token.0..=grant.block_end.0)),
            _ => Token(self.known_token()),
        }
    }

    pub(super) fn known_token(&mut self) -> u64 {
        let known = self.tokens.machines();
        if known.is_empty() || self.chance(20) { NOBODYS } else { self.pick(&known) }
    }

    pub(super) fn known_number(&mut self) -> u64 {
        let known = self.numbers.machines();
        if known.is_empty() { NOBODYS } else { self.pick(&known) }
    }

    /// A claim in hand, as it was or changed.
    fn again(&mut self) -> Op {
        let slot = self.live_slot();
        let mut request = self.slots[slot].clone();
        match self.rng.random_range(0..8_u32) {
            0..3 => (request.inbox, request.ttl) = (self.inbox(), self.ttl()),
            3..5 => request.attempt += 1,
            5 => request.owner = Owner::new(format!("other-{}", request.id)).unwrap(),
            6 => {
                request.shape = match request.shape {
                    Shape::Shared => Shape::Exclusive,
                    Shape::Exclusive => Shape::Shared,
                    Shape::Permits { of, .. } => Shape::Permits { units: of, of },
                }
            }
            _ => {}
        }
        Op::Claim(request)
    }

    fn renew(&mut self) -> Op {
        let slot = self.live_slot();
        let ttl = if self.chance(50) { self.slots[slot].ttl } else { self.ttl() };
        let id = self.slots[slot].id;
        let right = self.queue.find(id).map(|claim| claim.number);
        let number = match self.rng.random_range(0..4_u32) {
            0 => right,
            // That of a claim that was there before it, or of none.
            1 => right.map(|number| number.saturating_sub(1)),
            _ => None,
        };
        Op::Renew { id, ttl, number }
    }

    fn release(&mut self) -> Op {
        let slot = self.live_slot();
        let holder = self.queue.claims.front().map(|claim| claim.id);
        let id = holder.filter(|_| self.chance(40)).unwrap_or(self.slots[slot].id);
        let right = self.queue.find(id).map(|claim| claim.number);
        let number = match self.rng.random_range(0..6_u32) {
            0..2 => None,
            2..5 => right,
            _ => Some(self.known_number()),
        };
        Op::Release { id, number, waiting_only: self.chance(30) }
    }

    fn break_waiter(&mut self) -> Op {
        let slot = self.live_slot();
        let waiter = self.queue.waiters().next().map(|claim| claim.id);
        let id = waiter.filter(|_| self.chance(50)).unwrap_or(self.slots[slot].id);
        let right = self.queue.find(id).map_or(NOBODYS, |claim| claim.number);
        let known = self.numbers.machines();
        let number = if self.chance(80) || known.is_empty() { right } else { self.pick(&known) };
        Op::BreakWaiter { id, number, by: self.pick(&["operator", ""]).into(), reason: "deadlock: 1 2".into() }
    }

    /// As a cohort asks: for a claim that it holds exclusively.
    fn next_block(&mut self) -> Op {
        let slot = self.slot();
        let holder = self.queue.holders().next().filter(|held| held.shape == Shape::Exclusive).map(|held| held.id);
        let usable = self.slots[slot].clone();
        let asked = self.queue.find(usable.id).map_or(usable.shape, |claim| claim.shape);
        let id = match holder {
            Some(id) if self.chance(80) => id,
            _ if asked == Shape::Exclusive => usable.id,
            _ => return self.release(),
        };
        let end = self.queue.find(id).and_then(|claim| claim.grant).map(|grant| grant.block_end.0);
        let block_end = Token(if self.chance(75) { end.unwrap_or(NOBODYS) } else { self.known_token() });
        let other = self.slot();
        let taken = self.slots[other].clone();
        let next = if self.chance(30) && taken.id != id && taken.shape == Shape::Exclusive {
            taken
        } else {
            let id = self.new_id();
            let block = self.pick(&[0, 1, 32]);
            ClaimRequest { owner: own_owner(id), id, shape: Shape::Exclusive, solo: true, block, ..self.wish() }
        };
        let next = ClaimRequest { reenter: None, presumed: Duration::ZERO, ..next };
        // The next task's claim is one of those in hand, as the one that asked still is.
        self.slots[(slot + 1) % SLOTS] = next.clone();
        Op::NextBlock { id, block_end, next }
    }

    /// Somebody asks as the owner of a claim that nobody may re-enter.
    fn intrude(&mut self, now: Moment) -> Option<Op> {
        let lives = now + Duration::from_secs(2);
        let held = self.queue.holders().next().filter(|held| held.solo && held.shape == Shape::Exclusive)?;
        let owner = Some(held.owner.clone()).filter(|owner| held.expires > lives && *owner != Owner::unknown())?;
        Some(Op::Claim(ClaimRequest { owner, solo: false, shape: Shape::Shared, ..self.wish() }))
    }

    /// The operation as the server is asked for it, with its own tokens and numbers.
    pub(super) fn wire(&self, op: &Op) -> op::Op {
        let name = &self.name;
        match op {
            Op::Claim(request) => {
                let reenter = request.reenter.map(|token| Token(self.tokens.redis(token.0)));
                op::Op::claim(name, &ClaimRequest { reenter, ..request.clone() }, &request.inbox)
            }
            Op::Renew { id, ttl, number } => {
                op::Op::renew(name, *id, *ttl, number.map(|number| self.numbers.redis(number)))
            }
            Op::Release { id, number, waiting_only } => {
                op::Op::release(name, *id, number.map(|number| self.numbers.redis(number)), *waiting_only)
            }
            Op::NextBlock { id, block_end, next } => {
                op::Op::next_block(name, *id, Token(self.tokens.redis(block_end.0)), next, &next.inbox)
            }
            Op::Break { owner, up_to, by, reason } => {
                let up_to = up_to.map(|token| Token(self.tokens.redis(token.0)));
                let (owner, by, reason) = (owner.clone(), by.clone(), reason.clone());
                op::Op::break_holders(name, &BreakRequest { owner, up_to, by, reason })
            }
            Op::BreakWaiter { id, number, by, reason } => {
                let (id, number) = (*id, self.numbers.redis(*number));
                op::Op::break_waiter(name, &WaiterBreak { id, number, by: by.clone(), reason: reason.clone() })
            }
            Op::Skip { .. } => unreachable!("the script passes over by itself"),
        }
    }

    /// Whether a claim or a mark dies between these moments.
    pub(super) fn dies_between(&self, from: u64, until: u64) -> bool {
        let claims = self.queue.claims.iter().map(|claim| claim.expires.0);
        let marks = self.queue.marks.iter().map(|mark| mark.until.0);
        claims.chain(marks).any(|at| from <= at && at <= until)
    }
}

pub(super) fn own_owner(id: ClaimId) -> Owner {
    Owner::new(format!("alone-{id}")).unwrap()
}
