//! The nodes of a fleet: which take part, what their clocks say, and what is still owed to them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::Value;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::ballot::{self, Admission, Hello, admission};
use super::wire::{self, Ending, Greeting};
use crate::backends::redis::inbox::{Ear, Inbox};
use crate::backends::redis::info_field;
use crate::backends::redis::node::{Dialect, Node, Work};
use crate::backends::redis::place::Place;
use crate::backends::redis::url::{Address, Layout, Settings};
use crate::backends::redis::wire::{number, text as redis_text};
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::token::Token;

/// A node that owes an answer for so long (or two node timeouts) is not asked any more until it is heard of again.
const SILENT_MAX: Duration = Duration::from_millis(250);
/// How often nodes that take no part are asked whether they do again: first, and at most.
const LOOK_MIN: Duration = Duration::from_millis(100);
const LOOK_MAX: Duration = Duration::from_secs(2);
/// How long a node may take to say hello; less if enough others have.
const HELLO_MAX: Duration = Duration::from_millis(2500);
const HELLO_SOON: Duration = Duration::from_millis(100);
/// How often debts are looked at while all nodes take part.
const REST: Duration = Duration::from_secs(5);
/// How many claims are remembered that a node may still have, and for how long.
const DEBTS_MAX: usize = 4096;
const DEBT_AGE_MAX: Duration = Duration::from_secs(600);
/// Debts are paid twice: what a node had not read before it hung may come after the first time.
const DEBT_AGAIN: Duration = Duration::from_millis(500);
/// How long the end of a claim may go unanswered before it becomes a debt.
const ENDING_MAX: Duration = Duration::from_secs(1);
/// An answer that took longer is not good for reading a clock.
const LATE: Duration = Duration::from_secs(1);
/// How much (in us) a clock must look earlier than it was known before that is believed, and how much later.
const CLOCK_MOVED: i64 = 5_000;
const CLOCK_FINE: i64 = 20;

/// Whether a node is asked.
#[derive(Clone, Debug)]
pub(super) enum State {
    /// It takes part.
    Up,
    /// It cannot be reached, or must not count: why.
    Down(Arc<str>),
    /// It has lost its data, or never had any.
    Blank,
}

/// One node.
pub(super) struct Member {
    pub(super) address: Address,
    pub(super) node: Arc<Node>,
    _inbox: Inbox,
    state: Mutex<State>,
    /// Its clock less ours, in microseconds; the least there is, if it was never heard of.
    offset: AtomicI64,
    /// Claims that it may have and must not keep.
    debts: Mutex<VecDeque<Debt>>,
    /// The name of the time since it is blank, and when it was first seen.
    blank: Mutex<Option<(u64, Moment)>>,
    /// Tells one server from another; empty until it is known.
    identity: Mutex<String>,
}

/// A claim that a node may have, and when to end it there.
struct Debt {
    ending: Ending,
    since: Moment,
    due: Moment,
    /// Whether it was paid once already.
    again: bool,
}

const UNKNOWN: i64 = i64::MIN;

/// All nodes.
pub(super) struct Fleet {
    pub(super) members: Vec<Member>,
    pub(super) settings: Arc<Settings>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: tokio::runtime::Handle,
    /// What most clocks say, less ours.
    median: AtomicI64,
    bell: Arc<Notify>,
    /// What all members must agree to be part of.
    fleet: AtomicU64,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("url", &self.settings.shown).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A clock reading as a signed number: good for the next 292,000 years.
fn signed(time: u64) -> i64 {
    i64::try_from(time).unwrap_or(i64::MAX)
}

impl Member {
    pub(super) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(*lock(&self.state), State::Up)
    }

    pub(super) fn is_blank(&self) -> bool {
        matches!(*lock(&self.state), State::Blank)
    }

    /// Its clock less ours, once it was heard of.
    pub(super) fn offset(&self) -> Option<i64> {
        Some(self.offset.load(Ordering::Acquire)).filter(|offset| *offset != UNKNOWN)
    }
}

impl Fleet {
    /// Connects to all nodes; enough of them must answer.
    pub(super) async fn open(
        settings: Arc<Settings>,
        clock: Arc<dyn Clock>,
        channel: Arc<str>,
        ear: Ear,
    ) -> Result<(Arc<Self>, JoinHandle<()>)> {
        let runtime = tokio::runtime::Handle::current();
        let member = |address: &Address| {
            let place = Place::at(&settings, address.clone());
            let node = Node::new(place, Dialect::Ballots, Arc::default(), clock.clone(), runtime.clone());
            Member {
                address: address.clone(),
                _inbox: Inbox::keep(&node, channel.clone(), ear.clone(), None),
                node,
                state: Mutex::new(State::Down("not connected yet".into())),
                offset: AtomicI64::new(UNKNOWN),
                debts: Mutex::default(),
                blank: Mutex::default(),
                identity: Mutex::default(),
            }
        };
        let fleet = Arc::new(Self {
            members: settings.addresses.iter().map(member).collect(),
            clock: clock.clone(),
            runtime: runtime.clone(),
            median: AtomicI64::new(0),
            bell: Arc::default(),
            fleet: AtomicU64::new(0),
            settings,
        });
        fleet.reset_median();
        fleet.look().await?;
        if fleet.up() < fleet.quorum() {
            // Another client may be making the same new fleet.
            fleet.look().await?;
        }
        if let Some((one, other)) = fleet.doubles() {
            let message = format!("{one} and {other} are the same server: each node must be one of its own");
            return Err(Error::new(ErrorKind::Invalid, message).with_certainty(Certainty::NotApplied));
        }
        if fleet.up() < fleet.quorum() {
            return Err(fleet.no_quorum(&[], Certainty::NotApplied));
        }
        let keeper = runtime.spawn(keep(Arc::downgrade(&fleet)));
        Ok((fleet, keeper))
    }

    pub(super) fn quorum(&self) -> usize {
        ballot::quorum(self.members.len())
    }

    fn up(&self) -> usize {
        self.members.iter().filter(|member| member.is_up()).count()
    }

    pub(super) fn layout(&self) -> Layout {
        self.settings.layout
    }

    /// How long one node may take: ttl/200, from 5 to 50 ms, unless the URL says otherwise.
    pub(super) fn node_timeout(&self, ttl: Duration) -> Duration {
        node_timeout(&self.settings, ttl)
    }

    fn silent_max(&self) -> Duration {
        SILENT_MAX.max(self.settings.node_timeout.unwrap_or_default() * 2)
    }

    /// What most nodes' clocks say now.
    pub(super) fn time(&self) -> u64 {
        let now = signed(self.clock.now().as_micros());
        u64::try_from(now.saturating_add(self.median.load(Ordering::Acquire))).unwrap_or(0)
    }

    /// What `work` comes to, if that is before `limit`. What is there already counts.
    pub(super) async fn before<T>(&self, limit: Moment, work: impl Future<Output = T>) -> Option<T> {
        // Guards may be dropped, and futures polled, by threads that are not the runtime's.
        let timed = {
            let _runtime = self.runtime.enter();
            timeout(limit.since(self.clock.now()), work)
        };
        timed.await.ok()
    }

    /// Sends work to a node; nothing if it is not to be asked. It is on its way when this returns.
    pub(super) fn ask(
        self: &Arc<Self>,
        index: usize,
        work: Work,
        fresh: bool,
    ) -> Option<impl Future<Output = Result<Vec<Value>>> + Send + use<>> {
        let member = &self.members[index];
        if !member.is_up() {
            return None;
        }
        let silent = member.node.silent_for();
        if silent > self.silent_max() {
            self.put_down(index, format!("has not answered for {} ms", silent.as_millis()).into());
            return None;
        }
        let sent = self.clock.now();
        let call = member.node.call_and_keep(work, fresh);
        let fleet = self.clone();
        Some(async move {
            match call.await {
                Ok(reply) => {
                    // One that was read late says little of the clock.
                    if fleet.clock.now().since(sent) < LATE {
                        fleet.heard(index, reply.now);
                    }
                    Ok(reply.values)
                }
                Err(error) => {
                    if error.kind() == ErrorKind::Unavailable {
                        fleet.put_down(index, error.to_string().into());
                    }
                    Err(error)
                }
            }
        })
    }

    /// Takes note of a node's clock.
    fn heard(&self, index: usize, theirs: Moment) {
        // Scripts of other layouts do not tell.
        if theirs == Moment(0) {
            return;
        }
        let offset = signed(theirs.as_micros()).saturating_sub(signed(self.clock.now().as_micros()));
        let known = self.members[index].offset.load(Ordering::Acquire);
        // The answer's way makes it look late: the least late one is the best.
        if known == UNKNOWN || offset > known.saturating_add(CLOCK_FINE) || offset < known.saturating_sub(CLOCK_MOVED) {
            self.members[index].offset.store(offset, Ordering::Release);
            self.reset_median();
        }
    }

    /// How far a node's clock is ahead of the others, if so far that it must not count.
    pub(super) fn far_ahead(&self, index: usize) -> Option<Duration> {
        let ahead = self.members[index].offset()?.saturating_sub(self.median.load(Ordering::Acquire));
        let ahead = Duration::from_micros(u64::try_from(ahead).ok()?);
        (ahead > ballot::AHEAD_MAX).then_some(ahead)
    }

    fn reset_median(&self) {
        let own = signed(self.clock.wall_micros()) - signed(self.clock.now().as_micros());
        let known: Vec<i64> = self.members.iter().filter_map(Member::offset).collect();
        self.median.store(ballot::median(known).unwrap_or(own), Ordering::Release);
    }

    fn put_down(&self, index: usize, why: Arc<str>) {
        let mut state = lock(&self.members[index].state);
        if matches!(*state, State::Up) {
            tracing::debug!(node = %self.members[index].address, %why, "a node is not asked any more");
            *state = State::Down(why);
            drop(state);
            self.bell.notify_one();
        }
    }

    /// Another server answers at a node's address.
    pub(super) fn found_stranger(&self, index: usize) {
        self.put_down(index, wire::STRANGER.into());
    }

    /// A node answered that it has no data.
    pub(super) fn found_blank(&self, index: usize) {
        *lock(&self.members[index].state) = State::Blank;
        self.bell.notify_one();
    }

    /// The error of a round that too few nodes answered; `why` has the reasons of the nodes that were asked.
    pub(super) fn no_quorum(&self, why: &[(usize, String)], certainty: Certainty) -> Error {
        let reason = |(index, member): (usize, &Member)| {
            let asked = why.iter().find(|(asked, _)| *asked == index).map(|(_, why)| why.clone());
            let reason = asked.or_else(|| match member.state() {
                State::Up => None,
                State::Down(why) => Some(why.to_string()),
                State::Blank => Some(BLANK.to_owned()),
            });
            reason.map(|reason| format!("{}: {reason}", member.address))
        };
        let reasons: Vec<String> = self.members.iter().enumerate().filter_map(reason).collect();
        let (needed, all) = (self.quorum(), self.members.len());
        let message = format!("no quorum: {needed} of {all} nodes are needed; {}", reasons.join("; "));
        Error::new(ErrorKind::Quorum, message).with_certainty(certainty)
    }

    /// The nodes that are asked now, a bit each.
    pub(super) fn reach(&self) -> u32 {
        let up = self.members.iter().enumerate().filter(|(_, member)| member.is_up());
        up.fold(0, |nodes, (index, _)| nodes | 1 << index)
    }

    /// All nodes, a bit each.
    pub(super) fn everywhere(&self) -> u32 {
        u32::MAX >> (32 - self.members.len().clamp(1, 32))
    }

    /// Sees to the ends of a claim that are under way on `open` nodes; those that fail become debts.
    pub(super) fn see_to<F>(
        self: &Arc<Self>,
        mut calls: FuturesUnordered<F>,
        mut open: u32,
        failed: Vec<usize>,
        ending: Ending,
    ) where
        F: Future<Output = (usize, Vec<Result<Value>>)> + Send + 'static,
    {
        failed.into_iter().for_each(|index| self.owe(index, ending.clone()));
        if calls.is_empty() {
            return;
        }
        let fleet = self.clone();
        self.runtime.spawn(async move {
            let limit = fleet.clock.now() + ENDING_MAX;
            while let Some(Some((index, answers))) = fleet.before(limit, calls.next()).await {
                open &= !(1 << index);
                if answers.iter().any(Result::is_err) {
                    fleet.owe(index, ending.clone());
                }
            }
            (0..fleet.members.len())
                .filter(|index| open & (1 << index) != 0)
                .for_each(|index| fleet.owe(index, ending.clone()));
        });
    }

    fn owe(&self, index: usize, ending: Ending) {
        let now = self.clock.now();
        let mut debts = lock(&self.members[index].debts);
        let same = |debt: &Debt| {
            (debt.ending.id, debt.ending.token, debt.ending.number) == (ending.id, ending.token, ending.number)
        };
        // Ends are repeated: the latest are the likeliest to come again.
        if debts.iter().rev().take(64).any(same) {
            return;
        }
        if debts.len() >= DEBTS_MAX {
            debts.pop_front();
        }
        debts.push_back(Debt { ending, since: now, due: now, again: false });
        drop(debts);
        self.bell.notify_one();
    }

    /// Ends what a node that is back may have of old claims. Whether there is more to do.
    async fn pay(self: &Arc<Self>, index: usize) -> bool {
        let now = self.clock.now();
        let due: Vec<Debt> = {
            let mut debts = lock(&self.members[index].debts);
            let (due, later): (VecDeque<Debt>, VecDeque<Debt>) =
                std::mem::take(&mut *debts).into_iter().partition(|debt| debt.due <= now);
            *debts = later;
            due.into()
        };
        let work = due.iter().map(|debt| wire::release(self.layout(), &debt.ending));
        let paid: Vec<bool> = match wire::together(work) {
            Ok(whole) => {
                let answer = self.ask(index, whole, false);
                let paid = match answer {
                    Some(call) => matches!(timeout(ENDING_MAX, call).await, Ok(Ok(_))),
                    None => false,
                };
                vec![paid; due.len()]
            }
            Err(each) => {
                let calls = each.into_iter().map(|work| self.ask(index, work, false));
                let calls = calls.map(|call| async {
                    match call {
                        Some(call) => matches!(timeout(ENDING_MAX, call).await, Ok(Ok(_))),
                        None => false,
                    }
                });
                join_all(calls).await
            }
        };
        let mut debts = lock(&self.members[index].debts);
        for (mut debt, paid) in due.into_iter().zip(paid) {
            if debt.again && paid || now.since(debt.since) > DEBT_AGE_MAX {
                continue;
            }
            debt.again |= paid;
            debt.due = now + DEBT_AGAIN;
            debts.push_back(debt);
        }
        !debts.is_empty()
    }

    /// Asks all nodes whether they take part, and lets those in that may.
    async fn look(self: &Arc<Self>) -> Result<()> {
        // What nodes say counts from before they were asked.
        let asked = self.clock.now();
        let greetings = self.greetings().await;
        let fleet = self.common_fleet(&greetings);
        let mut hellos = Vec::new();
        for (index, greeting) in greetings.iter().enumerate() {
            match greeting {
                Ok(greeting) => hellos.push(self.welcome(index, greeting, fleet).then_some(greeting.hello)),
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
        let (common, count) = votes.into_iter().max_by_key(|(_, count)| *count).unwrap_or_default();
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
            && let Some(id) = redis_text(&info).and_then(|info| info_field(info, "run_id"))
        {
            *lock(&member.identity) = id.to_owned();
        }
        let hello = Hello { blank: None, highest: Token(0), ttl_max: Duration::ZERO };
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
    fn doubles(&self) -> Option<(Address, Address)> {
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
        match admission(hellos, &seen) {
            Admission::Nothing | Admission::Wait(_) => {}
            Admission::Admit(ripe, floor) => {
                join_all(ripe.iter().map(|index| self.let_in(*index, hellos, Some(floor), fleet))).await;
            }
            Admission::NewFleet => {
                // Once more: all of them must have been blank at one and the same time.
                let again = self.greetings().await;
                let same = again.iter().zip(hellos).all(|(again, before)| {
                    again.as_ref().is_ok_and(|again| Some(again.hello.blank) == before.map(|before| before.blank))
                });
                if same {
                    // What all call it that make it at the same time.
                    let name = |hello: &Option<Hello>| hello.and_then(|hello| hello.blank).unwrap_or_default();
                    let fleet = hellos.iter().map(name).fold(0_u64, |sum, name| sum ^ name).max(1);
                    // A node whose clock is ahead would be of no use until the others' have caught up.
                    let floor = Some(Token(self.time()));
                    join_all((0..self.members.len()).map(|index| self.let_in(index, hellos, floor, fleet))).await;
                }
            }
        }
    }

    async fn let_in(self: &Arc<Self>, index: usize, hellos: &[Option<Hello>], floor: Option<Token>, fleet: u64) {
        let Some(blank) = hellos.get(index).copied().flatten().and_then(|hello| hello.blank) else { return };
        let member = &self.members[index];
        let call = member.node.call_and_keep(wire::admit(blank, floor, fleet, self.members.len()), false);
        if let Ok(Ok(_)) = timeout(HELLO_MAX, call).await
            && let Ok(Ok(greeting)) = timeout(HELLO_MAX, self.greet(index)).await
        {
            tracing::info!(node = %member.address, ?floor, "a node takes part from now on");
            self.fleet.store(fleet, Ordering::Release);
            self.welcome(index, &greeting, fleet);
        }
    }
}

pub(super) fn node_timeout(settings: &Settings, ttl: Duration) -> Duration {
    let usual = (ttl / 200).clamp(Duration::from_millis(5), Duration::from_millis(50));
    settings.node_timeout.unwrap_or(usual)
}

pub(super) const BLANK: &str = "has lost its data, or is new: it takes part once a client that stays has seen it for the longest ttl, if enough \
     others have theirs (tenure doctor says more)";

fn silent() -> Error {
    Error::new(ErrorKind::Unavailable, "does not answer").with_certainty(Certainty::Unknown)
}

/// Brings nodes back that take no part, and pays what is owed to those that do. Runs until the client is gone.
async fn keep(fleet: Weak<Fleet>) {
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
