//! PURE: what one node does with a proposed token, and what the nodes' answers add up to.
//!
//! A token is a ballot: the client proposes it to all nodes, a node stores it if it is above everything it has stored
//! for the name, and the claim holds once more than half of all nodes have stored this very token. Two majorities
//! share a node, and a node's `last` only grows, so a later holder's token is the larger one, whatever the clocks did.
//!
//! `ballots.lua` is this [`Node`] inside Redis, and a test holds the two together; the model checker explores both
//! halves as they stand here.

#[cfg(test)]
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
use crate::clock::Moment;
#[cfg(test)]
use crate::owner::ClaimId;
use crate::token::Token;

/// How far a token or a clock may be ahead before nobody follows it.
pub(super) const AHEAD_MAX: Duration = Duration::from_secs(10);

/// How many nodes are more than half.
pub(super) fn quorum(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// What a node answers to a claim or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Vote {
    /// It holds the name for this claim, with this token, for another ttl.
    Stored(Token),
    /// Another claim has the name here.
    Busy,
    /// A token up to this one was seen before, for this name.
    Behind(Token),
    /// The token is too far in the future, by this node's clock.
    Ahead,
    /// It does not have the claim and cannot take it: a renewal that came too late.
    Gone,
    /// It has lost its data, or never had any: it takes no part until it is admitted.
    Blank,
}

/// One node, as far as safety goes. In Redis it is the script that does this.
#[cfg(test)]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Node<N: Ord> {
    /// Whether it takes part.
    pub(super) member: bool,
    /// Names the time since it was last found without data: whoever admits it must mean this very time.
    pub(super) blank: Option<u64>,
    /// At least as high as every `last` that it no longer keeps.
    pub(super) floor: Token,
    /// The highest token it has stored for each name, of late; and a while ago.
    pub(super) last: BTreeMap<N, Token>,
    pub(super) old: BTreeMap<N, Token>,
    /// Whose the last token of a name is, as long as that claim has not ended.
    pub(super) claimant: BTreeMap<N, ClaimId>,
    /// At least as high as every token in each of the two.
    pub(super) top: Token,
    pub(super) old_top: Token,
    /// Who has each name.
    pub(super) held: BTreeMap<N, Held>,
    /// The longest ttl it was ever asked for.
    pub(super) ttl_max: Duration,
    /// As in [`Hello`].
    pub(super) founders: Arc<[u64]>,
}

/// What a node says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hello {
    /// Names the time since it was found without data; none if it takes part.
    pub(super) blank: Option<u64>,
    /// The highest token it may ever have stored.
    pub(super) highest: Token,
    /// The longest ttl it was ever asked for.
    pub(super) ttl_max: Duration,
    /// What the nodes of its fleet called their blank times when it began; none if it takes no part.
    pub(super) founders: Arc<[u64]>,
}

/// A claim in a node.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) id: ClaimId,
    pub(super) token: Token,
    pub(super) ttl: Duration,
    /// By the node's clock.
    pub(super) expires: Moment,
}

#[cfg(test)]
impl<N: Ord + Clone> Node<N> {
    /// Proposes a token for a claim. `anew` if this client has proposed another one for it before; else a node that
    /// has the claim already answers with the token it has.
    pub(super) fn claim(
        &mut self,
        name: &N,
        id: ClaimId,
        token: Token,
        ttl: Duration,
        anew: bool,
        now: Moment,
    ) -> Vote {
        if !self.member {
            return Vote::Blank;
        }
        self.cover(token, now);
        match self.holder(name, now) {
            Some(held) if held.id != id => Vote::Busy,
            Some(held) if held.token == token || !anew => self.prolong(name, held, ttl, now),
            _ => self.store(name, id, token, ttl, now),
        }
    }

    /// Renews a claim; to `restore` it, also where the node missed it so far or it ran out: by the rule of the grant.
    pub(super) fn renew(
        &mut self,
        name: &N,
        id: ClaimId,
        token: Option<Token>,
        ttl: Duration,
        restore: bool,
        now: Moment,
    ) -> Vote {
        if !self.member {
            return Vote::Blank;
        }
        self.cover(token.unwrap_or_default(), now);
        match (self.holder(name, now), token) {
            (Some(held), _) if held.id != id => Vote::Gone,
            (Some(held), token) if token.is_none_or(|token| held.token == token) => {
                self.keep(name);
                self.prolong(name, held, ttl, now)
            }
            (None, Some(token)) if restore => match self.store(name, id, token, ttl, now) {
                Vote::Stored(token) => Vote::Stored(token),
                _ => Vote::Gone,
            },
            _ => Vote::Gone,
        }
    }

    /// Ends a claim. With its token, a request of it that arrives later finds the name taken by nobody and is refused
    /// all the same. Whether the node had it.
    pub(super) fn release(&mut self, name: &N, id: ClaimId, token: Option<Token>, now: Moment) -> bool {
        if !self.member {
            return false;
        }
        self.cover(token.unwrap_or_default(), now);
        // A later attempt of the same claim has a higher token: it is not this one's to end.
        let meant = |held: Held| held.id == id && token.is_none_or(|token| held.token <= token);
        let had = self.holder(name, now).is_some_and(meant);
        // One that has expired goes too: clocks may be set back.
        if self.held.get(name).copied().is_some_and(meant) {
            self.held.remove(name);
        }
        let last = self.last(name);
        if self.claimant.get(name) == Some(&id) && token.is_none_or(|token| last <= token) {
            self.remember(name, last, None);
        }
        if let Some(token) = token
            && self.allows(name, token, None, now).is_ok()
        {
            self.remember(name, token, None);
        }
        had
    }

    /// Forgets what it stored longest ago: the floor takes its place.
    pub(super) fn forget_oldest(&mut self) {
        self.floor = self.floor.max(self.old_top);
        self.old = std::mem::take(&mut self.last);
        self.old_top = std::mem::take(&mut self.top);
        self.claimant.retain(|name, _| self.old.contains_key(name));
    }

    /// Whether it takes part, and if not, since when: `nonce` names that time unless it has a name already.
    pub(super) fn hello(&mut self, nonce: u64) -> Hello {
        if !self.member {
            self.blank.get_or_insert(nonce);
        }
        Hello { blank: self.blank, highest: self.highest(), ttl_max: self.ttl_max, founders: self.founders.clone() }
    }

    /// Takes part from now on, unless it lost its data once more since it was found blank.
    pub(super) fn admit(&mut self, blank: u64, floor: Token, founders: Arc<[u64]>) {
        if !self.member && self.blank == Some(blank) {
            self.member = true;
            self.founders = founders;
            self.blank = None;
            (self.floor, self.top, self.old_top) = (floor, Token(0), Token(0));
            self.last.clear();
            self.old.clear();
            self.claimant.clear();
        }
    }

    /// The highest token it may ever have stored.
    fn highest(&self) -> Token {
        self.top.max(self.old_top).max(self.floor)
    }

    fn holder(&self, name: &N, now: Moment) -> Option<Held> {
        self.held.get(name).copied().filter(|held| held.expires > now)
    }

    fn last(&self, name: &N) -> Token {
        self.last.get(name).or_else(|| self.old.get(name)).copied().unwrap_or(self.floor)
    }

    /// Written before a token is stored, for all that are asked for together: it may be too high, never too low.
    fn cover(&mut self, token: Token, now: Moment) {
        if token.0 <= (now + AHEAD_MAX).0 {
            self.top = self.top.max(token);
        }
    }

    fn remember(&mut self, name: &N, token: Token, id: Option<ClaimId>) {
        self.top = self.top.max(token);
        self.last.insert(name.clone(), token);
        match id {
            Some(id) => self.claimant.insert(name.clone(), id),
            None => self.claimant.remove(name),
        };
    }

    /// What is in use does not grow old.
    fn keep(&mut self, name: &N) {
        if !self.last.contains_key(name)
            && let Some(token) = self.old.get(name).copied()
        {
            self.top = self.top.max(token);
            self.last.insert(name.clone(), token);
        }
    }

    fn allows(&self, name: &N, token: Token, id: Option<ClaimId>, now: Moment) -> Result<(), Vote> {
        let last = self.last(name);
        // A claim that has run out here and that nobody followed may go on.
        if token == last && id.is_some() && self.claimant.get(name).copied() == id {
            return Ok(());
        }
        if token <= last {
            return Err(Vote::Behind(last));
        }
        // No clock from the future can make a name's tokens run away.
        if token.0 > last.0 + 1 && token.0 > (now + AHEAD_MAX).0 {
            return Err(Vote::Ahead);
        }
        Ok(())
    }

    fn store(&mut self, name: &N, id: ClaimId, token: Token, ttl: Duration, now: Moment) -> Vote {
        if let Err(vote) = self.allows(name, token, Some(id), now) {
            return vote;
        }
        self.remember(name, token, Some(id));
        self.ttl_max = self.ttl_max.max(ttl);
        self.held.insert(name.clone(), Held { id, token, ttl, expires: now + ttl });
        Vote::Stored(token)
    }

    /// A shorter ttl keeps the longer one.
    fn prolong(&mut self, name: &N, held: Held, ttl: Duration, now: Moment) -> Vote {
        let ttl = ttl.max(held.ttl);
        self.ttl_max = self.ttl_max.max(ttl);
        self.held.insert(name.clone(), Held { ttl, expires: now + ttl, ..held });
        Vote::Stored(held.token)
    }
}

/// What the answers of a round add up to so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// More than half hold the name for this claim, with one token.
    Won(Token),
    /// Others have it on so many nodes that it cannot be won, or enough that somebody else tries as well.
    Busy,
    /// Propose a token above this one, to all nodes.
    Above(Token),
    /// A renewal: too many nodes do not have the claim.
    Gone,
    /// Too few nodes answer.
    NoQuorum,
}

/// The answers of one round.
#[derive(Clone, Debug)]
pub(super) struct Tally {
    nodes: usize,
    answered: usize,
    /// The tokens that nodes have stored for the claim: nearly always one.
    stored: Vec<(Token, usize)>,
    busy: usize,
    gone: usize,
    /// No answer, or one that does not count.
    silent: usize,
    /// The highest `last` that was answered.
    highest: Token,
}

impl Tally {
    pub(super) fn new(nodes: usize) -> Self {
        Self { nodes, answered: 0, stored: Vec::new(), busy: 0, gone: 0, silent: 0, highest: Token(0) }
    }

    /// Counts an answer; `None` for one that did not come, or must not count.
    pub(super) fn count(&mut self, vote: Option<Vote>) {
        self.answered += 1;
        match vote {
            Some(Vote::Stored(token)) => {
                self.highest = self.highest.max(token);
                match self.stored.iter_mut().find(|(stored, _)| *stored == token) {
                    Some((_, count)) => *count += 1,
                    None => self.stored.push((token, 1)),
                }
            }
            Some(Vote::Busy) => self.busy += 1,
            Some(Vote::Gone) => self.gone += 1,
            Some(Vote::Behind(last)) => self.highest = self.highest.max(last),
            Some(Vote::Ahead | Vote::Blank) | None => self.silent += 1,
        }
    }

    /// The verdict, as soon as no further answer can change it. Once every node has been counted there is one.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        let needed = quorum(self.nodes);
        if let Some((token, _)) = self.stored.iter().find(|(_, count)| *count >= needed) {
            return Some(Verdict::Won(*token));
        }
        let spare = self.nodes - needed;
        if self.busy > spare {
            return Some(Verdict::Busy);
        }
        if self.gone > spare {
            return Some(Verdict::Gone);
        }
        if self.answered < self.nodes {
            return None;
        }
        if self.silent > spare {
            return Some(Verdict::NoQuorum);
        }
        if self.busy > 0 {
            // Split, or nearly: whoever tries again later finds it decided.
            return Some(Verdict::Busy);
        }
        if self.gone > 0 {
            // Those that are silent may have it.
            return Some(Verdict::NoQuorum);
        }
        Some(Verdict::Above(self.highest))
    }
}

/// What is to be done about nodes that take no part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Nobody has ever been asked for anything, or everybody lost everything: these begin, with the nodes' time as the
    /// floor, or what is highest if that is more, if all nodes still say the same when they are asked once more.
    /// Otherwise one may have served, and lost its data again, between two questions.
    NewFleet(Vec<usize>, Token),
    /// These begin, with this floor.
    Admit(Vec<usize>, Token),
    /// Some have to be looked at again when they have been blank for this long.
    Wait(Duration),
    /// Nothing.
    Nothing,
}

/// The longest time from the first request of a round to its verdict: a later one is void. So whoever waits this long
/// after a node was found blank knows of every claim that this node has helped to grant.
pub(super) const ROUND_MAX: Duration = Duration::from_secs(2);

/// Decides about nodes without data. `hellos`: what each node says of itself, none if it does not answer; `seen`: for
/// how long each has been known blank, under the name it now gives. Both passes over all nodes must have said the same
/// before a fleet counts as new: otherwise a node may have served, and lost its data again, between two questions.
pub(super) fn admission(hellos: &[Option<Hello>], seen: &[Duration]) -> Admission {
    let blank = |index: &usize| hellos[*index].as_ref().and_then(|hello| hello.blank);
    let blanks: Vec<usize> = (0..hellos.len()).filter(|index| blank(index).is_some()).collect();
    if blanks.is_empty() {
        return Admission::Nothing;
    }
    let members: Vec<&Hello> = hellos.iter().flatten().filter(|hello| hello.blank.is_none()).collect();
    let floor = members.iter().map(|hello| hello.highest).max().unwrap_or_default();
    if hellos.iter().all(Option::is_some) && members.iter().all(|hello| hello.ttl_max.is_zero()) {
        // Whoever began the fleet may have died half way. A node that has the name it had then was never let in.
        let founder = |index: &usize| {
            let named = |member: &&Hello| blank(index).is_some_and(|name| member.founders.contains(&name));
            members.is_empty() || members.iter().any(named)
        };
        let founders: Vec<usize> = blanks.iter().copied().filter(founder).collect();
        if !founders.is_empty() {
            return Admission::NewFleet(founders, floor);
        }
    }
    // So many that every majority a blank node was part of has one of them.
    if members.len() < hellos.len() - quorum(hellos.len()) + 1 {
        return Admission::Nothing;
    }
    let ttl_max = members.iter().map(|hello| hello.ttl_max).max().unwrap_or_default().max(ROUND_MAX);
    // Clocks run at different rates.
    let wait = ttl_max + ttl_max / 100 + Duration::from_millis(2);
    let ripe: Vec<usize> =
        blanks.into_iter().filter(|index| seen.get(*index).is_some_and(|seen| *seen >= wait)).collect();
    if ripe.is_empty() {
        return Admission::Wait(wait);
    }
    Admission::Admit(ripe, floor)
}

/// The middle one of the nodes' clocks: as long as most are right, so is it.
pub(super) fn median(mut times: Vec<i64>) -> Option<i64> {
    times.sort_unstable();
    times.get(times.len().checked_sub(1)? / 2).copied()
}
