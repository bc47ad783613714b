//! What the parts of one client share: its sessions, its claims, and who hears of them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::error::unavailable;
use super::keeper;
use super::limits::{Host, Limits, Told};
use super::names::Paths;
use super::record::Known;
use super::session::Session;
use super::table::Table;
use super::url::Settings;
use crate::backend::{Event, Listener};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Loss, Result};

/// The session that is used for what needs none of a certain timeout.
const TTL_USUAL: Duration = Duration::from_secs(10);
/// Each ttl has a session of its own, and servers limit the connections of a client (maxClientCnxns, 60 by default).
const SESSIONS_MAX: usize = 32;
/// How many sessions that have ended are remembered: their nodes may still be there.
const ENDED_MAX: usize = 256;
/// How many nodes are remembered that were looked into.
const KNOWN_MAX: usize = 4096;

/// The session of one ttl, made when it is needed.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<Session>>>>;

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
    slots: Mutex<HashMap<Duration, Slot>>,
    ended: Mutex<VecDeque<i64>>,
    known: Mutex<HashMap<String, Arc<Known>>>,
    /// Notes of broken claims that this client wrote, and when they may go.
    pub(super) notes: Mutex<Vec<(String, Arc<Session>, Moment)>>,
}

fn unpoisoned<T>(guarded: &Mutex<T>) -> MutexGuard<'_, T> {
    guarded.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets time pass, for work that nobody waits for.
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
            slots: Mutex::default(),
            ended: Mutex::default(),
            known: Mutex::default(),
            notes: Mutex::default(),
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

    pub(super) fn limits_differ(&self) -> bool {
        unpoisoned(&self.told).differ()
    }

    pub(super) fn learn_limits(&self, told: Vec<(Host, Limits)>) {
        unpoisoned(&self.told).update(told);
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
    pub(super) async fn usual(self: &Arc<Self>) -> Result<Arc<Session>> {
        let limits = self.limits();
        self.session(TTL_USUAL.max(limits.floor()).min(limits.max)).await
    }

    /// The session for claims of this ttl.
    pub(super) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let timeout = self.timeout_of(ttl)?;
        let slot = self.slot(timeout)?;
        if let Ok(slot) = slot.try_lock()
            && let Some(session) = slot.as_ref().filter(|session| !session.has_ended())
        {
            return Ok(session.clone());
        }
        // On its own, so that one who gives up does not begin anew each time.
        let desk = self.clone();
        let opened = self.runtime.spawn(async move {
            let mut slot = slot.lock().await;
            if let Some(session) = slot.as_ref().filter(|session| !session.has_ended()) {
                return Ok(session.clone());
            }
            let (clock, containers) = (desk.clock.clone(), desk.containers.clone());
            let session = Session::open(&desk.settings, &desk.limits(), timeout, clock, containers).await?;
            let session = Arc::new(session);
            *slot = Some(session.clone());
            keeper::start(&desk, &session);
            Ok(session)
        });
        opened.await.unwrap_or_else(|_| Err(unavailable("the runtime the client was opened on has ended")))
    }

    fn slot(&self, timeout: Duration) -> Result<Slot> {
        let mut slots = unpoisoned(&self.slots);
        if let Some(slot) = slots.get(&timeout) {
            return Ok(slot.clone());
        }
        if slots.len() >= SESSIONS_MAX {
            slots.retain(|_, slot| slot.try_lock().is_ok_and(|slot| slot.as_ref().is_some_and(|s| !s.has_ended())));
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
        let Ok(slot) = slot.try_lock() else { return false };
        slot.as_ref().is_some_and(|session| Arc::strong_count(session) == 1 && self.table.count(session.id) == 0)
    }

    /// Lets go of a session that nobody has used for a while. False if somebody does.
    pub(super) fn retire(&self, session: &Arc<Session>) -> bool {
        let mut slots = unpoisoned(&self.slots);
        let Some(slot) = slots.get(&session.timeout).cloned() else { return true };
        let Ok(mut slot) = slot.try_lock() else { return false };
        // Two are the slot's and the caller's.
        if self.table.count(session.id) > 0 || Arc::strong_count(session) > 2 {
            return false;
        }
        *slot = None;
        slots.remove(&session.timeout);
        true
    }

    /// How often sessions are to be heard of: a batch of renewals counts from the one that was heard of least recently.
    pub(super) fn pace(&self) -> Duration {
        let shortest = unpoisoned(&self.slots).keys().min().copied().unwrap_or(TTL_USUAL);
        shortest / 10
    }

    /// A session has ended, and all its nodes with it.
    pub(super) fn session_ended(&self, session: &Session) {
        session.end();
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
}
