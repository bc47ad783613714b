//! A model of Redlock for the model checker: clients, nodes, a slow network and the resource that they protect.
//!
//! It drives the code of [`ballot`](super::ballot) itself: `Node` for one name, `Tally`, `admission`, `ROUND_MAX`.
//! Every state that can be reached within the bounds of a [`Config`] is looked at ([`runs`]).
//!
//! # What may happen
//! - A message is a thing in its node's inbox, delivered at any later time and in any order, some of them twice. One
//!   that is never delivered is lost; so is a crash or a pause of a client: it just does nothing more, or much later.
//!   A reply is read when the client comes to its verdict, or (bounded) never.
//! - A client proposes any token of a small set, whatever it knows, as clocks and what was heard may differ. So nothing
//!   of one attempt matters to the next, and a client that tries twice is two claims (those may share a claim id).
//! - A restart with data changes nothing but which messages are lost. One without leaves `Node::default()`; never do
//!   all nodes lose their data, which looks like a new fleet.
//! - Node clocks step by two ticks. A round may last one tick and an admission waits for two, or for more if the ttl is
//!   longer. Clients measure elapsed time only.
//! - A write is sent while its holder believes it holds, and arrives at any later time.
//!
//! Nodes are alike, so the state keeps them sorted: one of up to 120 orders stands for all.
//!
//! # What must hold
//! Tokens of different claim ids differ; a claim that began after another was reported has the higher token; so no
//! write of an older holder is accepted after one of a newer. A request that arrives after the release of its claim is
//! not stored. Where no clock steps, no two holders believe at once. [`Mutation`] spoils the rule in one place each:
//! all of these are found (`HelloTwice` only in the deep run). `ReleaseWithoutRaise`, `ReleaseAnyToken` and
//! `RetryPlain` do not break the order of tokens: they make orphans, or end a lease that is believed in.
//!
//! # How much
//! About 1,150,000 states of the ballots in the exhaustive runs, 280,000 of them with 5 nodes. All faults together, 4
//! claims and 3 rounds are too many to exhaust: random walks with a fixed seed take 450,000 steps through them.
//! `TENURE_MODEL_DEEP=1` explores more, for many minutes; `TENURE_MODEL_PATHS=1` shows how a spoilt rule fails.

mod nodes;
mod runs;
mod world;

use stateright::{Model, Property};

use nodes::Request;
use world::{Budget, Phase, Step, World, Write};

/// Which algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// As published: `SET NX PX`, a quorum, validity, compare-and-delete.
    Classic,
    /// Ours.
    Ballots,
}

/// A rule spoilt in one place, of the node or of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutation {
    /// A node forgets `last` when the name is released.
    ForgetAtRelease,
    /// A node forgets `last` when a claim expires.
    ForgetAtExpiry,
    /// A node takes a token that is not above `last` but equal.
    EqualTokens,
    /// `forget_oldest` leaves the floor where it was.
    ForgetWithoutFloor,
    /// A node without data votes at once.
    BlankVotes,
    /// A node is admitted with no floor.
    FloorZero,
    /// An admission does not name the blank time that it means.
    AdmitAnyBlank,
    /// The question that gives the blank time its name comes twice, so that two times have one name.
    HelloTwice,
    /// One pass over all nodes is enough for a new fleet.
    OnePass,
    /// The blank time counts until the decision, not until the last questions were sent.
    BlankUntilDecided,
    /// Every node without data is taken for one that was never let in.
    AnyFounder,
    /// A verdict counts however long the round was.
    LongRounds,
    /// Votes for different tokens are counted together.
    MixedVotes,
    /// A release does not raise `last`.
    ReleaseWithoutRaise,
    /// A release ends whatever the claim id has, also with a higher token.
    ReleaseAnyToken,
    /// A second attempt with the same claim id takes what it finds of the first.
    RetryPlain,
}

/// How writes reach the resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    None,
    /// In the moment in which the holder looks at its deadline.
    Prompt,
    /// At any time after that: the holder was paused in between, or the network is slow.
    Delayed,
}

/// What may happen, and how often.
#[derive(Clone, Debug)]
struct Config {
    rule: Rule,
    mutation: Option<Mutation>,
    nodes: usize,
    /// The claim id of each claim.
    ids: &'static [u64],
    /// What a client may propose first, whatever it knows.
    tokens: &'static [u64],
    /// How many rounds a claim may have; renewals not counted.
    rounds: u8,
    /// In ticks.
    ttl: u8,
    /// The last tick.
    until: u8,
    /// Whether no node has data at the start.
    fresh: bool,
    /// How many of the claims are released; the others' clients crash where they would.
    releases: usize,
    writes: Writes,
    fenced: bool,
    admins: usize,
    /// Whether all nodes are asked what they are in one moment.
    prompt_hellos: bool,
    budget: Budget,
}

const BASE: Config = Config {
    rule: Rule::Ballots,
    mutation: None,
    nodes: 3,
    ids: &[1, 2],
    tokens: &[1, 2],
    rounds: 2,
    ttl: 1,
    until: 1,
    fresh: false,
    releases: 0,
    writes: Writes::None,
    fenced: true,
    admins: 0,
    prompt_hellos: false,
    budget: NO_FAULTS,
};

const NO_FAULTS: Budget =
    Budget { duplicates: 0, lost_replies: 0, clock_steps: 0, losses: 0, forgets: 0, again: 0, renewals: 0, passes: 0 };

impl Model for Config {
    type State = World;
    type Action = Step;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, steps: &mut Vec<Step>) {
        if world.now < self.until {
            steps.push(Step::Tick);
        }
        for claim in 0..world.claims.len() {
            self.claim_steps(world, claim, steps);
        }
        for seat in 0..world.seats.len() {
            // Of nodes that are alike, the first stands for all.
            if seat == 0 || world.seats[seat] != world.seats[seat - 1] {
                seat_steps(self, world, seat, steps);
            }
        }
        for admin in 0..world.admins.len() {
            if world.left.passes > 0 && world.seats.iter().any(|seat| !seat.node.member) {
                steps.push(Step::Pass(admin));
            }
            if world.admins[admin].may_decide() {
                steps.push(Step::Admit(admin));
            }
        }
    }

    fn next_state(&self, world: &World, step: Step) -> Option<World> {
        let mut next = world.clone();
        next.take(self, step).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("token order", |config: &Config, world: &World| config.pairs(world, Config::in_order)),
            Property::always("tokens differ", |config: &Config, world: &World| config.pairs(world, Config::differ)),
            Property::always("no stale write", |_, world: &World| !world.resource.stale),
            Property::always("no orphan", |config: &Config, world: &World| {
                config.rule == Rule::Classic || !world.orphan
            }),
            Property::always("one believes", Config::one_believes),
            Property::sometimes("granted", |_, world: &World| world.claims.iter().any(|claim| claim.reported)),
            Property::sometimes("granted again", |_, world: &World| {
                world.claims.iter().any(|claim| claim.reported && claim.after != 0)
            }),
            Property::sometimes("granted thrice", |_, world: &World| {
                world.claims.iter().any(|claim| claim.reported && claim.after.count_ones() == 2)
            }),
            Property::sometimes("granted above", |_, world: &World| {
                world.claims.iter().any(|claim| claim.reported && claim.round > 1 && !claim.renewed)
            }),
            Property::sometimes("renewed", |_, world: &World| world.claims.iter().any(|claim| claim.renewed)),
            Property::sometimes("write refused", |_, world: &World| {
                world.claims.iter().any(|claim| claim.write == Write::Refused)
            }),
            Property::sometimes("given up", |_, world: &World| {
                world.claims.iter().any(|claim| claim.phase == Phase::Over && !claim.reported)
            }),
            Property::sometimes("granted in a fleet that two began", |_, world: &World| {
                world.finishing && world.claims.iter().any(|claim| claim.reported)
            }),
            Property::sometimes("granted after a loss", |config: &Config, world: &World| {
                let whole = world.seats.iter().all(|seat| seat.node.member);
                let again = world.claims.iter().any(|claim| claim.reported && claim.after != 0);
                world.left.losses < config.budget.losses && whole && again
            }),
        ]
    }
}

impl Config {
    fn claim_steps(&self, world: &World, index: usize, steps: &mut Vec<Step>) {
        let claim = world.claims[index];
        match claim.phase {
            Phase::Unborn if self.may_begin(world, index) => {
                steps.extend(self.tokens.iter().map(|token| Step::Begin(index, *token)));
            }
            Phase::Asking if world.left.again > 0 => {
                let others = self.tokens.iter().filter(|token| **token != claim.token);
                steps.extend(others.map(|token| Step::Again(index, *token)));
            }
            Phase::Held if index < self.releases => steps.push(Step::Release(index)),
            _ => {}
        }
        if claim.awaits_verdict() {
            steps.push(Step::Decide(index));
        }
        if claim.may_renew() && world.left.renewals > 0 {
            steps.push(Step::Renew(index));
        }
        match claim.write {
            Write::None if self.writes != Writes::None && claim.believes(world.now) => steps.push(Step::Write(index)),
            Write::Sent => steps.push(Step::Land(index)),
            _ => {}
        }
    }

    /// In the order of their numbers: they are alike. One id has one attempt at a time.
    fn may_begin(&self, world: &World, index: usize) -> bool {
        let begun = index == 0 || world.claims[index - 1].phase != Phase::Unborn;
        let earlier = (0..index).filter(|other| self.ids[*other] == self.ids[index]);
        begun && earlier.into_iter().all(|other| world.claims[other].phase == Phase::Over)
    }

    /// Whether something holds for all pairs of claims that were reported, in the order of their beginning.
    fn pairs(&self, world: &World, holds: fn(&Self, &World, usize, usize) -> bool) -> bool {
        let reported = |claim: &usize| world.claims[*claim].reported;
        let mut later = (0..world.claims.len()).filter(reported);
        later.all(|second| (0..second).filter(reported).all(|first| holds(self, world, first, second)))
    }

    fn in_order(&self, world: &World, first: usize, second: usize) -> bool {
        let (old, new) = (world.claims[first], world.claims[second]);
        let follows = new.after & 1 << first != 0;
        !follows || self.rule == Rule::Classic || new.token > old.token || self.same_id(first, second)
    }

    fn differ(&self, world: &World, first: usize, second: usize) -> bool {
        let differ = world.claims[first].token != world.claims[second].token;
        differ || self.rule == Rule::Classic || self.same_id(first, second)
    }

    /// The same claim again may find that it still has the name.
    fn same_id(&self, first: usize, second: usize) -> bool {
        self.ids[first] == self.ids[second]
    }

    /// Where clocks run at the right rate, not even the leases overlap.
    fn one_believes(&self, world: &World) -> bool {
        let trusted = self.rule == Rule::Ballots && self.budget.clock_steps == 0;
        !trusted || world.claims.iter().filter(|claim| claim.believes(world.now)).count() < 2
    }
}

fn seat_steps(config: &Config, world: &World, index: usize, steps: &mut Vec<Step>) {
    let (seat, left) = (&world.seats[index], world.left);
    for (message, request) in seat.inbox.iter().enumerate() {
        // Each question about what a node is names a new number, and no connection delivers it twice.
        let once = matches!(request, Request::Hello { .. }) && config.mutation != Some(Mutation::HelloTwice);
        for keep in [false, true].into_iter().take(1 + usize::from(left.duplicates > 0 && !once)) {
            for lose_reply in [false, true].into_iter().take(1 + usize::from(left.lost_replies > 0)) {
                steps.push(Step::Deliver { seat: index, message, keep, lose_reply });
            }
        }
    }
    if left.clock_steps > 0 {
        steps.extend([-2, 2].map(|by| Step::SetClock(index, by)));
    }
    // One that never stored anything loses nothing.
    if left.losses > 0 && !(seat.node.last.is_empty() && seat.node.held.is_empty()) {
        steps.push(Step::Lose(index));
    }
    if left.forgets > 0 && !(seat.node.last.is_empty() && seat.node.old.is_empty()) {
        steps.push(Step::Forget(index));
    }
}
