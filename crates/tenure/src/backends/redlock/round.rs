//! One question to all nodes at once, and what their answers come to.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::Value;

use super::ballot::{self, ROUND_MAX, Tally, Verdict, Vote};
use super::fleet::{BLANK, Fleet};
use super::wire::{self, Ending, Mine, Said};
use crate::backend::{Place, Released, RenewRequest, Renewed, Standing};
use crate::backends::redis::failure::Values;
use crate::backends::redis::foreign;
use crate::backends::redis::lane::Work;
use crate::backends::redis::url::Layout;
use crate::clock::Moment;
use crate::error::{Certainty, Error, Result};
use crate::token::Token;

/// How long a renewal is waited for at most: well before its round is void.
const RENEWAL_MAX: Duration = Duration::from_millis(900);
/// How long a round lasts at most: well before it is void.
const BUDGET_MAX: Duration = Duration::from_millis(1500);
/// How long the end of a claim is waited for.
const END_MAX: Duration = Duration::from_millis(500);

type Asked = Pin<Box<dyn Future<Output = (usize, Vec<Result<Value>>)> + Send>>;

/// Answers under way.
pub(super) struct Round {
    fleet: Arc<Fleet>,
    begun: Moment,
    limit: Moment,
    patience: Duration,
    /// How long it may last while nodes are busy answering.
    budget: Duration,
    calls: FuturesUnordered<Asked>,
    asked: u32,
}

/// What a round came to for one claim.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    said: Vec<(usize, Said)>,
    /// What is wrong with nodes that did not count.
    pub(super) why: Vec<(usize, String)>,
}

impl Round {
    /// Asks all nodes that are to be asked. The requests are on their way when this returns.
    pub(super) fn start(fleet: &Arc<Fleet>, ttl: Duration, work: impl Fn(usize) -> Work) -> Self {
        // Over before whoever asked gives up: two tries of one claim must not meet.
        let budget = (ttl / 6).clamp(Duration::from_millis(100), BUDGET_MAX);
        Self::start_each(fleet, fleet.node_timeout(ttl).min(budget), budget, |index| {
            let call = fleet.ask(index, work(index), false)?;
            Some(Box::pin(async move {
                let answer = call.await.map(|values| values.into_iter().next().unwrap_or(Value::Nil));
                (index, vec![answer])
            }))
        })
    }

    fn start_each(
        fleet: &Arc<Fleet>,
        patience: Duration,
        budget: Duration,
        ask: impl Fn(usize) -> Option<Asked>,
    ) -> Self {
        let begun = fleet.clock.now();
        let limit = begun + patience;
        let calls = FuturesUnordered::new();
        let mut asked = 0;
        for index in 0..fleet.members.len() {
            if let Some(call) = ask(index) {
                asked |= 1 << index;
                calls.push(call);
            }
        }
        Self { fleet: fleet.clone(), begun, limit, patience, budget, calls, asked }
    }

    /// A clock reading from before anything was sent.
    pub(super) fn begun(&self) -> Moment {
        self.begun
    }

    /// The nodes that were asked, a bit each.
    pub(super) fn asked(&self) -> u32 {
        self.asked
    }

    /// The verdict on a claim, as soon as there is one.
    pub(super) async fn claim_verdict(mut self, fresh: impl Fn() -> Standing) -> Outcome {
        let mut outcomes = self.verdicts(1, |_| fresh()).await;
        outcomes.pop().unwrap_or(Outcome { verdict: Verdict::NoQuorum, said: Vec::new(), why: Vec::new() })
    }

    /// The verdicts on several claims that were asked for together.
    async fn verdicts(&mut self, count: usize, fresh: impl Fn(usize) -> Standing) -> Vec<Outcome> {
        let nodes = self.fleet.members.len();
        let mut claims: Vec<Claim> = (0..count).map(|_| Claim::new(nodes)).collect();
        for index in (0..nodes).filter(|index| self.asked & (1 << index) == 0) {
            claims.iter_mut().for_each(|claim| claim.count(index, None));
        }
        while claims.iter().any(|claim| claim.tally.verdict().is_none()) {
            let (index, answers) = match self.fleet.before(self.limit, self.calls.next()).await {
                Some(Some(answer)) => answer,
                Some(None) => break,
                None if self.is_worth_waiting(&claims) => continue,
                None => break,
            };
            let mut answers = answers.into_iter();
            for (at, claim) in claims.iter_mut().enumerate() {
                let said = match answers.next() {
                    Some(Ok(value)) => self.judge(index, &value, || fresh(at)),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("did not answer in full".to_owned()),
                };
                match said {
                    Ok(said) => claim.count(index, Some(said)),
                    Err(why) => {
                        claim.why.push((index, why));
                        claim.count(index, None);
                    }
                }
            }
        }
        // What was read too late is void: see `ROUND_MAX`.
        let void = self.fleet.clock.now().since(self.begun) > ROUND_MAX;
        claims.into_iter().map(|claim| claim.end(nodes, self.patience, void)).collect()
    }

    /// Whether a node that has not answered yet is busy answering: what it is asked for has to wait its turn here, and
    /// that is no silence of the node.
    fn is_worth_waiting(&mut self, claims: &[Claim]) -> bool {
        let now = self.fleet.clock.now();
        let open = |index: &usize| {
            self.asked & (1 << index) != 0 && claims.iter().any(|claim| claim.counted & (1 << index) == 0)
        };
        let answering = |index: usize| self.fleet.members[index].node.silent_for() < self.patience;
        let worth = (0..self.fleet.members.len()).filter(open).any(answering);
        self.limit = now + (self.patience / 4).max(Duration::from_millis(1));
        worth && now.since(self.begun) + self.patience < self.budget
    }

    /// What a node says, unless it must not count.
    fn judge(&self, index: usize, value: &Value, fresh: impl FnOnce() -> Standing) -> Result<Said, String> {
        let fleet = &self.fleet;
        if wire::is_stranger(value) {
            fleet.found_stranger(index);
        }
        let said = wire::said(fleet.layout(), value, fresh).map_err(|error| error.to_string())?;
        if fleet.layout() != Layout::Plain
            && let Some(ahead) = fleet.far_ahead(index)
        {
            return Err(format!("its clock is {} s ahead of the others", ahead.as_secs()));
        }
        match said.vote() {
            Vote::Blank => {
                fleet.found_blank(index);
                Err(BLANK.to_owned())
            }
            Vote::Ahead => Err("its clock is behind the others by more than 10 s".to_owned()),
            Vote::Behind(last) | Vote::Stored(last)
                if last.0 > fleet.time().saturating_add(crate::clock::micros(ballot::AHEAD_MAX)) =>
            {
                Err(format!("has seen a token of this name far in the future ({})", last.0))
            }
            _ => Ok(said),
        }
    }
}

/// One claim of a round.
struct Claim {
    tally: Tally,
    counted: u32,
    said: Vec<(usize, Said)>,
    why: Vec<(usize, String)>,
}

impl Claim {
    fn new(nodes: usize) -> Self {
        Self { tally: Tally::new(nodes), counted: 0, said: Vec::new(), why: Vec::new() }
    }

    fn count(&mut self, index: usize, said: Option<Said>) {
        self.counted |= 1 << index;
        self.tally.count(said.as_ref().map(Said::vote));
        self.said.extend(said.map(|said| (index, said)));
    }

    fn end(mut self, nodes: usize, patience: Duration, void: bool) -> Outcome {
        let verdict = self.tally.verdict().unwrap_or_else(|| {
            for index in (0..nodes).filter(|index| self.counted & (1 << index) == 0) {
                self.why.push((index, format!("did not answer within {patience:?}")));
                self.tally.count(None);
            }
            self.tally.verdict().unwrap_or(Verdict::NoQuorum)
        });
        let Self { said, mut why, .. } = self;
        if void && !matches!(verdict, Verdict::Busy | Verdict::Gone) {
            why.extend(said.iter().map(|(index, _)| (*index, "its answer was read too late".to_owned())));
            return Outcome { verdict: Verdict::NoQuorum, said, why };
        }
        Outcome { verdict, said, why }
    }
}

impl Outcome {
    /// How a claim stands that has won with this token: with the shortest ttl that any node gives it.
    pub(super) fn standing(&self, token: Token) -> Option<Standing> {
        let stands = |said: &Said| match said {
            Said::Holds(standing) if said.vote() == Vote::Stored(token) => Some(standing.clone()),
            _ => None,
        };
        self.said.iter().filter_map(|(_, said)| stands(said)).min_by_key(|standing| standing.ttl)
    }

    /// Who has the name instead.
    pub(super) fn place(&self) -> Place {
        let place =
            self.said.iter().find_map(|(_, said)| if let Said::Busy(place) = said { Some(place) } else { None });
        place.cloned().unwrap_or_else(|| Place {
            ahead: 1,
            waiters_ahead: 0,
            holder: "somebody who tries at the same time".into(),
            holder_expires_in: Duration::ZERO,
            holder_ttl: Duration::ZERO,
        })
    }

    /// The nodes that surely have nothing of the claim, since another has the name there.
    pub(super) fn busy(&self) -> u32 {
        self.said.iter().filter(|(_, said)| said.vote() == Vote::Busy).fold(0, |nodes, (index, _)| nodes | 1 << index)
    }

    /// The nodes that do not have the claim.
    fn lacking(&self) -> u32 {
        self.said.iter().filter(|(_, said)| said.vote() == Vote::Gone).fold(0, |nodes, (index, _)| nodes | 1 << index)
    }

    fn renewed(&self, fleet: &Fleet, mine: Option<&Mine>) -> Renewed {
        match self.verdict {
            Verdict::Won(token) => match self.standing(token) {
                Some(mut standing) => {
                    standing.number = mine.map_or(standing.number, Mine::number);
                    Renewed::Stands(standing)
                }
                None => Renewed::Unknown("the nodes do not say how it stands".into()),
            },
            Verdict::Gone => {
                let broken = self.said.iter().find_map(|(_, said)| match said {
                    Said::Broken(by, reason) => Some(Renewed::Broken { by: by.clone(), reason: reason.clone() }),
                    _ => None,
                });
                broken.unwrap_or(Renewed::Gone)
            }
            Verdict::Busy | Verdict::Above(_) | Verdict::NoQuorum => {
                let gone = self.said.iter().filter(|(_, said)| said.vote() == Vote::Gone);
                let gone = gone.map(|(index, _)| (*index, "no longer has the claim".to_owned()));
                let why: Vec<(usize, String)> = self.why.iter().cloned().chain(gone).collect();
                Renewed::Unknown(fleet.no_quorum(&why, Certainty::Unknown).to_string().into())
            }
        }
    }
}

/// Renews claims on all nodes; one answer for each.
pub(super) fn renew(
    fleet: &Arc<Fleet>,
    batch: Vec<(RenewRequest, Option<Mine>)>,
    fresh: bool,
) -> impl Future<Output = Vec<(RenewRequest, Option<Mine>, Renewed)>> + Send + use<> {
    let ttl = batch.iter().map(|(claim, _)| claim.ttl).max().unwrap_or_default();
    // None is asked for by those who leave it as it is.
    let ttl = if ttl.is_zero() { crate::TTL_DEFAULT } else { ttl };
    let layout = fleet.layout();
    // Nobody waits for a renewal: it has until it is repeated.
    let patience = fleet.node_timeout(ttl).max(ttl / 9).min(RENEWAL_MAX);
    let mut round = Round::start_each(fleet, patience, BUDGET_MAX, |index| {
        if layout == Layout::Plain {
            let one = |(claim, _): &(RenewRequest, Option<Mine>)| {
                fleet.ask(index, foreign::renew(layout, &claim.name, claim.id, claim.ttl), fresh)
            };
            let calls: Vec<_> = batch.iter().map(one).collect::<Option<_>>()?;
            return Some(Box::pin(async move {
                let answers = join_all(calls).await.into_iter();
                let first = |values: Values| values.into_iter().next().unwrap_or(Value::Nil);
                (index, answers.map(|answer| answer.map(first)).collect())
            }));
        }
        let (call, count) = (fleet.ask(index, wire::renew(&batch, false), fresh)?, batch.len());
        Some(Box::pin(async move {
            match call.await {
                Ok(values) => (index, values.into_iter().map(Ok).collect()),
                Err(error) => (index, (0..count).map(|_| Err(error.again())).collect()),
            }
        }))
    });
    let fleet = fleet.clone();
    async move {
        let nothing = |_| Standing { number: 0, ttl: Duration::ZERO, state: Ok(wire::granted(Token(0))) };
        let outcomes = round.verdicts(batch.len(), nothing).await;
        let answered: Vec<_> = batch
            .into_iter()
            .zip(outcomes)
            .map(|((claim, mine), outcome)| {
                let renewed = outcome.renewed(&fleet, mine.as_ref());
                (claim, mine, renewed, outcome.lacking())
            })
            .collect();
        if layout != Layout::Plain {
            restore_behind(&fleet, round, &answered);
        }
        answered.into_iter().map(|(claim, mine, renewed, _)| (claim, mine, renewed)).collect()
    }
}

/// Most nodes have these claims: those that missed them, or where they ran out during an outage, take them too, also
/// those that answer late.
fn restore_behind(fleet: &Arc<Fleet>, mut round: Round, answered: &[(RenewRequest, Option<Mine>, Renewed, u32)]) {
    let stands = |renewed: &Renewed| matches!(renewed, Renewed::Stands(_));
    let whole: Vec<Option<(RenewRequest, Option<Mine>)>> = answered
        .iter()
        .map(|(claim, mine, renewed, _)| {
            mine.as_ref().filter(|_| stands(renewed)).map(|mine| (claim.clone(), Some(mine.clone())))
        })
        .collect();
    for index in 0..fleet.members.len() {
        let lacking = answered.iter().zip(&whole).filter(|((.., lacking), _)| lacking & (1 << index) != 0);
        let lacking: Vec<_> = lacking.filter_map(|(_, whole)| whole.clone()).collect();
        if !lacking.is_empty() {
            drop(fleet.ask(index, wire::renew(&lacking, true), false));
        }
    }
    if round.calls.is_empty() || whole.iter().all(Option::is_none) {
        return;
    }
    let fleet = fleet.clone();
    fleet.runtime.clone().spawn(async move {
        let limit = round.begun + BUDGET_MAX;
        while let Some(Some((index, answers))) = fleet.before(limit, round.calls.next()).await {
            let lacking = answers.iter().zip(&whole).filter(|(answer, _)| matches!(answer, Ok(Value::Int(0))));
            let lacking: Vec<_> = lacking.filter_map(|(_, whole)| whole.clone()).collect();
            if !lacking.is_empty() {
                drop(fleet.ask(index, wire::renew(&lacking, true), false));
            }
        }
    });
}

/// The end of a claim under way on the nodes that may have it. What is not answered when it is dropped is seen to.
struct End {
    fleet: Arc<Fleet>,
    ending: Ending,
    calls: FuturesUnordered<Asked>,
    /// Nodes that have not answered yet.
    open: u32,
    /// Nodes that were not asked, or failed.
    failed: Vec<usize>,
    /// How many nodes have lost their data, and the claim with it.
    blank: usize,
}

impl Drop for End {
    fn drop(&mut self) {
        let (calls, failed) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.failed));
        self.fleet.see_to(calls, self.open, failed, self.ending.clone());
    }
}

/// Ends a claim in the background, however late nodes answer.
pub(super) fn end_behind(fleet: &Arc<Fleet>, ending: Ending, touched: u32) {
    drop(End::start(fleet, ending, touched));
}

/// Ends a claim: the answer is there when more than half have given it, the rest is seen to behind.
pub(super) fn end(
    fleet: &Arc<Fleet>,
    ending: Ending,
    touched: u32,
) -> impl Future<Output = Result<Released>> + Send + use<> {
    End::start(fleet, ending, touched).answer()
}

impl End {
    fn start(fleet: &Arc<Fleet>, ending: Ending, touched: u32) -> Self {
        let mut this = Self {
            fleet: fleet.clone(),
            ending,
            calls: FuturesUnordered::new(),
            open: 0,
            failed: Vec::new(),
            blank: 0,
        };
        for index in (0..fleet.members.len()).filter(|index| touched & (1 << index) != 0) {
            match fleet.ask(index, wire::release(fleet.layout(), &this.ending), false) {
                Some(call) => {
                    this.open |= 1 << index;
                    this.calls.push(Box::pin(async move {
                        let answer = call.await.map(|values| values.into_iter().next().unwrap_or(Value::Nil));
                        (index, vec![answer])
                    }));
                }
                None if fleet.members[index].is_blank() => this.blank += 1,
                None => this.failed.push(index),
            }
        }
        this
    }

    async fn answer(mut self) -> Result<Released> {
        let limit = self.fleet.clock.now() + END_MAX;
        let needed = self.fleet.quorum();
        let (mut yes, mut answered, mut broken) = (0, self.blank, None);
        let mut why: Vec<(usize, String)> = Vec::new();
        while yes < needed {
            let Some(Some((index, mut answers))) = self.fleet.before(limit, self.calls.next()).await else { break };
            self.open &= !(1 << index);
            let answer = answers.pop().unwrap_or(Ok(Value::Nil));
            match answer.and_then(|value| crate::backends::redis::wire::released(&value)) {
                Ok(Released::Yes) => yes += 1,
                Ok(Released::NotFound) => {}
                Ok(other) => broken = Some(other),
                Err(error) => {
                    why.push((index, error.to_string()));
                    self.failed.push(index);
                    continue;
                }
            }
            answered += 1;
        }
        match broken {
            _ if yes >= needed || yes > 0 && answered >= needed => Ok(Released::Yes),
            Some(broken) if answered >= needed => Ok(broken),
            None if answered >= needed => Ok(Released::NotFound),
            _ => Err(self.unknown(&why)),
        }
    }

    fn unknown(&self, why: &[(usize, String)]) -> Error {
        self.fleet.no_quorum(why, Certainty::Unknown)
    }
}
