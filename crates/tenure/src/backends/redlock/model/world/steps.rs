//! What each step does to the world.

use std::sync::Arc;
use std::time::Duration;

use super::{Admin, CLOCK_START, Claim, Phase, Seat, TICK, View, World, Write, ticks};
use crate::backends::redlock::ballot::{Admission, Hello, ROUND_MAX, Tally, Verdict, Vote, admission};
use crate::backends::redlock::model::nodes::{Answer, Request};
use crate::backends::redlock::model::{Config, Mutation, Writes};
use crate::token::Token;

/// What may happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends::redlock::model) enum Step {
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
    /// Takes a step; false if it makes no difference.
    pub(in crate::backends::redlock::model) fn take(&mut self, config: &Config, step: Step) -> bool {
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
        let views: Vec<View> = self.seats.iter().map(|seat| seat.views[admin].clone()).collect();
        let mut hellos: Vec<Option<Hello>> = views.iter().map(|view| view.hello.clone()).collect();
        let names: Arc<[u64]> = hellos.iter().flatten().filter_map(|hello| hello.blank).collect();
        if config.mutation == Some(Mutation::AnyFounder) {
            hellos.iter_mut().flatten().for_each(|hello| hello.founders = names.clone());
        }
        // Until this pass began: what its answers say is later than that.
        let until = if config.mutation == Some(Mutation::BlankUntilDecided) { self.now } else { start };
        let seen: Vec<Duration> = views.iter().map(|view| view.known_for(until)).collect();
        let agree = views.iter().all(View::agrees) || config.mutation == Some(Mutation::OnePass);
        let decision = admission(&hellos, &seen);
        let new = matches!(decision, Admission::NewFleet(..));
        let (ripe, floor) = match decision {
            _ if decided => return false,
            // A new fleet begins at its nodes' times; tokens are small numbers here, so ticks stand for them.
            Admission::NewFleet(begin, floor) if agree => (begin, floor.0.max(u64::from(self.now))),
            Admission::Admit(ripe, floor) => (ripe, floor.0),
            Admission::NewFleet(..) | Admission::Wait(_) | Admission::Nothing => return false,
        };
        self.finishing |= new && ripe.len() < hellos.len();
        let known = hellos.iter().flatten().map(|hello| &hello.founders).find(|founders| !founders.is_empty());
        let founders = if ripe.len() < hellos.len() { known.cloned().unwrap_or_default() } else { names };
        let founders = founders.iter().fold(0, |bits, name| bits | 1 << name);
        for index in ripe {
            let Some(blank) = hellos[index].as_ref().and_then(|hello| hello.blank) else { continue };
            self.edit(index, |seat| seat.send(Request::Admit { blank, floor, founders }));
        }
        self.admins[admin].decided = true;
        self.seats.sort_unstable_by_key(|seat| seat.print);
        true
    }
}
