//! The state of the modelled world.

mod steps;

use std::hash::{Hash, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

pub(super) use self::steps::Step;
use super::nodes::Request;
use super::{Config, Mutation};
use crate::backends::redlock::ballot::{Hello, Node, Vote};
use crate::clock::Moment;

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
    /// Somebody goes on with a new fleet that another has begun.
    pub(super) finishing: bool,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
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
            finishing: false,
        }
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
        self.known = match (hello.blank, self.known) {
            (Some(blank), Some((known, since))) if blank == known => Some((known, since)),
            (Some(blank), _) => Some((blank, now)),
            (None, _) => None,
        };
        self.hello = Some(hello);
    }

    fn known_for(&self, until: u8) -> Duration {
        self.known.map_or(Duration::ZERO, |(_, since)| TICK * u32::from(until.saturating_sub(since)))
    }

    /// Whether it said the same in both passes, and was never asked for anything.
    fn agrees(&self) -> bool {
        let Some((hello, before)) = self.hello.as_ref().zip(self.before.as_ref()) else { return false };
        hello.blank == before.blank && (hello.blank.is_some() || hello.ttl_max.is_zero())
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
