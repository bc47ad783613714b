//! The nodes of a fleet: which are asked, and what their clocks say.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::backends::redis::failure::Values;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::debts::Debt;
use super::keeper::keep;
use super::{ballot, lock, wire};
use crate::backends::redis::inbox::{Ear, Inbox};
use crate::backends::redis::lane::Work;
use crate::backends::redis::node::{Dialect, Node};
use crate::backends::redis::place::Place;
use crate::backends::redis::url::{Address, Layout, Settings};
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, ErrorKind, Result};

/// A node that owes an answer for so long (or two node timeouts) is not asked any more until it is heard of again.
const SILENT_MAX: Duration = Duration::from_millis(250);
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
    pub(super) state: Mutex<State>,
    /// Its clock less ours, in microseconds; the least there is, if it was never heard of.
    offset: AtomicI64,
    /// Claims that it may have and must not keep.
    pub(super) debts: Mutex<VecDeque<Debt>>,
    /// The name of the time since it is blank, and when it was first seen.
    pub(super) blank: Mutex<Option<(u64, Moment)>>,
    /// Tells one server from another; empty until it is known.
    pub(super) identity: Mutex<String>,
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
    pub(super) bell: Arc<Notify>,
    /// What all members must agree to be part of.
    pub(super) fleet: AtomicU64,
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").field("url", &self.settings.shown).finish_non_exhaustive()
    }
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

    pub(super) fn up(&self) -> usize {
        self.members.iter().filter(|member| member.is_up()).count()
    }

    pub(super) fn layout(&self) -> Layout {
        self.settings.layout
    }

    /// How long one node may take: ttl/200, from 5 to 50 ms, unless the URL says otherwise.
    pub(super) fn node_timeout(&self, ttl: Duration) -> Duration {
        node_timeout(&self.settings, ttl)
    }

    pub(super) fn silent_max(&self) -> Duration {
        SILENT_MAX.max(self.settings.node_timeout.unwrap_or_default() * 2)
    }

    /// What most nodes' clocks say now.
    pub(super) fn time(&self) -> u64 {
        let now = signed(self.clock.now().as_micros());
        u64::try_from(now.saturating_add(self.median.load(Ordering::Acquire))).unwrap_or(0)
    }

    /// What `work` comes to, if that is before `limit`. What is there already counts.
    pub(super) async fn before<T>(&self, limit: Moment, work: impl Future<Output = T>) -> Option<T> {
        timeout(limit.since(self.clock.now()), work).await.ok()
    }

    /// Sends work to a node; nothing if it is not to be asked. It is on its way when this returns.
    pub(super) fn ask(
        self: &Arc<Self>,
        index: usize,
        work: Work,
        fresh: bool,
    ) -> Option<impl Future<Output = Result<Values>> + Send + use<>> {
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
    pub(super) fn heard(&self, index: usize, theirs: Moment) {
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
}

pub(super) fn node_timeout(settings: &Settings, ttl: Duration) -> Duration {
    let usual = (ttl / 200).clamp(Duration::from_millis(5), Duration::from_millis(50));
    settings.node_timeout.unwrap_or(usual)
}

pub(super) const BLANK: &str = "has lost its data, or is new: it takes part once a client that stays has seen it for the longest ttl, if enough \
     others have theirs (tenure doctor says more)";
