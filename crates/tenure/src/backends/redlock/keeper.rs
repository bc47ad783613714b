//! Who takes part: nodes are asked who they are, and those that lost their data are let in again when that is safe.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::Value;
use tokio::time::timeout;

use super::ballot::{Admission, Hello, admission};
use super::debts::DEBT_AGAIN;
use super::fleet::{Fleet, Member, State};
use super::lock;
use super::wire::{self, Greeting};
use crate::backends::redis::info_field;
use crate::backends::redis::url::{Address, Layout};
use crate::backends::redis::wire::{number, text};
use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::token::Token;

/// How often nodes that take no part are asked whether they do again: first, and at most.
const LOOK_MIN: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long a node may take to say hello; less if enough others have.
const HELLO_MAX: Duration = Duration::from_millis(2500);
const HELLO_SOON: Duration = Duration::from_millis(100);
/// How often debts are looked at while all nodes take part.
const REST: Duration = Duration::from_secs(5);

impl Fleet {
    /// Asks all nodes whether they take part, and lets those in that may.
    pub(super) async fn look(self: &Arc<Self>) -> Result<()> {
        // What nodes say counts from before they were asked.
        let asked = self.clock.now();
        let greetings = self.greetings().await;
        let fleet = self.common_fleet(&greetings);
        let mut hellos = Vec::new();
        for (index, greeting) in greetings.iter().enumerate() {
            match greeting {
                Ok(greeting) => hellos.push(self.welcome(index, greeting, fleet).then(|| greeting.hello.clone())),
                Err(error) => {
                    let mut state = lock(&self.members[index].state);
                    // One that takes part and was not waited for may be all right.
                    if !(matches!(*state, State::Up) && error.certainty() == Certainty::Unknown) {
                        *state = State::Down(error.to_string().into());
                    }
                    drop(state);
                    hellos.push(None);
                }
            }
        }
        if hellos.iter().all(Option::is_none) {
            let for_good = |error: &Error| matches!(error.kind(), ErrorKind::Denied | ErrorKind::Invalid);
            if let Some(error) = greetings.into_iter().find_map(|greeting| greeting.err().filter(for_good)) {
                // Nobody lets us in: they will not later.
                return Err(error);
            }
        }
        if let Some((_, other)) = self.doubles() {
            // One of the two must not vote.
            let index = self.members.iter().position(|member| member.address == other).unwrap_or_default();
            *lock(&self.members[index].state) = State::Down("is the same server as another node".into());
            return Ok(());
        }
        self.admit(&hellos, fleet, asked).await;
        Ok(())
    }

    /// Every node's greeting; one that is slow is not waited for long if enough others take part.
    async fn greetings(self: &Arc<Self>) -> Vec<Result<Greeting>> {
        let mut greetings: Vec<Result<Greeting>> = self.members.iter().map(|_| Err(silent())).collect();
        let mut asking: FuturesUnordered<_> =
            (0..self.members.len()).map(|index| async move { (index, self.greet(index).await) }).collect();
        let begun = self.clock.now();
        loop {
            let taking_part = greetings.iter().flatten().filter(|greeting| greeting.hello.blank.is_none()).count();
            let patience = if taking_part >= self.quorum() { HELLO_SOON } else { HELLO_MAX };
            match self.before(begun + patience, asking.next()).await {
                Some(Some((index, greeting))) => greetings[index] = greeting,
                Some(None) | None => return greetings,
            }
        }
    }

    /// The fleet that most nodes are of; zero if there is none yet.
    fn common_fleet(&self, greetings: &[Result<Greeting>]) -> u64 {
        let mut votes: Vec<(u64, usize)> = Vec::new();
        for greeting in greetings.iter().flatten().filter(|greeting| greeting.hello.blank.is_none()) {
            match votes.iter_mut().find(|(fleet, _)| *fleet == greeting.fleet) {
                Some((_, count)) => *count += 1,
                None => votes.push((greeting.fleet, 1)),
            }
        }
        // Of several with as many nodes, all clients choose the same.
        let (common, count) = votes.into_iter().max_by_key(|(fleet, count)| (*count, *fleet)).unwrap_or_default();
        let known = self.fleet.load(Ordering::Acquire);
        // All nodes may have lost everything and be a new fleet; a few strangers are none.
        if known != 0 && count < self.quorum() {
            return known;
        }
        self.fleet.store(common, Ordering::Release);
        common
    }

    async fn greet(self: &Arc<Self>, index: usize) -> Result<Greeting> {
        let member = &self.members[index];
        if self.layout() == Layout::Plain {
            return self.greet_plain(index).await;
        }
        let fresh = member.node.silent_for() > self.silent_max();
        let reply = member.node.call_and_keep(wire::hello(rand::random()), fresh).await?;
        self.heard(index, reply.now);
        let greeting = wire::greeting(reply.values.first().unwrap_or(&Value::Nil))?;
        // A blank node has no name yet, but the time since it is blank has.
        let identity = greeting.hello.blank.map_or_else(|| greeting.node.clone(), |blank| blank.to_string());
        *lock(&member.identity) = identity;
        Ok(greeting)
    }

    /// A node that keeps nothing but classic locks has nothing to lose that we would miss.
    async fn greet_plain(self: &Arc<Self>, index: usize) -> Result<Greeting> {
        let member = &self.members[index];
        let time = member.node.command(redis::cmd("TIME")).await?;
        if let Value::Array(parts) = &time
            && let [Some(seconds), Some(micros)] = parts.iter().map(number).collect::<Vec<_>>()[..]
        {
            self.heard(index, Moment(seconds.saturating_mul(1_000_000).saturating_add(micros)));
        }
        let mut command = redis::cmd("INFO");
        command.arg("server");
        // Without the right to ask, two addresses of one server go unnoticed: `doctor` says so.
        if let Ok(info) = member.node.command(command).await
            && let Some(id) = text(&info).and_then(|info| info_field(info, "run_id"))
        {
            *lock(&member.identity) = id.to_owned();
        }
        let hello = Hello { blank: None, highest: Token(0), ttl_max: Duration::ZERO, founders: Arc::default() };
        Ok(Greeting { hello, node: String::new(), fleet: 0, size: self.members.len() })
    }

    /// Takes note of what a node says of itself. Whether it is of this fleet, or of none.
    fn welcome(&self, index: usize, greeting: &Greeting, fleet: u64) -> bool {
        let member = &self.members[index];
        let mut blank = lock(&member.blank);
        let state = match greeting.hello.blank {
            None => {
                *blank = None;
                let size = self.members.len();
                if greeting.size != size {
                    State::Down(format!("belongs to a fleet of {} nodes, not of {size}", greeting.size).into())
                } else if greeting.fleet != fleet {
                    State::Down("belongs to another fleet".into())
                } else {
                    member.node.mean(&greeting.node);
                    State::Up
                }
            }
            Some(name) => {
                if blank.is_none_or(|(known, _)| known != name) {
                    *blank = Some((name, self.clock.now()));
                    // Whatever it was to forget, it has forgotten.
                    lock(&member.debts).clear();
                }
                State::Blank
            }
        };
        let ours = !matches!(state, State::Down(_));
        *lock(&member.state) = state;
        ours
    }

    /// Two addresses of one server, which would have two votes.
    pub(super) fn doubles(&self) -> Option<(Address, Address)> {
        let identities: Vec<String> = self.members.iter().map(|member| lock(&member.identity).clone()).collect();
        for (index, identity) in identities.iter().enumerate().filter(|(_, identity)| !identity.is_empty()) {
            if let Some(other) = identities.iter().skip(index + 1).position(|other| other == identity) {
                let other = self.members[index + 1 + other].address.clone();
                return Some((self.members[index].address.clone(), other));
            }
        }
        None
    }

    async fn admit(self: &Arc<Self>, hellos: &[Option<Hello>], fleet: u64, asked: Moment) {
        let seen = |member: &Member| lock(&member.blank).map_or(Duration::ZERO, |(_, since)| asked.since(since));
        let seen: Vec<Duration> = self.members.iter().map(seen).collect();
        let (admitted, floor, fleet, founders) = match admission(hellos, &seen) {
            Admission::Nothing | Admission::Wait(_) => return,
            Admission::Admit(ripe, floor) => (ripe, floor, fleet, founders(hellos)),
            Admission::NewFleet(begin, floor) => {
                // Once more: all of them must have been as they are at one and the same time.
                let again = self.greetings().await;
                let same = again.iter().zip(hellos).all(|(again, before)| {
                    let unused = |hello: &Hello| hello.blank.is_some() || hello.ttl_max.is_zero();
                    again.as_ref().is_ok_and(|again| {
                        unused(&again.hello) && before.as_ref().is_some_and(|before| before.blank == again.hello.blank)
                    })
                });
                if !same {
                    return;
                }
                // A node whose clock is ahead would be of no use until the others' have caught up.
                let floor = floor.max(Token(self.time()));
                if begin.len() < hellos.len() {
                    (begin, floor, fleet, founders(hellos))
                } else {
                    let names: Arc<[u64]> = hellos.iter().flatten().filter_map(|hello| hello.blank).collect();
                    // What all call it that make it at the same time.
                    (begin, floor, names.iter().fold(0_u64, |sum, name| sum ^ name).max(1), names)
                }
            }
        };
        join_all(admitted.iter().map(|index| self.let_in(*index, hellos, floor, fleet, &founders))).await;
    }

    async fn let_in(
        self: &Arc<Self>,
        index: usize,
        hellos: &[Option<Hello>],
        floor: Token,
        fleet: u64,
        founders: &[u64],
    ) {
        let Some(blank) = hellos.get(index).and_then(|hello| hello.as_ref()?.blank) else { return };
        let member = &self.members[index];
        let call =
            member.node.call_and_keep(wire::admit(blank, Some(floor), fleet, self.members.len(), founders), false);
        if let Ok(Ok(_)) = timeout(HELLO_MAX, call).await
            && let Ok(Ok(greeting)) = timeout(HELLO_MAX, self.greet(index)).await
        {
            tracing::info!(node = %member.address, ?floor, "a node takes part from now on");
            self.fleet.store(fleet, Ordering::Release);
            self.welcome(index, &greeting, fleet);
        }
    }
}

/// What the nodes that take part say of how their fleet began; nothing if an older client let them in.
fn founders(hellos: &[Option<Hello>]) -> Arc<[u64]> {
    let known = hellos.iter().flatten().map(|hello| &hello.founders).find(|founders| !founders.is_empty());
    known.cloned().unwrap_or_default()
}

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "does not answer").with_certainty(Certainty::Unknown)
}

/// Brings nodes back that take no part, and pays what is owed to those that do. Runs until the client is gone.
pub(super) async fn keep(fleet: Weak<Fleet>) {
    let mut pause = LOOK_MIN;
    loop {
        let Some(fleet) = fleet.upgrade() else { return };
        let before = fleet.up();
        if before < fleet.members.len()
            && let Err(error) = fleet.look().await
        {
            tracing::debug!(%error, "the fleet cannot be looked at");
        }
        let owing = |member: &Member| member.is_up() && !lock(&member.debts).is_empty();
        let owing = (0..fleet.members.len()).filter(|index| owing(&fleet.members[*index]));
        let owed = join_all(owing.map(|index| fleet.pay(index))).await.into_iter().any(|more| more);
        let up = fleet.up();
        pause = if up == before { (pause * 2).min(LOOK_MAX) } else { LOOK_MIN };
        let rest = if up < fleet.members.len() {
            pause
        } else if owed {
            DEBT_AGAIN
        } else {
            REST
        };
        let bell = fleet.bell.clone();
        drop(fleet);
        if timeout(rest, bell.notified()).await.is_ok() {
            pause = LOOK_MIN;
            // Whatever happened to one node often happens to the next in the same moment.
            let _ = timeout(LOOK_MIN, std::future::pending::<()>()).await;
        }
    }
}
