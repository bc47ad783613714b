//! What a node does with a message: the rule itself, the classic one, or a spoilt one.

use std::sync::Arc;

use super::world::{Seat, TICK};
use super::{Config, Mutation, Rule};
use crate::backends::redlock::ballot::{AHEAD_MAX, Held, Hello, Vote};
use crate::clock::Moment;
use crate::owner::ClaimId;
use crate::token::Token;

/// A message to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Request {
    Claim {
        claim: usize,
        round: u8,
        token: u64,
        anew: bool,
    },
    Renew {
        claim: usize,
        round: u8,
        token: u64,
    },
    Release {
        claim: usize,
        token: u64,
    },
    Hello {
        admin: usize,
        pass: u8,
        nonce: u64,
    },
    /// The names of the founders are small numbers here: a bit each.
    Admit {
        blank: u64,
        floor: u64,
        founders: u64,
    },
}

fn names(founders: u64) -> Arc<[u64]> {
    (0..64).filter(|name| founders & 1 << name != 0).collect()
}

/// What comes back.
pub(super) enum Answer {
    /// To which claim, in which of its rounds.
    Vote(usize, u8, Vote),
    /// To which admin, in which of its passes.
    Hello(usize, u8, Hello),
}

impl Seat {
    /// Handles a message; also says whether a claim was stored after its release.
    pub(super) fn answer(&mut self, config: &Config, request: Request, now: Moment) -> (Option<Answer>, bool) {
        match request {
            Request::Claim { claim, round, token, anew } => {
                let vote = self.claim(config, claim, Token(token), anew, now);
                (Some(Answer::Vote(claim, round, vote)), self.is_orphan(claim, token, vote))
            }
            Request::Renew { claim, round, token } => {
                let vote = self.renew(config, claim, Token(token), now);
                (Some(Answer::Vote(claim, round, vote)), self.is_orphan(claim, token, vote))
            }
            Request::Release { claim, token } => {
                self.release(config, claim, Token(token), now);
                (None, false)
            }
            Request::Hello { admin, pass, nonce } => (Some(Answer::Hello(admin, pass, self.node.hello(nonce))), false),
            Request::Admit { blank, floor, founders } => {
                self.admit(config, blank, Token(floor), names(founders));
                (None, false)
            }
        }
    }

    fn claim(&mut self, config: &Config, claim: usize, token: Token, anew: bool, now: Moment) -> Vote {
        let (id, ttl) = (ClaimId(config.ids[claim]), TICK * u32::from(config.ttl));
        if config.rule == Rule::Classic {
            return self.set_if_free(id, token, ttl, now);
        }
        let free = self.node.held.get(&()).is_none_or(|held| held.expires <= now);
        match config.mutation {
            Some(Mutation::BlankVotes) => self.node.member = true,
            Some(Mutation::ForgetAtExpiry) if free => self.node.last.clear(),
            Some(Mutation::EqualTokens) if free && self.node.last.get(&()) == Some(&token) => {
                self.node.last.insert((), Token(token.0 - 1));
            }
            _ => {}
        }
        self.node.claim(&(), id, token, ttl, anew, now)
    }

    fn renew(&mut self, config: &Config, claim: usize, token: Token, now: Moment) -> Vote {
        let (id, ttl) = (ClaimId(config.ids[claim]), TICK * u32::from(config.ttl));
        if config.rule == Rule::Ballots {
            // The client restores only what a majority has; here it may always.
            return self.node.renew(&(), id, Some(token), ttl, true, now);
        }
        match self.node.held.get_mut(&()) {
            Some(held) if held.expires > now && held.id == id => {
                held.expires = now + ttl;
                Vote::Stored(token)
            }
            _ => Vote::Gone,
        }
    }

    fn release(&mut self, config: &Config, claim: usize, token: Token, now: Moment) {
        let id = ClaimId(config.ids[claim]);
        if config.rule == Rule::Classic {
            self.node.held.retain(|(), held| held.id != id);
            return;
        }
        let last = self.node.last.clone();
        if config.mutation == Some(Mutation::ReleaseAnyToken)
            && self.node.held.get(&()).is_some_and(|held| held.id == id)
        {
            self.node.held.clear();
        }
        self.node.release(&(), id, Some(token), now);
        match config.mutation {
            Some(Mutation::ForgetAtRelease) => self.node.last.clear(),
            Some(Mutation::ReleaseWithoutRaise) => self.node.last = last,
            _ => {}
        }
        // A token from the future is not followed, not even to end it.
        if self.node.member && token.0 <= (now + AHEAD_MAX).0 {
            self.ended[claim] = self.ended[claim].max(Some(token.0));
        }
    }

    fn admit(&mut self, config: &Config, blank: u64, floor: Token, founders: Arc<[u64]>) {
        match config.mutation {
            Some(Mutation::FloorZero) => self.node.admit(blank, Token(0), founders),
            Some(Mutation::AdmitAnyBlank) => {
                let named = self.node.hello(blank).blank;
                self.node.admit(named.unwrap_or(blank), floor, founders);
            }
            _ => self.node.admit(blank, floor, founders),
        }
    }

    /// `SET NX PX`.
    fn set_if_free(&mut self, id: ClaimId, token: Token, ttl: std::time::Duration, now: Moment) -> Vote {
        if self.node.held.get(&()).is_some_and(|held| held.expires > now) {
            return Vote::Busy;
        }
        self.node.held.insert((), Held { id, token, ttl, expires: now + ttl });
        Vote::Stored(token)
    }

    fn is_orphan(&self, claim: usize, token: u64, vote: Vote) -> bool {
        vote == Vote::Stored(Token(token)) && self.ended[claim].is_some_and(|ended| token <= ended)
    }
}
