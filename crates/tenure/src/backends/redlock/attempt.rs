//! A claim on its way: proposed to all nodes, again with a higher token where that was too low, and ended wherever it
//! was stored unless it wins.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ballot::Verdict;
use super::round::{self, Round};
use super::wire::{self, Ending, InLine, Mine, Proposal};
use super::{Inner, lock};
use crate::backend::{Answer, ClaimRequest, Claimed, Standing};
use crate::backends::redis::url::Layout;
use crate::clock::Moment;
use crate::error::{Certainty, Result};
use crate::name::Name;
use crate::token::Token;

/// How many times a token is proposed anew before the nodes are left alone for a moment.
const ROUNDS_MAX: u32 = 8;
/// For how long (in us) a claim that was refused and not ended is remembered at least.
const REFUSED_FOR: u64 = 60_000_000;
/// How far (in us) a client's tokens may run ahead of the nodes' clocks by being one more than the one before.
const LEAD_MAX: u64 = 5_000_000;

/// What has to be known of a claim that is asked for again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refused {
    /// Since when it waits, on the nodes' clock: its place among those that do.
    since: u64,
    /// The highest token that was proposed for it. Its end may still be on the way to nodes, so that only a higher one
    /// is safe from it.
    highest: Token,
}

/// A claim under way: ended on all nodes if it is dropped before it has won.
pub(super) struct Attempt {
    inner: Arc<Inner>,
    name: Name,
    request: ClaimRequest,
    mine: Mine,
    waits: Option<u64>,
    round: Option<Round>,
    /// Whether it asks again for what was granted: then it is for whoever holds it to end it.
    granted: bool,
    /// Whether nodes may have something of it that must not stay.
    owed: bool,
}

impl Attempt {
    /// Sends the first proposal.
    pub(super) fn begin(inner: Arc<Inner>, name: Name, request: ClaimRequest) -> Self {
        // A number that Lua keeps exactly, and that no token is.
        let attempt = if request.attempt == 0 { 0 } else { request.attempt >> 12 | 1 << 52 };
        let known = lock(&inner.claims).get(&request.id).filter(|mine| mine.attempt == attempt).cloned();
        let before = lock(&inner.refused).get(&request.id).copied();
        let waits = request.queue.then(|| before.map_or_else(|| inner.fleet.time(), |before| before.since));
        // A retry of what was granted proposes the same. Whatever else was proposed under this id, its end may still be
        // on its way to nodes: only a higher token is safe from it.
        let granted = known.is_some();
        let anew = !granted && (before.is_some() || attempt == 0);
        let mine = known.unwrap_or_else(|| {
            let token = inner.next_token(before.map_or(Token(0), |before| before.highest));
            let client = format!("{} {} {}", inner.channel, request.owner, request.label).into();
            Mine { token, highest: token, attempt, client, touched: 0, waits: before.is_some(), until: Moment(0) }
        });
        let mut this = Self { inner, name, request, mine, waits, round: None, granted, owed: false };
        this.propose(anew);
        this
    }

    fn propose(&mut self, anew: bool) {
        let fleet = &self.inner.fleet;
        let (name, request, mine, waits) = (&self.name, &self.request, &self.mine, self.waits);
        let proposal = Proposal { name, request, mine, anew, listed: anew && mine.waits, waits };
        let round = Round::start(fleet, self.request.ttl, |_| wire::claim(fleet.layout(), &proposal));
        self.mine.touched |= round.asked();
        self.owed = !self.granted;
        self.round = Some(round);
    }

    pub(super) async fn run(mut self) -> Result<Answer<Claimed>> {
        for rounds in 1.. {
            let Some(round) = self.round.take() else { break };
            let (token, ttl, number) = (self.mine.token, self.request.ttl, self.mine.number());
            let counted_from = round.begun();
            let outcome = round.claim_verdict(|| fresh(token, ttl, number)).await;
            match outcome.verdict {
                Verdict::Won(token) => {
                    let standing = outcome.standing(token).unwrap_or_else(|| fresh(token, ttl, number));
                    self.mine.waits |= self.waits.is_some() && outcome.busy() != 0;
                    return Ok(Answer { value: Claimed::Stands(self.won(token, standing)), counted_from });
                }
                Verdict::Busy => {
                    let place = outcome.place();
                    self.end_where(self.mine.touched & !outcome.busy());
                    return Ok(Answer { value: Claimed::Busy(place), counted_from });
                }
                Verdict::Above(_) if rounds == ROUNDS_MAX => {
                    // Outrun again and again: somebody else tries as well.
                    self.end_where(self.mine.touched);
                    return Ok(Answer { value: Claimed::Busy(outcome.place()), counted_from });
                }
                Verdict::Above(last) => {
                    self.mine.token = self.inner.next_token(last.max(self.mine.highest));
                    self.mine.highest = self.mine.token;
                    self.mine.waits |= self.waits.is_some() && outcome.busy() != 0;
                    // Most nodes have lost what was granted.
                    self.granted = false;
                    self.propose(true);
                }
                Verdict::Gone | Verdict::NoQuorum => {
                    let certainty = if self.mine.touched == 0 { Certainty::NotApplied } else { Certainty::Unknown };
                    return Err(self.inner.fleet.no_quorum(&outcome.why, certainty));
                }
            }
        }
        Err(self.inner.fleet.no_quorum(&[], Certainty::Unknown))
    }

    /// More than half of the nodes have it.
    fn won(&mut self, token: Token, mut standing: Standing) -> Standing {
        self.owed = false;
        if self.inner.fleet.layout() == Layout::Plain {
            // No tokens: its number is what the nodes were told first.
            self.mine.token = Token(standing.number);
            self.mine.highest = self.mine.token;
        } else {
            self.mine.token = token;
        }
        standing.number = self.mine.number();
        lock(&self.inner.refused).remove(&self.request.id);
        let now = self.inner.fleet.clock.now();
        self.mine.until = self.mine.until.max(now + standing.ttl);
        let mut claims = lock(&self.inner.claims);
        // Nearly all are taken out when they end; this is for those that were broken, or left to their ttl.
        if claims.len() == claims.capacity() {
            claims.retain(|_, mine| mine.until > now);
        }
        claims.insert(self.request.id, self.mine.clone());
        drop(claims);
        standing
    }

    /// Ends it on these nodes; its place among those that wait is kept, or taken.
    fn end_where(&mut self, nodes: u32) {
        self.owed = false;
        self.remember();
        if nodes != 0 {
            let (name, id, token) = (self.name.clone(), self.request.id, Some(self.mine.highest));
            let place = self.waits.map_or(InLine::None, |since| InLine::Stays(since, self.mine.client.clone()));
            let number = self.mine.number_of_its_own();
            round::end_behind(&self.inner.fleet, Ending { name, id, token, number, place }, nodes);
        }
    }

    /// Whoever asks again with this id has to know what was proposed before.
    fn remember(&self) {
        if self.waits.is_none() && self.mine.attempt == 0 {
            // A random id that is not asked for again, or if so, with a higher token.
            return;
        }
        let since = self.waits.unwrap_or(self.mine.highest.0);
        let mut refused = lock(&self.inner.refused);
        // Nearly all are taken out when they end; this is for those that were not.
        if refused.len() == refused.capacity() {
            let old = self.mine.token.0.saturating_sub(REFUSED_FOR);
            refused.retain(|_, refused| refused.highest.0 > old);
        }
        refused.insert(self.request.id, Refused { since, highest: self.mine.highest });
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if self.owed {
            self.end_where(self.mine.touched);
        }
    }
}

/// How a claim stands on a node that has just stored it.
pub(super) fn fresh(token: Token, ttl: Duration, number: u64) -> Standing {
    let ttl = Duration::from_millis(u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX));
    Standing { number, ttl, state: Ok(wire::granted(token)) }
}

impl Inner {
    /// A token to propose: above this one, and above all this client has proposed before.
    fn next_token(&self, above: Token) -> Token {
        let time = self.fleet.time();
        let next = |proposed: u64| {
            // Not after clocks were set back: nodes would not follow.
            let own = if proposed < time.saturating_add(LEAD_MAX) { proposed.saturating_add(1) } else { 0 };
            time.max(above.0.saturating_add(1)).max(own)
        };
        let before = self.proposed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |proposed| Some(next(proposed)));
        Token(next(before.unwrap_or_default()))
    }
}
