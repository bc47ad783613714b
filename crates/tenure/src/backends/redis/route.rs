//! Which server has a name: the one there is, the master that sentinels name, or the one of its hash slot.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::Value;
use smallvec::smallvec;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::failure::{Failure, Redirect, Reply};
use super::inbox::{Ear, Inbox};
use super::lane::Work;
use super::node::{Dialect, Node, unavailable};
use super::op::Op;
use super::place::{Place, client};
use super::replicas::Total;
use super::sync::Sync;
use super::url::{Address, Settings, Topology};
use super::wire;
use crate::clock::Clock;
use crate::error::{Certainty, Error, ErrorKind, Result};

const SLOTS: u16 = 16384;
/// How often a cluster is asked who has which slot, unless something looks wrong.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// How long one node may take to say it: one that hangs must not keep the others from being asked.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How often one request follows a cluster's redirections: less than a second, for a name that moves all that time.
const REDIRECTS_MAX: u32 = 30;
/// The pause before a request is repeated that met a slot on its way.
const MOVING_PAUSE: Duration = Duration::from_millis(25);
/// How often a silent sentinel is asked whether it is there.
const SENTINEL_PING_EVERY: Duration = Duration::from_secs(3);
/// The pause before a sentinel is listened to again.
const SENTINEL_PAUSE: Duration = Duration::from_secs(1);

/// What the parts of one client share.
pub(super) struct Shared {
    pub(super) settings: Arc<Settings>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) runtime: tokio::runtime::Handle,
    /// The highest token this client has been given.
    pub(super) seen: Arc<AtomicU64>,
    pub(super) channel: Arc<str>,
    pub(super) ear: Ear,
}

/// A server, its inbox, and the connection that waits for its replicas.
pub(super) struct Member {
    pub(super) node: Arc<Node>,
    pub(super) sync: Sync,
    pub(super) replicas: Total,
    inbox: Option<Inbox>,
}

pub(super) enum Route {
    One { member: Arc<Member>, watchers: Vec<JoinHandle<()>> },
    Cluster { cluster: Arc<Cluster>, refresher: JoinHandle<()> },
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { member, .. } => member.node.fmt(f),
            Self::Cluster { .. } => f.write_str("Cluster"),
        }
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        match self {
            Self::One { watchers, .. } => watchers.iter().for_each(JoinHandle::abort),
            Self::Cluster { refresher, .. } => refresher.abort(),
        }
    }
}

impl Route {
    /// Connects: a wrong address, password or kind of server is known at once.
    pub(super) async fn open(shared: Shared) -> Result<Self> {
        match &shared.settings.topology {
            Topology::Cluster => Cluster::open(Arc::new(shared)).await,
            Topology::Single | Topology::Fleet => {
                let address = shared.settings.addresses.first().cloned().ok_or_else(|| unavailable("no address"))?;
                let place = Place::at(&shared.settings, address);
                let member = Member::open(&shared, place).await?;
                Ok(Self::One { member, watchers: Vec::new() })
            }
            Topology::Sentinel { service } => {
                let member = Member::open(&shared, Place::of_service(&shared.settings)).await?;
                let watcher = |sentinel: &Address| {
                    let (settings, sentinel) = (shared.settings.clone(), sentinel.clone());
                    shared.runtime.spawn(watch(settings, sentinel, service.clone(), Arc::downgrade(&member)))
                };
                let watchers = shared.settings.addresses.iter().map(watcher).collect();
                Ok(Self::One { member, watchers })
            }
        }
    }

    /// The server that has this key.
    pub(super) fn member(&self, key: &str) -> Result<Arc<Member>> {
        match self {
            Self::One { member, .. } => Ok(member.clone()),
            Self::Cluster { cluster, .. } => cluster.member(key),
        }
    }

    /// Every server that has names.
    pub(super) fn members(&self) -> Vec<Arc<Member>> {
        match self {
            Self::One { member, .. } => vec![member.clone()],
            Self::Cluster { cluster, .. } => cluster.map().members.values().cloned().collect(),
        }
    }

    /// Sends one operation to the server that has its name.
    pub(super) fn call_op(&self, op: Op, fresh: bool) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let key = if let Self::Cluster { .. } = self { op.key().to_owned() } else { String::new() };
        self.call(&key, Work::Ops(smallvec![op]), fresh)
    }

    /// Sends work about one key to the server that has it. It is on its way when this returns.
    pub(super) fn call(
        &self,
        key: &str,
        work: Work,
        fresh: bool,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let first = match self {
            Self::One { member, .. } => (None, Ok(member.node.call(work, fresh, false))),
            Self::Cluster { cluster, .. } => {
                let call = cluster.member(key).map(|member| member.node.call(work.clone(), fresh, false));
                (Some(Box::new((cluster.clone(), key.to_owned(), work))), call)
            }
        };
        async move {
            let (cluster, call) = first;
            match (call?.await, cluster) {
                (Ok(reply), _) => Ok(reply),
                (Err(failure), None) => Err(failure.error),
                (Err(failure), Some(elsewhere)) => {
                    // Boxed: it is large, and what every call moves about.
                    let (cluster, key, work) = *elsewhere;
                    Box::pin(async move { cluster.follow(failure, &key, work).await }).await
                }
            }
        }
    }
}

impl Member {
    async fn open(shared: &Shared, place: Place) -> Result<Arc<Self>> {
        let node = node_at(shared, place);
        let inbox = Inbox::open(&node, shared.channel.clone(), shared.ear.clone());
        let ((), inbox) = futures_util::future::try_join(node.connect(), inbox).await?;
        Ok(Arc::new(Self { sync: Sync::new(&node), replicas: Total::default(), node, inbox: Some(inbox) }))
    }

    /// Leaves the server for the one that is in its place now.
    fn follow_master(&self) {
        self.node.leave_connection();
        self.sync.leave_connection();
        if let Some(inbox) = &self.inbox {
            inbox.restart();
        }
    }
}

fn node_at(shared: &Shared, place: Place) -> Arc<Node> {
    let dialect = if shared.settings.topology == Topology::Cluster { Dialect::Cluster } else { Dialect::Server };
    Node::new(place, dialect, shared.seen.clone(), shared.clock.clone(), shared.runtime.clone())
}

/// Listens to one sentinel for the news that a service has another master.
async fn watch(settings: Arc<Settings>, sentinel: Address, service: String, member: Weak<Member>) {
    use futures_util::StreamExt as _;
    let mut again = false;
    loop {
        let missed = std::mem::replace(&mut again, true);
        let listening = async {
            let client = client(&settings, &sentinel, &settings.sentinel_login, 0)?;
            let failed = |error: redis::RedisError| unavailable("cannot listen to a sentinel").because(error);
            let mut news = client.get_async_pubsub().await.map_err(failed)?;
            news.subscribe("+switch-master").await.map_err(failed)?;
            if missed && let Some(member) = member.upgrade() {
                // What it said meanwhile was not heard.
                member.follow_master();
            }
            let (mut sink, mut news) = news.split();
            while member.strong_count() > 0 {
                let message = match timeout(SENTINEL_PING_EVERY, news.next()).await {
                    Ok(Some(message)) => message,
                    Ok(None) => break,
                    Err(_silent) => match timeout(SENTINEL_PAUSE, sink.ping::<Value>()).await {
                        Ok(Ok(_)) => continue,
                        _ => break,
                    },
                };
                let text = String::from_utf8_lossy(message.get_payload_bytes()).into_owned();
                if text.split(' ').next() == Some(&service) {
                    let Some(member) = member.upgrade() else { return Ok(()) };
                    tracing::info!(service, "Redis has another master: {text}");
                    member.follow_master();
                }
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = listening.await {
            tracing::debug!(%error, %sentinel, "not listening to a sentinel");
        }
        if member.strong_count() == 0 {
            return;
        }
        // Nothing rings this: it only lets time pass.
        let _ = timeout(SENTINEL_PAUSE, Notify::new().notified()).await;
    }
}

/// The masters of a cluster and their slots.
pub(super) struct Cluster {
    shared: Arc<Shared>,
    map: RwLock<Map>,
    stale: Notify,
    looking: tokio::sync::Mutex<u64>,
}

#[derive(Default, Clone)]
struct Map {
    /// First and last slot, and who has them; in order.
    slots: Vec<(u16, u16, Address)>,
    members: HashMap<Address, Arc<Member>>,
    /// Nodes without slots that names are moving to; forgotten at the next look.
    asked: HashMap<Address, Arc<Node>>,
}

impl Cluster {
    async fn open(shared: Arc<Shared>) -> Result<Route> {
        let cluster = Arc::new(Self {
            shared: shared.clone(),
            map: RwLock::default(),
            stale: Notify::new(),
            looking: tokio::sync::Mutex::default(),
        });
        cluster.look(None).await?;
        let members: Vec<Arc<Member>> = cluster.map().members.values().cloned().collect();
        // One that is down is waited for by those who need it.
        let connects = futures_util::future::join_all(members.iter().map(|member| member.node.connect())).await;
        if connects.iter().all(Result::is_err) {
            connects.into_iter().collect::<Result<()>>()?;
        }
        let inboxes = members.iter().filter_map(|member| member.inbox.as_ref());
        futures_util::future::join_all(inboxes.map(Inbox::subscribed)).await;
        let refresher = shared.runtime.spawn(refresh(Arc::downgrade(&cluster)));
        Ok(Route::Cluster { cluster, refresher })
    }

    fn map(&self) -> Map {
        self.map.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn member(&self, key: &str) -> Result<Arc<Member>> {
        let slot = slot_of(key);
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let found = map.slots.iter().find(|(first, last, _)| *first <= slot && slot <= *last);
        let member = found.and_then(|(_, _, address)| map.members.get(address)).cloned();
        drop(map);
        member.ok_or_else(|| {
            self.stale.notify_one();
            unavailable(&format!("no master of the Redis cluster has slot {slot}"))
        })
    }

    /// Follows a cluster's redirections, within bounds.
    async fn follow(self: Arc<Self>, failure: Failure, key: &str, work: Work) -> Result<Reply> {
        // What may have been done before it was redirected may have been done, wherever it then fails.
        let unknown = failure.error.certainty() == Certainty::Unknown;
        self.follow_on(failure, key, work).await.map_err(|error| error.unknown_if(unknown))
    }

    async fn follow_on(self: Arc<Self>, mut failure: Failure, key: &str, work: Work) -> Result<Reply> {
        for redirects in 0..REDIRECTS_MAX {
            let answer = match failure.redirect {
                None => {
                    if failure.error.kind() == ErrorKind::Unavailable {
                        self.stale.notify_one();
                    }
                    return Err(failure.error);
                }
                Some(Redirect::Ask(address)) => {
                    let node = match self.map().members.get(&address) {
                        Some(member) => member.node.clone(),
                        None => self.asked_node(address),
                    };
                    node.call(work.clone(), false, true).await
                }
                Some(Redirect::Moved(owner)) => {
                    if redirects > 1 {
                        // Nodes that name each other: they have to agree first.
                        let _ = timeout(MOVING_PAUSE, Notify::new().notified()).await;
                    }
                    // Who has it now knows so; others may not have heard of it yet.
                    self.look(owner).await?;
                    self.member(key)?.node.call(work.clone(), false, false).await
                }
                Some(Redirect::TryAgain) => {
                    let _ = timeout(MOVING_PAUSE, Notify::new().notified()).await;
                    self.member(key)?.node.call(work.clone(), false, false).await
                }
            };
            match answer {
                Ok(reply) => return Ok(reply),
                Err(next) => failure = next,
            }
        }
        Err(failure.error)
    }

    /// A node that has no slots yet: names are on their way to it.
    fn asked_node(&self, address: Address) -> Arc<Node> {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let node = map.asked.entry(address.clone());
        node.or_insert_with(|| node_at(&self.shared, Place::at(&self.shared.settings, address))).clone()
    }

    /// Asks who has which slot, `first` before all others; in a task of the client: others wait for it, and a
    /// caller's may not be polled.
    async fn look(self: &Arc<Self>, first: Option<Address>) -> Result<()> {
        let cluster = self.clone();
        let looked = self.shared.runtime.spawn(async move { cluster.look_now(first.as_ref()).await });
        looked.await.unwrap_or_else(|_| Err(unavailable("the client of Redis was closed")))
    }

    /// Those who ask at the same time share one answer.
    async fn look_now(&self, first: Option<&Address>) -> Result<()> {
        let before = self.looks();
        let mut looks = self.looking.lock().await;
        if *looks > before {
            return Ok(());
        }
        let mut failure = None;
        let known = self.map();
        for address in first.into_iter().chain(known.members.keys()).chain(&self.shared.settings.addresses) {
            let node = match known.members.get(address) {
                Some(member) => member.node.clone(),
                None => node_at(&self.shared, Place::at(&self.shared.settings, address.clone())),
            };
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            let answer = timeout(LOOK_MAX, node.command(command)).await;
            let answer = answer.unwrap_or_else(|_| Err(unavailable(&format!("no answer from Redis at {address}"))));
            match answer.and_then(|value| slots(&value, address)) {
                Ok(slots) => {
                    self.take(slots);
                    *looks += 1;
                    return Ok(());
                }
                // Wrong credentials or not a cluster: no other node will do better.
                Err(error) if !matches!(error.kind(), ErrorKind::Unavailable) => return Err(error),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| unavailable("no node of the Redis cluster")))
    }

    fn looks(&self) -> u64 {
        // Held by somebody: that look began before this question.
        self.looking.try_lock().map_or(0, |looks| *looks)
    }

    fn take(&self, slots: Vec<(u16, u16, Address)>) {
        let mut map = self.map.write().unwrap_or_else(PoisonError::into_inner);
        let mut members = HashMap::new();
        for (_, _, address) in &slots {
            if members.contains_key(address) {
                continue;
            }
            let member = map.members.remove(address).unwrap_or_else(|| {
                let node = node_at(&self.shared, Place::at(&self.shared.settings, address.clone()));
                let inbox = Inbox::keep(&node, self.shared.channel.clone(), self.shared.ear.clone(), None);
                Arc::new(Member { sync: Sync::new(&node), replicas: Total::default(), node, inbox: Some(inbox) })
            });
            members.insert(address.clone(), member);
        }
        *map = Map { slots, members, asked: HashMap::new() };
    }
}

async fn refresh(cluster: Weak<Cluster>) {
    loop {
        let Some(strong) = cluster.upgrade() else { return };
        let _ = timeout(LOOK_EVERY, strong.stale.notified()).await;
        if let Err(error) = strong.look(None).await {
            tracing::debug!(%error, "the Redis cluster does not say who has which slot");
            let _ = timeout(MOVING_PAUSE * 4, Notify::new().notified()).await;
        }
    }
}

/// The answer to CLUSTER SLOTS. A node that does not know its own address leaves it out.
fn slots(value: &Value, asked: &Address) -> Result<Vec<(u16, u16, Address)>> {
    if matches!(value, Value::Array(ranges) if ranges.is_empty()) {
        return Err(unavailable(&format!(
            "the Redis at {asked} has no slots of the cluster: it was reset, or left it"
        )));
    }
    let parse = || {
        let Value::Array(ranges) = value else { return None };
        let mut slots = Vec::with_capacity(ranges.len());
        for range in ranges {
            let Value::Array(range) = range else { return None };
            let [first, last, Value::Array(master), ..] = range.as_slice() else { return None };
            let slot = |value: &Value| u16::try_from(wire::number(value)?).ok();
            let host = master.first().and_then(wire::text).filter(|host| !host.is_empty() && *host != "?");
            let host = host.unwrap_or(&asked.host).to_owned();
            slots.push((slot(first)?, slot(last)?, Address { host, port: slot(master.get(1)?)? }));
        }
        Some(slots)
    };
    parse()
        .ok_or_else(|| Error::new(ErrorKind::Store, format!("CLUSTER SLOTS answered something unexpected: {value:?}")))
}

/// The hash slot of a key: CRC16 (XMODEM) of its tag, or of all of it.
fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    let mut crc: u16 = 0;
    for byte in hashed.bytes() {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
        }
    }
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_redis_computes() {
        // As `CLUSTER KEYSLOT` answers.
        for (key, slot) in [("123456789", 12739), ("foo", 12182), ("a{foo}b", 12182), ("{}x", 10595)] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }
}
