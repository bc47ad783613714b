//! What the parts of one client share: its sessions, its claims, and who hears of them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::appends::Appends;
use super::close::Closings;
use super::doubt::Doubted;
use super::error::unavailable;
use super::keeper;
use super::limits::{Heard, Host, Limits, Told};
use super::listings::Lister;
use super::memo_sweep::Sweeps;
use super::names::Paths;
use super::probe::GRACE;
use super::record::Known;
use super::session::Session;
use super::table::Table;
use super::url::Settings;
use crate::backend::{Event, Listener};
use crate::backends::kit::wall::StoreWall;
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, ErrorKind, Loss, Result};

/// The session that is used for what needs none of a certain timeout.
const TTL_USUAL: Duration = Duration::from_secs(10);
/// Each ttl has a session of its own, and servers limit the connections of a client (maxClientCnxns, 60 by default).
const SESSIONS_MAX: usize = 32;
/// How many sessions that have ended are remembered: their nodes may still be there.
const ENDED_MAX: usize = 256;
/// How many nodes are remembered that were looked into.
const KNOWN_MAX: usize = 4096;

/// The session of one ttl, made when it is needed. Locked while it is made, so that many who need it make one.
type Slot = Arc<tokio::sync::Mutex<Place>>;

#[derive(Debug, Default)]
struct Place {
    session: Option<Arc<Session>>,
    /// When none could be made, and why.
    failed: Option<(Moment, Error)>,
}

impl Place {
    fn living(&self) -> Option<&Arc<Session>> {
        self.session.as_ref().filter(|session| !session.has_ended())
    }

    /// What whoever came at this moment is told; nothing if it has to be tried.
    fn answer(&self, came: Moment, suits: impl Fn(&Session) -> bool) -> Option<Result<Arc<Session>>> {
        if let Some(session) = self.living().filter(|session| suits(session)) {
            return Some(Ok(session.clone()));
        }
        // It was tried while this one waited for its turn to try.
        let (_, error) = self.failed.as_ref().filter(|(at, _)| *at >= came)?;
        Some(Err(error.again().with_certainty(Certainty::NotApplied)))
    }
}

pub(super) struct Desk {
    pub(super) settings: Settings,
    pub(super) paths: Paths,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) table: Table,
    pub(super) containers: Arc<AtomicBool>,
    /// Where the client was opened: what has to outlive a call runs there.
    pub(super) runtime: tokio::runtime::Handle,
    listener: OnceLock<Listener>,
    told: Mutex<Told>,
    /// When servers were last asked and at least one answered. Held while they are.
    pub(super) asked_at: tokio::sync::Mutex<Option<Moment>>,
    pub(super) doubted: Arc<Doubted>,
    slots: Mutex<HashMap<Duration, Slot>>,
    pub(super) lister: Lister,
    pub(super) appends: Appends,
    pub(super) closings: Closings,
    ended: Mutex<VecDeque<i64>>,
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Notes of broken claims that this client wrote, and when they may go.
    pub(super) notes: Mutex<Vec<(String, Arc<Session>, Moment)>>,
    pub(super) wall_told: StoreWall,
    pub(super) memo_sweeps: Sweeps,
}

fn unpoisoned<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets time pass, for work that nobody waits for.
///
/// # Cancel safety
///
/// Cancel safe: it only waits.
pub(super) async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}

impl Desk {
    pub(super) fn new(settings: Settings, told: Told, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            paths: Paths::new(&settings.root),
            settings,
            clock,
            table: Table::default(),
            containers: Arc::new(AtomicBool::new(true)),
            runtime: tokio::runtime::Handle::current(),
            listener: OnceLock::new(),
            told: Mutex::new(told),
            asked_at: tokio::sync::Mutex::default(),
            doubted: Arc::default(),
            slots: Mutex::default(),
            lister: Lister::default(),
            appends: Appends::default(),
            closings: Closings::default(),
            ended: Mutex::default(),
            known: Mutex::default(),
            notes: Mutex::default(),
            wall_told: StoreWall::default(),
            memo_sweeps: Sweeps::default(),
        })
    }

    pub(super) fn listen(&self, listener: Listener) {
        // Called once; a second listener would not hear of the first one's claims.
        let _ = self.listener.set(listener);
    }

    pub(super) fn tell(&self, event: Event) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }

    /// What all servers allow.
    pub(super) fn limits(&self) -> Limits {
        unpoisoned(&self.told).joint()
    }

    /// Whether the tick is known, and not taken for granted.
    pub(super) fn ticks_are_told(&self) -> bool {
        unpoisoned(&self.told).ticks_are_told()
    }

    pub(super) fn limits_differ(&self) -> bool {
        unpoisoned(&self.told).differ()
    }

    pub(super) fn learn_limits(&self, told: Vec<(Host, Heard)>) {
        unpoisoned(&self.told).update(told);
    }

    pub(super) fn learn_ticks(&self, told: &[(Host, Duration)]) {
        unpoisoned(&self.told).update_ticks(told);
    }

    /// The servers whose limits are known.
    pub(super) fn heard_hosts(&self) -> Vec<Host> {
        unpoisoned(&self.told).heard_of(&self.settings.hosts)
    }

    /// The timeout of the session that has the claims of this ttl: whole milliseconds, and never less.
    pub(super) fn timeout_of(&self, ttl: Duration) -> Result<Duration> {
        let limits @ Limits { min, max, tick } = self.limits();
        let millis = u64::try_from(ttl.as_micros().div_ceil(1000)).unwrap_or(u64::MAX);
        let timeout = Duration::from_millis(millis);
        let (bound, setting) = match () {
            () if timeout < min => (min, "minSessionTimeout"),
            () if timeout > max => (max, "maxSessionTimeout"),
            () if timeout < limits.floor() => (tick, "tickTime"),
            () => return Ok(timeout),
        };
        let two = if setting == "tickTime" {
            ", and it takes two of them (?tick= in the URL, should that be wrong)"
        } else {
            ""
        };
        let message = format!("a ttl of {ttl:?} is out of range: the servers' {setting} is {bound:?}{two}");
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// A session for what needs none of a certain timeout.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a session that is not finished ends by itself.
    pub(super) async fn usual(self: &Arc<Self>) -> Result<Arc<Session>> {
        let limits = self.limits();
        self.session(TTL_USUAL.max(limits.floor()).min(limits.max)).await
    }

    /// The session for claims of this ttl.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a session that is not finished ends by itself.
    pub(super) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        self.session_that(ttl, |_| true).await
    }

    /// The session for claims of this ttl; a new one in place of one that does not suit.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a session that is not finished ends by itself.
    pub(super) async fn session_that(
        self: &Arc<Self>,
        ttl: Duration,
        suits: impl Fn(&Session) -> bool,
    ) -> Result<Arc<Session>> {
        let timeout = self.timeout_of(ttl)?;
        let came = self.clock.now();
        let mut place = self.slot(timeout)?.lock_owned().await;
        if let Some(answer) = place.answer(came, suits) {
            return answer;
        }
        // On its own, so that one who gives up does not begin anew each time.
        let desk = self.clone();
        let opened = self.runtime.spawn(async move {
            // It ends with its last user then.
            place.session = None;
            match desk.open(timeout).await {
                Ok(session) => {
                    let session = Arc::new(session);
                    *place = Place { session: Some(session.clone()), failed: None };
                    keeper::start(&desk, &session);
                    Ok(session)
                }
                Err(error) => {
                    place.failed = Some((desk.clock.now(), error.again()));
                    Err(error)
                }
            }
        });
        opened.await.unwrap_or_else(|_| Err(unavailable("the runtime the client was opened on has ended")))
    }

    /// Makes a session, at servers of which it is known that they allow it: whoever comes to others finds out too late.
    async fn open(&self, timeout: Duration) -> Result<Session> {
        if self.heard_hosts().len() < self.settings.hosts.len() {
            // Some were away when they were asked last.
            self.ask_limits(GRACE).await;
            self.timeout_of(timeout)?;
        }
        let (clock, containers) = (self.clock.clone(), self.containers.clone());
        let place = (self.heard_hosts(), self.limits().tick);
        let opened = Session::open(&self.settings, place, timeout, clock, containers).await;
        if opened.as_ref().is_err_and(|error| error.kind() == ErrorKind::Invalid) {
            // The server gave another timeout than was to be expected. The next one who asks is told right.
            self.ask_limits(GRACE).await;
        }
        opened
    }

    fn slot(&self, timeout: Duration) -> Result<Slot> {
        let mut slots = unpoisoned(&self.slots);
        if let Some(slot) = slots.get(&timeout) {
            return Ok(slot.clone());
        }
        if slots.len() >= SESSIONS_MAX {
            slots.retain(|_, slot| {
                // Not one that is being made.
                slot.try_lock().map_or(true, |place| place.living().is_some())
            });
        }
        if slots.len() >= SESSIONS_MAX {
            // One that has no claims makes room. Whoever is about to use it has it as well.
            let idle = slots.iter().find(|(_, slot)| self.is_unused(slot)).map(|(timeout, _)| *timeout);
            idle.map(|timeout| slots.remove(&timeout));
        }
        if slots.len() >= SESSIONS_MAX {
            let message = format!(
                "{SESSIONS_MAX} different ttls are in use: each has a ZooKeeper session, and there are no more"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        Ok(slots.entry(timeout).or_default().clone())
    }

    fn is_unused(&self, slot: &Slot) -> bool {
        // Not while it is being made: that is then kept.
        let Ok(place) = slot.try_lock() else { return false };
        place
            .session
            .as_ref()
            .is_some_and(|session| Arc::strong_count(session) == 1 && self.table.count(session.id) == 0)
    }

    /// Lets go of a session that nobody has used for a while. False if somebody does.
    pub(super) fn retire(&self, session: &Arc<Session>) -> bool {
        let mut slots = unpoisoned(&self.slots);
        let slot = slots.get(&session.timeout).cloned();
        let mut slot = match slot.as_ref().map(|slot| slot.try_lock()) {
            Some(Ok(slot)) => Some(slot),
            Some(Err(_)) => return false,
            None => None,
        };
        let own = slot.as_mut().filter(|place| place.session.as_ref().is_some_and(|held| held.id == session.id));
        // One is the caller's, and one the slot's.
        let users = Arc::strong_count(session).saturating_sub(1 + usize::from(own.is_some()));
        if self.table.count(session.id) > 0 || users > 0 {
            return false;
        }
        if let Some(own) = own {
            own.session = None;
            slots.remove(&session.timeout);
        }
        self.table.let_go(session, None, &self.closings);
        true
    }

    /// Takes those of the present sessions that are meant.
    pub(super) fn take_sessions(&self, meant: impl Fn(&Session) -> bool) -> Vec<Arc<Session>> {
        let slots = unpoisoned(&self.slots);
        // One that is being made is left to whoever makes it.
        let places = slots.values().filter_map(|slot| slot.try_lock().ok());
        places.filter_map(|mut place| place.session.take_if(|session| meant(session))).collect()
    }

    /// Takes a session that has ended out of its slot, so that it ends with its last user: as long as there is one, the
    /// client library keeps it alive at the servers.
    pub(super) fn vacate(&self, session: &Session) {
        let slots = unpoisoned(&self.slots);
        // Whoever has the lock either looks only, in which case its keeper comes here once more, or makes a new one.
        if let Some(slot) = slots.get(&session.timeout)
            && let Ok(mut place) = slot.try_lock()
        {
            place.session.take_if(|held| held.id == session.id);
        }
    }

    /// Whether one of the sessions has a connection.
    pub(super) fn is_connected(&self) -> bool {
        let slots = unpoisoned(&self.slots);
        let mut places = slots.values().filter_map(|slot| slot.try_lock().ok());
        places.any(|place| place.living().is_some_and(|session| session.is_connected()))
    }

    /// The shortest timeout that a session has.
    pub(super) fn shortest(&self) -> Duration {
        unpoisoned(&self.slots).keys().min().copied().unwrap_or(TTL_USUAL)
    }

    /// How often sessions are to be heard of: a batch of renewals counts from the one that was heard of least recently.
    pub(super) fn pace(&self) -> Duration {
        self.shortest() / 10
    }

    /// A session has ended, and all its nodes with it.
    pub(super) fn session_ended(&self, session: &Session) {
        session.end();
        self.vacate(session);
        let mut ended = unpoisoned(&self.ended);
        if !ended.contains(&session.id) {
            if ended.len() >= ENDED_MAX {
                ended.pop_front();
            }
            ended.push_back(session.id);
        }
        drop(ended);
        unpoisoned(&self.notes).retain(|(_, writer, _)| writer.id != session.id);
        for (id, entry) in self.table.remove_session(session.id) {
            if let Some(placed) = entry.placed.filter(|_| !entry.ending) {
                self.tell(Event::Ended { id, number: placed.number, loss: Loss::Gone });
            }
        }
    }

    /// Whether a node belongs to a session of this client that has ended: it is about to go.
    pub(super) fn is_of_the_past(&self, session: i64) -> bool {
        unpoisoned(&self.ended).contains(&session)
    }

    pub(super) fn known(&self, path: &str) -> Option<Arc<Known>> {
        unpoisoned(&self.known).get(path).cloned()
    }

    pub(super) fn learn(&self, path: &str, known: Arc<Known>) {
        let mut all = unpoisoned(&self.known);
        if all.len() >= KNOWN_MAX {
            all.clear();
        }
        all.insert(path.to_owned(), known);
    }

    pub(super) fn forget(&self, path: &str) {
        unpoisoned(&self.known).remove(path);
    }

    pub(super) fn has_containers(&self) -> bool {
        self.containers.load(Ordering::Relaxed)
    }

    pub(super) fn weak(self: &Arc<Self>) -> Weak<Self> {
        Arc::downgrade(self)
    }

    /// Takes the notes that may go by now.
    pub(super) fn old_notes(&self, session: i64, now: Moment) -> Vec<(String, Arc<Session>)> {
        let mut notes = unpoisoned(&self.notes);
        let old = notes.extract_if(.., |(_, writer, until)| writer.id == session && *until <= now);
        old.map(|(path, writer, _)| (path, writer)).collect()
    }

    pub(super) fn keep_note(&self, path: String, writer: Arc<Session>, until: Moment) {
        unpoisoned(&self.notes).push((path, writer, until));
    }

    /// A note was not written after all.
    pub(super) fn drop_note(&self, path: &str, writer: i64) {
        let mut notes = unpoisoned(&self.notes);
        let latest = notes.iter().rposition(|(kept, by, _)| kept == path && by.id == writer);
        latest.map(|at| notes.swap_remove(at));
    }
}
