//! What happens to locks, for those who listen: one watch for all of them, and only while somebody does.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use tenure::watch::Change;
use tenure::{Name, Owner, Tenure, Token};
use tokio::sync::{broadcast, watch};

use crate::problem::{Answer, Problem, ms};

/// How many events a reader may be behind before it is told and dropped.
const BEHIND_MAX: usize = 4_096;
/// How many are told at once: more than a reader may be behind would drop all of them, however fast they read.
const BURST_MAX: usize = 1_024;
/// The pause after so many.
const BURST_PAUSE: Duration = Duration::from_millis(10);
/// How many are kept for readers that come back: the one that a reader saw last, and those that it missed.
const KEPT_MAX: usize = 1 + 4_096;
/// How long the watch goes on when nobody listens any more, so that a reader that comes back misses nothing.
const LINGER: Duration = Duration::from_secs(30);

/// The last event: the instance stops.
pub(crate) const STOPPING: &str = "stopping";

/// One event.
#[derive(Debug)]
pub(crate) struct Event {
    /// What readers know it by. Random: a number that counts would tell how much happens to names that a reader may
    /// not see.
    pub(crate) id: u64,
    /// Its place in the order of all events. Nobody is told.
    number: u64,
    pub(crate) kind: &'static str,
    /// What it is about; none for what concerns the store.
    pub(crate) name: Option<Name>,
    pub(crate) json: String,
}

/// As `tenure watch --json` prints it.
#[derive(Serialize)]
struct EventBody<'a> {
    event: &'static str,
    name: &'a Name,
    owner: Option<&'a Owner>,
    label: Option<&'a str>,
    token: Option<Token>,
    at: String,
    held_ms: Option<u64>,
    waited_ms: Option<u64>,
    by: Option<&'a str>,
    reason: Option<&'a str>,
}

/// All events of this instance.
pub(crate) struct Feed {
    tenure: Tenure,
    /// Tells the events of this instance from those of others.
    pub(crate) instance: String,
    sender: broadcast::Sender<Arc<Event>>,
    state: Mutex<State>,
    readers: AtomicUsize,
    readers_max: usize,
    /// Rung when streams are to end.
    pub(crate) stopped: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<Arc<Event>>,
    /// The numbers of those that are kept, by their ids.
    numbers: HashMap<u64, u64>,
    next: u64,
    watched: bool,
}

/// One who listens.
pub(crate) struct Reader {
    feed: Arc<Feed>,
    pub(crate) missed: VecDeque<Arc<Event>>,
    /// Whether events were missed that are not kept any more.
    pub(crate) gap: bool,
    pub(crate) events: broadcast::Receiver<Arc<Event>>,
}

impl Feed {
    pub(crate) fn new(tenure: Tenure, readers_max: usize) -> Arc<Self> {
        let (sender, _) = broadcast::channel(BEHIND_MAX);
        let instance = format!("{:08x}", rand::random::<u32>());
        let (state, readers) = (Mutex::default(), AtomicUsize::new(0));
        let stopped = watch::channel(false).0;
        Arc::new(Self { tenure, instance, sender, state, readers, readers_max, stopped })
    }

    /// Begins to listen, after the event that `last` names if it is one of this instance that is still kept.
    pub(crate) fn listen(self: &Arc<Self>, last: Option<&str>) -> Answer<Reader> {
        if self.readers.fetch_add(1, Ordering::Relaxed) >= self.readers_max {
            self.readers.fetch_sub(1, Ordering::Relaxed);
            return Err(Problem::too_many(format!("{} streams of events are open here already", self.readers_max)));
        }
        let mut state = self.lock();
        let events = self.sender.subscribe();
        let mut reader = Reader { feed: self.clone(), missed: VecDeque::new(), gap: false, events };
        if let Some(last) = last {
            let own = last.strip_prefix(&self.instance).and_then(|rest| rest.strip_prefix('-'));
            let id = own.and_then(|id| u64::from_str_radix(id, 16).ok());
            match id.and_then(|id| state.numbers.get(&id).copied()) {
                Some(number) if state.watched => {
                    reader.missed = state.kept.iter().filter(|event| event.number > number).cloned().collect();
                }
                _ => reader.gap = true,
            }
        }
        if !state.watched {
            state.watched = true;
            tokio::spawn(self.clone().watch());
        }
        Ok(reader)
    }

    /// Tells all who listen that there is nothing more to come from here, and ends all streams.
    pub(crate) fn stop(&self) {
        self.tell(STOPPING, None, &Notice { event: STOPPING, message: "this instance stops" });
        self.stopped.send_replace(true);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at all names for as long as somebody listens.
    async fn watch(self: Arc<Self>) {
        let mut watch = self.tenure.watch("");
        let mut away = false;
        let mut unheard = Duration::ZERO;
        loop {
            let looked = watch.look().await;
            match &looked {
                Ok(_) if away => self.tell("back", None, &Notice { event: "back", message: "the store answers again" }),
                Err(error) if !away => {
                    self.tell("away", None, &Notice { event: "away", message: &error.to_string() });
                }
                _ => {}
            }
            away = looked.is_err();
            for (told, change) in watch.changes().collect::<Vec<_>>().into_iter().enumerate() {
                self.tell_change(&change);
                if told % BURST_MAX == BURST_MAX - 1 {
                    tokio::time::sleep(BURST_PAUSE).await;
                }
            }
            if self.readers.load(Ordering::Relaxed) > 0 {
                unheard = Duration::ZERO;
                continue;
            }
            unheard += watch.interval();
            if unheard >= LINGER {
                let mut state = self.lock();
                // Whoever comes now finds it stopped, and starts it.
                if self.readers.load(Ordering::Relaxed) == 0 {
                    state.watched = false;
                    state.kept.clear();
                    state.numbers.clear();
                    return;
                }
            }
        }
    }

    fn tell_change(&self, change: &Change) {
        let kind = change.kind.as_str();
        let broken = change.broken_by.as_ref();
        let at = std::time::UNIX_EPOCH + Duration::from_micros(change.at_micros);
        let told = EventBody {
            event: kind,
            name: &change.name,
            owner: change.owner.as_ref(),
            label: change.label.as_deref(),
            token: change.token,
            at: humantime::format_rfc3339_millis(at).to_string(),
            held_ms: change.held.map(ms),
            waited_ms: change.waited.map(ms),
            by: broken.map(|(by, _)| by.as_str()),
            reason: broken.map(|(_, reason)| reason.as_str()),
        };
        self.tell(kind, Some(change.name.clone()), &told);
    }

    fn tell(&self, kind: &'static str, name: Option<Name>, told: &impl Serialize) {
        let Ok(json) = serde_json::to_string(told) else { return };
        let mut state = self.lock();
        let event = state.keep(kind, name, json);
        // Nobody may listen; then there is nobody to tell.
        let _ = self.sender.send(event);
    }
}

impl State {
    /// Makes an event of it, and keeps that for readers that come back.
    fn keep(&mut self, kind: &'static str, name: Option<Name>, json: String) -> Arc<Event> {
        let number = self.next;
        self.next += 1;
        let id = loop {
            if let Entry::Vacant(free) = self.numbers.entry(rand::random()) {
                let id = *free.key();
                free.insert(number);
                break id;
            }
        };
        let event = Arc::new(Event { id, number, kind, name, json });
        self.kept.push_back(event.clone());
        if self.kept.len() > KEPT_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            self.numbers.remove(&oldest.id);
        }
        event
    }
}

/// What concerns the store, not a name.
#[derive(Serialize)]
struct Notice<'a> {
    event: &'a str,
    message: &'a str,
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.feed.readers.fetch_sub(1, Ordering::Relaxed);
    }
}
