//! One ZooKeeper session: a connection whose ephemeral nodes live for one ttl after the client was last heard of.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use tokio::runtime::Handle;
use tokio::time::timeout;
use zookeeper_client::{
    Acls, Client, Connector, CreateMode, CreateOptions, Error as Refused, SaslOptions, SessionState,
};

use super::close::{self, Closing};
use super::error::{is_answer, of_connecting, unavailable, wants_login};
use super::limits::Host;
use super::names::{Paths, parent};
use super::pulse::Pulse;
use super::trust::Trust;
use super::url::{Login, Scheme, Settings};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// How long one request may take. Whoever asked has given up long before.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// How long making a session may take, with all tries.
const CONNECT_MAX: Duration = Duration::from_secs(8);
/// A connection that is silent for this part of the ttl is given up, and for so long at most. A server that is cut
/// off from its leader is: once a write of a session waits there, all else that the session asks waits behind it,
/// pings too. A lease is to outlive that also if the session comes to that server once more; the rest of the ttl is
/// for the renewal that comes before, and for asking all servers again.
const SILENT_PART: u32 = 6;
const SILENT_MAX: Duration = Duration::from_secs(3);
/// A short ttl gives a larger part, up to so long: servers pause now and then.
const SILENT_PART_SHORT: u32 = 4;
const SILENT_SHORT: Duration = Duration::from_millis(500);
/// A session whose claims are due again as soon as they are renewed is written to once in this part of its timeout,
/// so that asking has an end: when a tick is long beside the ttl, or the servers are just coming back.
const REST_PART: u32 = 12;
/// How often the parents of a node are made before giving up: whoever removes empty ones comes once a minute.
const TRIES_MAX: usize = 4;

/// The answer to a request, or why there is none.
pub(super) type Answered<T> = std::result::Result<T, Refused>;

/// What was asked, for what it proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Answered by one server alone.
    Read,
    /// Answered by the quorum.
    Write,
}

pub(super) struct Session {
    pub(super) client: Client,
    pub(super) id: i64,
    /// The session's timeout: the ttl of its claims, in whole milliseconds.
    pub(super) timeout: Duration,
    /// The servers that it may be at: those whose limits are known.
    pub(super) hosts: Vec<Host>,
    clock: Arc<dyn Clock>,
    pulse: Mutex<Pulse>,
    trust: Mutex<Trust>,
    /// Held by whoever writes the beat.
    pub(super) beating: Arc<tokio::sync::Mutex<()>>,
    beat: String,
    /// When the latest beat was sent.
    beaten: Mutex<Option<Moment>>,
    acls: Acls<'static>,
    /// Whether the server makes nodes that end by themselves once they are empty.
    containers: Arc<AtomicBool>,
    ended: AtomicBool,
    /// Set if nothing lives by it: it is closed then once its last user has gone.
    closing: Mutex<Option<Closing>>,
    settings: Settings,
    /// Where the client was opened.
    runtime: Handle,
    /// Nodes made so far: whether there may be one that nobody knows of.
    pub(super) made: AtomicU64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:#x}, {:?})", self.id, self.timeout)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.has_ended() {
            return;
        }
        match self.closing.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            Some(closing) => {
                let connector = connector(&self.settings, self.timeout).with_session(self.client.session().clone());
                self.runtime.spawn(close::close(connector, self.settings.servers(&self.hosts), closing));
            }
            // It is left to its timeout, for a claim may be meant to outlive the one who made it. Without one, this
            // node is all that it has. Sent now, and nobody waits for it.
            None => drop(self.client.delete(&self.beat, None)),
        }
    }
}

/// What all connections of a session are made by.
fn connector(settings: &Settings, asked: Duration) -> Connector {
    let connector = Client::connector().with_session_timeout(asked).with_connection_timeout(silence(asked));
    let connector = match &settings.login {
        Some(Login { user, password, scheme: Scheme::Digest }) => {
            connector.with_auth("digest", format!("{user}:{password}").as_bytes())
        }
        Some(Login { user, password, scheme: Scheme::Sasl }) => {
            connector.with_sasl(SaslOptions::digest_md5(user.clone(), password.clone()))
        }
        None => connector,
    };
    match &settings.tls {
        #[cfg(not(feature = "tls"))]
        Some(none) => match *none {},
        #[cfg(feature = "tls")]
        Some(tls) => connector.with_tls(tls.options.clone()),
        None => connector,
    }
}

impl Session {
    /// Makes a session with this timeout at one of these servers, or says why there is none. It will not go to others.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a session that nobody is given ends by itself.
    pub(super) async fn open(
        settings: &Settings,
        (hosts, tick): (Vec<Host>, Duration),
        asked: Duration,
        clock: Arc<dyn Clock>,
        containers: Arc<AtomicBool>,
    ) -> Result<Self> {
        let connected = async {
            loop {
                let sent = clock.now();
                // Detached: what it has may be meant to outlive this process.
                match connector(settings, asked).with_detached().connect(&settings.servers(&hosts)).await {
                    // A short session leaves little time to connect in. Each try takes as long as that.
                    Err(Refused::Timeout) => {}
                    // At once, since a watcher tells only of what comes after it.
                    answer => return answer.map(|client| (Trust::new(client.state_watcher()), client, sent)),
                }
            }
        };
        let (trust, client, sent) = match timeout(CONNECT_MAX, connected).await {
            Ok(Err(error @ Refused::AuthFailed)) if settings.login.is_none() => return Err(wants_login(&error)),
            Ok(connected) => connected.map_err(of_connecting)?,
            Err(_) => return Err(unavailable("no server of the ensemble answers, or they have no quorum")),
        };
        let given = client.session_timeout();
        if given != asked {
            return Err(other_timeout(asked, given));
        }
        let acls = if settings.login.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        let id = client.session_id().0;
        Ok(Self {
            beat: Paths::new(&settings.root).beat(id),
            client,
            id,
            timeout: asked,
            hosts,
            pulse: Mutex::new(Pulse::new(sent, tick)),
            clock,
            trust: Mutex::new(trust),
            beating: Arc::default(),
            beaten: Mutex::default(),
            acls,
            containers,
            ended: AtomicBool::new(false),
            closing: Mutex::default(),
            settings: settings.clone(),
            runtime: Handle::current(),
            made: AtomicU64::new(0),
        })
    }

    fn pulse(&self) -> MutexGuard<'_, Pulse> {
        self.pulse.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment from which the ttl of its claims surely counts.
    pub(super) fn counted(&self) -> Moment {
        self.pulse().counted()
    }

    /// When it last was heard of, as far as is known.
    pub(super) fn heard(&self) -> Moment {
        self.pulse().heard()
    }

    /// Whether its nodes are lost.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire) || self.client.state().is_terminated()
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Nothing lives by it: it is closed once its last user has gone.
    pub(super) fn let_go(&self, closing: Closing) {
        *self.closing.lock().unwrap_or_else(PoisonError::into_inner) = Some(closing);
    }

    /// Something is to live by it, for as long as its timeout after its last user has gone.
    pub(super) fn keep(&self) {
        *self.closing.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.state() == SessionState::SyncConnected
    }

    /// Sends a request, and takes note of what its answer proves. `begin` sends it when it is called, in the order of
    /// calls.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome of what was asked unknown.
    pub(super) async fn ask<T, F>(&self, kind: Kind, begin: impl FnOnce() -> F) -> Answered<T>
    where
        F: Future<Output = Answered<T>>,
    {
        let sent = self.clock.now();
        let answer = timeout(ANSWER_MAX, begin()).await.unwrap_or(Err(Refused::Timeout));
        let is_write = kind == Kind::Write && answer.is_ok();
        if answer.as_ref().err().is_none_or(is_answer) && self.doubt().is_none() {
            self.pulse().answered(sent, self.clock.now(), is_write);
        }
        answer
    }

    /// The connection of which is not known yet whether its server keeps to the session's timeout. Nothing counts then.
    pub(super) fn doubt(&self) -> Option<u64> {
        self.trust().doubt()
    }

    /// Whether its timeout will never be known, so that it is given up.
    pub(super) fn is_spoilt(&self) -> bool {
        self.trust().is_spoilt()
    }

    /// Whether this part of its timeout has passed since the moment that its claims count from.
    pub(super) fn has_lost(&self, part: Duration) -> bool {
        self.counted() + part <= self.clock.now()
    }

    /// All servers keep to the session's timeout, and have this tick: settled, if this connection is the latest.
    pub(super) fn settle(&self, connection: u64, tick: Duration) -> bool {
        self.pulse().lengthen_tick(tick);
        self.trust().settle(connection)
    }

    /// Whether its server answers a write within this time. It proves nothing else.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was written says nothing.
    pub(super) async fn is_answered_within(&self, patience: Duration) -> bool {
        matches!(timeout(patience, self.write_beat()).await, Ok(Ok(())))
    }

    pub(super) fn trust(&self) -> MutexGuard<'_, Trust> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a server takes at most to tell its leader of this session.
    pub(super) fn tick(&self) -> Duration {
        self.pulse().tick()
    }

    /// Keeps the session alive, and proves it: by a write of its own. Those who come while one is under way share the
    /// next.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the session lives longer.
    pub(super) async fn beat(&self) -> Answered<Moment> {
        let came = self.clock.now();
        let turn = self.beating.lock().await;
        if self.pulse().written() < came {
            self.write_beat().await?;
        }
        drop(turn);
        Ok(self.counted())
    }

    /// [`beat`](Self::beat), waited for no longer than this. What was sent goes on: its answer counts when it comes.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the session lives longer.
    pub(super) async fn beat_within(self: &Arc<Self>, runtime: &Handle, patience: Duration) -> Answered<Moment> {
        let came = self.clock.now();
        let beaten = async {
            let turn = self.beating.clone().lock_owned().await;
            if self.pulse().written() >= came {
                return Ok(());
            }
            let session = self.clone();
            let written = runtime.spawn(async move {
                let written = session.write_beat().await;
                drop(turn);
                written
            });
            written.await.unwrap_or(Err(Refused::ClientClosed))
        };
        timeout(patience, beaten).await.unwrap_or(Err(Refused::Timeout))?;
        Ok(self.counted())
    }

    /// How long the next beat is put off: not at all, unless its claims would be due again at once after the latest.
    pub(super) fn rest(&self, now: Moment) -> Duration {
        if self.counted() + self.timeout / 3 > now {
            return Duration::ZERO;
        }
        let beaten = *self.beaten.lock().unwrap_or_else(PoisonError::into_inner);
        beaten.map_or(Duration::ZERO, |at| (at + self.timeout / REST_PART).since(now))
    }

    async fn write_beat(&self) -> Answered<()> {
        *self.beaten.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.clock.now());
        match self.ask(Kind::Write, || self.client.set_data(&self.beat, b"", None)).await {
            Err(Refused::NoNode) => self.make(&self.beat, b"", CreateMode::Ephemeral).await,
            answer => answer.map(|_| ()),
        }
    }

    /// The leader's wall clock, in milliseconds: when a write was done that is asked for now.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the session lives longer.
    pub(super) async fn written_at(&self) -> Answered<i64> {
        for _ in 0..TRIES_MAX {
            match self.ask(Kind::Write, || self.client.set_data(&self.beat, b"", None)).await {
                Ok(stat) => return Ok(stat.mtime),
                Err(Refused::NoNode) => self.make(&self.beat, b"", CreateMode::Ephemeral).await?,
                Err(error) => return Err(error),
            }
        }
        Err(Refused::NoNode)
    }

    /// Reads something, so that a later write proves that the session lived now.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst the session lives longer.
    pub(super) async fn ping(&self) {
        // That it failed is known from the pulse.
        let _ = self.ask(Kind::Read, || self.client.check_stat(&self.beat)).await;
    }

    pub(super) fn options(&self, mode: CreateMode) -> CreateOptions<'static> {
        mode.with_acls(self.acls)
    }

    /// Makes a node of its own, and its parents if need be; one that is there already is as good.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn make(&self, path: &str, data: &[u8], mode: CreateMode) -> Answered<()> {
        for _ in 0..TRIES_MAX {
            match self.ask(Kind::Write, || self.client.create(path, data, &self.options(mode))).await {
                Ok(_) | Err(Refused::NodeExists) => return Ok(()),
                Err(Refused::NoNode) => self.make_container(parent(path)).await?,
                Err(error) => return Err(error),
            }
        }
        Err(Refused::NoNode)
    }

    /// Makes a node that the server removes once it has no children left.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: at worst an empty node is left.
    pub(super) async fn make_container(&self, path: &str) -> Answered<()> {
        for _ in 0..TRIES_MAX {
            let mode =
                if self.containers.load(Ordering::Relaxed) { CreateMode::Container } else { CreateMode::Persistent };
            match self.ask(Kind::Write, || self.client.create(path, b"", &self.options(mode))).await {
                Ok(_) | Err(Refused::NodeExists) => return Ok(()),
                // Before 3.5.3: its nodes stay.
                Err(Refused::Unimplemented) => self.containers.store(false, Ordering::Relaxed),
                Err(Refused::NoNode) => self.make_root(parent(path)).await?,
                Err(error) => return Err(error),
            }
        }
        Err(Refused::NoNode)
    }

    /// Makes a node that stays, and its parents, unless it is there.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: at worst an empty node is left.
    pub(super) async fn make_root(&self, path: &str) -> Answered<()> {
        if path.len() <= 1 {
            return Ok(());
        }
        // Making what is there is refused to whoever may not change its parent. Answered in the order they are sent in.
        let synced = self.ask(Kind::Read, || self.client.sync(path));
        let seen = self.ask(Kind::Read, || self.client.check_stat(path));
        if let (Ok(()), Ok(Some(_))) = join(synced, seen).await {
            return Ok(());
        }
        let options = self.options(CreateMode::Persistent);
        self.ask(Kind::Write, || self.client.mkdir(path, &options)).await
    }
}

/// How long a connection of a session with this timeout may be silent.
fn silence(timeout: Duration) -> Duration {
    (timeout / SILENT_PART).max((timeout / SILENT_PART_SHORT).min(SILENT_SHORT)).min(SILENT_MAX)
}

/// A server that gives another timeout than its limits allow for, or than the other servers do.
fn other_timeout(asked: Duration, given: Duration) -> Error {
    let setting = if given > asked { "minSessionTimeout" } else { "maxSessionTimeout" };
    Error::new(
        ErrorKind::Invalid,
        format!("a ttl of {asked:?} is out of range: the server's {setting} is {given:?} (docs/backends/zookeeper.md)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_silent_is_left_twice_within_a_ttl() {
        for millis in (3_000..120_000).step_by(500) {
            let ttl = Duration::from_millis(millis);
            // The next renewal, two servers or one twice, and the question to all.
            let taken = ttl / 3 + silence(ttl) * 2 + (ttl / 4).min(Duration::from_millis(1500));
            assert!(taken <= ttl * 95 / 100, "{ttl:?}: {taken:?}");
        }
        let silences =
            [200, 2_000, 3_000, 10_000, 60_000].map(|millis| silence(Duration::from_millis(millis)).as_millis());
        assert_eq!(silences, [50, 500, 500, 1666, 3000]);
    }
}
