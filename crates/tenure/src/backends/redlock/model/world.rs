//! The state of the modelled world, and what each step does to it.

use std::hash::{Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use super::nodes::{Answer, Request};
use super::{Config, Mutation, Writes};
use crate::backends::redlock::ballot::{Admission, Hello, Node, ROUND_MAX, Tally, Verdict, Vote, admission};
use crate::clock::Moment;
use crate::token::Token;

/// One step of time. A round may last one of them, not two.
pub(super) const TICK: Duration = Duration::from_millis(1200);

/// Where the nodes' clocks begin, so that they can be set back.
const CLOCK_START: i64 = 20;

/// Everything there is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// Real time, in ticks.
    pub(super) now: u8,
    /// Sorted: which node is which makes no difference.
    pub(super) seats: Vec<Arc<Seat>>,
    pub(super) claims: Vec<Claim>,
    pub(super) admins: Vec<Admin>,
    pub(super) resource: Resource,
    pub(super) left: Budget,
    nonce: u64,
    /// A request of a claim was stored after its release.
    pub(super) orphan: bool,
}

/// A node and everything that concerns it alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// Stands for all the rest: nothing else is hashed again and again.
    print: u64,
    pub(super) node: Node<()>,
    /// How far its clock is from real time, in ticks.
    pub(super) offset: i8,
    /// On its way here; what is lost stays for ever.
    pub(super) inbox: Vec<Request>,
    /// What each claim has been answered in its present round.
    votes: Vec<Option<Vote>>,
    /// The token with which each claim was released here.
    pub(super) ended: Vec<Option<u64>>,
    views: Vec<View>,
}

impl Hash for Seat {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.print.hash(state);
    }
}

/// One attempt. Nothing that a client learns in one attempt is needed in the next, so a client that tries twice is
/// two claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) phase: Phase,
    pub(super) round: u8,
    /// When the present round began.
    start: u8,
    /// What it proposes or holds.
    pub(super) token: u64,
    /// The highest token it ever proposed.
    highest: u64,
    pub(super) deadline: u8,
    renewing: bool,
    pub(super) renewed: bool,
    /// Whether it was told to the caller.
    pub(super) reported: bool,
    /// The claims that were reported before this one began, as bits.
    pub(super) after: u8,
    pub(super) write: Write,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Unborn,
    Asking,
    Held,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Write {
    None,
    Sent,
    Accepted,
    Refused,
}

/// A client, as far as it admits nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Admin {
    pass: u8,
    start: u8,
    decided: bool,
}

/// What an admin knows of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct View {
    /// The name of its blank time, and since when it is known.
    known: Option<(u64, u8)>,
    hello: Option<Hello>,
    /// From the pass before.
    before: Option<Hello>,
}

/// What the claims protect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Resource {
    highest: u64,
    owner: u64,
    /// Whose writes were accepted, as bits.
    accepted: u8,
    pub(super) stale: bool,
}

/// How often each of these may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Deliveries that leave the message where it was.
    pub(super) duplicates: u8,
    /// Replies lost, or later than the verdict. Requests may all be lost.
    pub(super) lost_replies: u8,
    pub(super) clock_steps: u8,
    /// Restarts without data.
    pub(super) losses: u8,
    pub(super) forgets: u8,
    /// Proposals of another token for a claim by somebody who does not know of the first.
    pub(super) again: u8,
    pub(super) renewals: u8,
    /// Questions to all nodes about what they are.
    pub(super) passes: u8,
}

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Tick,
    Begin(usize, u64),
    Again(usize, u64),
    Deliver { seat: usize, message: usize, keep: bool, lose_reply: bool },
    Decide(usize),
    Renew(usize),
    Release(usize),
    Write(usize),
    Land(usize),
    SetClock(usize, i8),
    Lose(usize),
    Forget(usize),
    Pass(usize),
    Admit(usize),
}

impl World {
    pub(super) fn new(config: &Config) -> Self {
        let claim = Claim {
            phase: Phase::Unborn,
            round: 0,
            start: 0,
            token: 0,
            highest: 0,
            deadline: 0,
            renewing: false,
            renewed: false,
            reported: false,
            after: 0,
            write: Write::None,
        };
        let mut seat = Seat {
            print: 0,
            node: Node { member: !config.fresh, ..Node::default() },
            offset: 0,
            inbox: Vec::new(),
            votes: vec![None; config.ids.len()],
            ended: vec![None; config.ids.len()],
            views: vec![View::default(); config.admins],
        };
        seat.seal();
        Self {
            now: 0,
            seats: (0..config.nodes).map(|_| Arc::new(seat.clone())).collect(),
            claims: vec![claim; config.ids.len()],
            admins: vec![Admin::default(); config.admins],
            resource: Resource::default(),
            left: config.budget,
            nonce: 0,
            orphan: false,
        }
    }

    /// Takes a step; false if it makes no difference.
    pub(super) fn take(&mut self, config: &Config, step: Step) -> bool {
        match step {
            Step::Tick => self.now += 1,
            Step::Begin(claim, token) => self.begin(config, claim, token),
            Step::Again(claim, token) => {
                self.left.again -= 1;
                self.ask(claim, token, false);
            }
            Step::Deliver { seat, message, keep, lose_reply } => self.deliver(config, seat, message, keep, lose_reply),
            Step::Decide(claim) => return self.decide(config, claim),
            Step::Renew(claim) => self.renew(claim),
            Step::Release(claim) => self.end(config, claim),
            Step::Write(claim) if config.writes == Writes::Prompt => self.land(config, claim),
            Step::Write(claim) => self.claims[claim].write = Write::Sent,
            Step::Land(claim) => self.land(config, claim),
            Step::SetClock(seat, by) => {
                self.left.clock_steps -= 1;
                self.edit(seat, |seat| seat.offset += by);
            }
            Step::Lose(seat) => {
                self.left.losses -= 1;
                self.edit(seat, Seat::lose);
            }
            Step::Forget(seat) => {
                self.left.forgets -= 1;
                self.edit(seat, |seat| seat.forget(config));
            }
            Step::Pass(admin) => self.pass(config, admin),
            Step::Admit(admin) => return self.admit(config, admin),
        }
        self.seats.sort_unstable_by_key(|seat| seat.print);
        true
    }

    fn edit(&mut self, seat: usize, change: impl FnOnce(&mut Seat)) {
        let seat = Arc::make_mut(&mut self.seats[seat]);
        change(seat);
        seat.seal();
    }

    fn edit_all(&mut self, mut change: impl FnMut(&mut Seat)) {
        for seat in 0..self.seats.len() {
            self.edit(seat, &mut change);
        }
    }

    fn begin(&mut self, config: &Config, claim: usize, token: u64) {
        // The end of the attempt before may still be on its way: it must not end this one.
        let before = (0..claim).filter(|other| config.ids[*other] == config.ids[claim]);
        let before = before.map(|other| self.claims[other].highest).max();
        let (token, anew) = match before {
            Some(highest) if config.mutation != Some(Mutation::RetryPlain) => (token.max(highest + 1), true),
            _ => (token, false),
        };
        let reported = (0..self.claims.len()).filter(|other| self.claims[*other].reported);
        self.claims[claim].after = reported.map(|other| 1 << other).sum();
        self.ask(claim, token, anew);
    }

    /// A new round: answers to the one before no longer count.
    fn ask(&mut self, claim: usize, token: u64, anew: bool) {
        let asking = &mut self.claims[claim];
        asking.phase = Phase::Asking;
        asking.round += 1;
        asking.start = self.now;
        asking.token = token;
        asking.highest = asking.highest.max(token);
        let round = asking.round;
        self.send_round(claim, Request::Claim { claim, round, token, anew });
    }

    fn renew(&mut self, claim: usize) {
        self.left.renewals -= 1;
        let holder = &mut self.claims[claim];
        holder.renewing = true;
        holder.round += 1;
        holder.start = self.now;
        let (round, token) = (holder.round, holder.token);
        self.send_round(claim, Request::Renew { claim, round, token });
    }

    fn send_round(&mut self, claim: usize, request: Request) {
        self.edit_all(|seat| {
            seat.votes[claim] = None;
            seat.send(request);
        });
    }

    /// The client is done with it, one way or the other.
    fn end(&mut self, config: &Config, claim: usize) {
        let ended = &mut self.claims[claim];
        ended.phase = Phase::Over;
        ended.renewing = false;
        let token = ended.highest;
        self.edit_all(|seat| {
            seat.votes[claim] = None;
            if claim < config.releases {
                seat.send(Request::Release { claim, token });
            }
        });
    }

    fn deliver(&mut self, config: &Config, at: usize, message: usize, keep: bool, lose_reply: bool) {
        self.left.duplicates -= u8::from(keep);
        self.left.lost_replies -= u8::from(lose_reply);
        let seat = Arc::make_mut(&mut self.seats[at]);
        let request = if keep { seat.inbox[message] } else { seat.inbox.remove(message) };
        let clock = CLOCK_START + i64::from(self.now) + i64::from(seat.offset);
        let (answer, orphan) = seat.answer(config, request, ticks(clock));
        match answer {
            Some(Answer::Vote(claim, round, vote)) if !lose_reply && self.claims[claim].listens(round) => {
                // Each node is counted once.
                seat.votes[claim].get_or_insert(vote);
            }
            Some(Answer::Hello(admin, pass, hello)) if !lose_reply && self.admins[admin].pass == pass => {
                seat.views[admin].hear(hello, self.now);
            }
            _ => {}
        }
        seat.seal();
        self.orphan |= orphan;
    }

    fn verdict(&self, config: &Config, claim: usize) -> Verdict {
        let mut tally = Tally::new(self.seats.len());
        let votes = self.seats.iter().map(|seat| seat.votes[claim]);
        for vote in votes.clone().flatten() {
            let proposed = Token(self.claims[claim].token);
            match vote {
                Vote::Stored(_) if config.mutation == Some(Mutation::MixedVotes) => {
                    tally.count(Some(Vote::Stored(proposed)))
                }
                vote => tally.count(Some(vote)),
            }
        }
        if let Some(verdict) = tally.verdict() {
            return verdict;
        }
        // The others are taken for silent.
        votes.filter(Option::is_none).for_each(|_| tally.count(None));
        tally.verdict().unwrap()
    }

    /// Reads the answers: whatever came until now, at the latest possible moment.
    fn decide(&mut self, config: &Config, claim: usize) -> bool {
        let Claim { phase, start, round, .. } = self.claims[claim];
        let void = TICK * u32::from(self.now - start) > ROUND_MAX && config.mutation != Some(Mutation::LongRounds);
        let on_time = !void && self.now < start + config.ttl;
        match (phase, self.verdict(config, claim)) {
            (Phase::Asking, Verdict::Won(token)) if on_time => self.won(config, claim, token),
            (Phase::Held, Verdict::Won(_)) if on_time => {
                let holder = &mut self.claims[claim];
                holder.renewed = true;
                holder.deadline = holder.deadline.max(start + config.ttl);
                self.stop_renewing(claim);
            }
            (Phase::Held, _) => self.stop_renewing(claim),
            (_, Verdict::Above(token)) if round < config.rounds => self.ask(claim, token.0 + 1, true),
            // Without releases to send, giving up is the same as doing nothing.
            _ if claim >= config.releases => return false,
            _ => self.end(config, claim),
        }
        self.seats.sort_unstable_by_key(|seat| seat.print);
        true
    }

    fn won(&mut self, config: &Config, claim: usize, token: Token) {
        let winner = &mut self.claims[claim];
        winner.phase = Phase::Held;
        winner.token = token.0;
        winner.deadline = winner.start + config.ttl;
        winner.reported = true;
        self.edit_all(|seat| seat.votes[claim] = None);
    }

    fn stop_renewing(&mut self, claim: usize) {
        self.claims[claim].renewing = false;
        self.edit_all(|seat| seat.votes[claim] = None);
    }

    /// A write arrives at the resource.
    fn land(&mut self, config: &Config, claim: usize) {
        let (token, owner) = (self.claims[claim].token, config.ids[claim]);
        let resource = &mut self.resource;
        let current = token > resource.highest || token == resource.highest && owner == resource.owner;
        let first = resource.accepted == 0;
        if config.fenced && !first && !current {
            self.claims[claim].write = Write::Refused;
            return;
        }
        let newer = (0..self.claims.len()).filter(|other| resource.accepted & 1 << other != 0);
        resource.stale |= newer.into_iter().any(|other| self.claims[other].after & 1 << claim != 0);
        resource.highest = token;
        resource.owner = owner;
        resource.accepted |= 1 << claim;
        self.claims[claim].write = Write::Accepted;
    }

    fn pass(&mut self, config: &Config, admin: usize) {
        self.left.passes -= 1;
        self.nonce += 1;
        let asking = &mut self.admins[admin];
        asking.pass += 1;
        asking.start = self.now;
        asking.decided = false;
        let (pass, nonce, now) = (asking.pass, self.nonce, self.now);
        self.edit_all(|seat| {
            seat.views[admin].before = seat.views[admin].hello.take();
            if config.prompt_hellos {
                let hello = seat.node.hello(nonce);
                seat.views[admin].hear(hello, now);
            } else {
                seat.send(Request::Hello { admin, pass, nonce });
            }
        });
    }

    fn admit(&mut self, config: &Config, admin: usize) -> bool {
        let Admin { start, decided, .. } = self.admins[admin];
        let views: Vec<View> = self.seats.iter().map(|seat| seat.views[admin]).collect();
        let hellos: Vec<Option<Hello>> = views.iter().map(|view| view.hello).collect();
        // Until this pass began: what its answers say is later than that.
        let until = if config.mutation == Some(Mutation::BlankUntilDecided) { self.now } else { start };
        let seen: Vec<Duration> = views.iter().map(|view| view.known_for(until)).collect();
        let agree = views.iter().all(View::agrees) || config.mutation == Some(Mutation::OnePass);
        let (ripe, floor) = match admission(&hellos, &seen) {
            _ if decided => return false,
            Admission::NewFleet if agree => ((0..hellos.len()).collect(), None),
            Admission::Admit(ripe, floor) => (ripe, Some(floor.0)),
            Admission::NewFleet | Admission::Wait(_) | Admission::Nothing => return false,
        };
        for index in ripe {
            let blank = hellos[index].and_then(|hello| hello.blank).unwrap();
            // A new fleet begins at its nodes' times; tokens are small numbers here, so ticks stand for them.
            let floor = floor.unwrap_or(u64::from(self.now));
            self.edit(index, |seat| seat.send(Request::Admit { blank, floor }));
        }
        self.admins[admin].decided = true;
        self.seats.sort_unstable_by_key(|seat| seat.print);
        true
    }
}

impl Claim {
    fn listens(&self, round: u8) -> bool {
        self.round == round && (self.phase == Phase::Asking || self.renewing)
    }

    pub(super) fn awaits_verdict(&self) -> bool {
        self.phase == Phase::Asking || self.renewing
    }

    pub(super) fn may_renew(&self) -> bool {
        self.phase == Phase::Held && !self.renewing
    }

    pub(super) fn believes(&self, now: u8) -> bool {
        self.phase == Phase::Held && now < self.deadline
    }
}

impl Admin {
    pub(super) fn may_decide(&self) -> bool {
        self.pass > 0 && !self.decided
    }
}

impl View {
    fn hear(&mut self, hello: Hello, now: u8) {
        self.hello = Some(hello);
        self.known = match (hello.blank, self.known) {
            (Some(blank), Some((known, since))) if blank == known => Some((known, since)),
            (Some(blank), _) => Some((blank, now)),
            (None, _) => None,
        };
    }

    fn known_for(&self, until: u8) -> Duration {
        self.known.map_or(Duration::ZERO, |(_, since)| TICK * u32::from(until.saturating_sub(since)))
    }

    fn agrees(&self) -> bool {
        let blank = |hello: Option<Hello>| hello.and_then(|hello| hello.blank);
        blank(self.hello).is_some() && blank(self.hello) == blank(self.before)
    }
}

impl Seat {
    fn seal(&mut self) {
        let mut hasher = std::hash::DefaultHasher::new();
        (&self.node, self.offset, &self.inbox, &self.votes, &self.ended, &self.views).hash(&mut hasher);
        self.print = hasher.finish();
    }

    /// A set: what is sent twice is there once.
    fn send(&mut self, request: Request) {
        if let Err(place) = self.inbox.binary_search(&request) {
            self.inbox.insert(place, request);
        }
    }

    fn lose(&mut self) {
        self.node = Node::default();
        self.ended.fill(None);
    }

    fn forget(&mut self, config: &Config) {
        let floor = self.node.floor;
        self.node.forget_oldest();
        if config.mutation == Some(Mutation::ForgetWithoutFloor) {
            self.node.floor = floor;
        }
    }
}

fn ticks(ticks: i64) -> Moment {
    Moment::default() + TICK * u32::try_from(ticks).unwrap()
}
