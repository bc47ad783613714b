//! What operations on claims share: the store, its clock, and who waits here.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure::backend::{Backend, Call, Event};
use tenure::clock::{Clock, Moment};
use tenure::observe::{Asked, Served};
use tenure::{Certainty, ClaimId, Error, ErrorKind, Loss, Result, Token};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, watch};

use crate::health::Health;

/// How long the store may take to answer what is asked once.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// How long a request waits for its turn with a claim.
const TURN_MAX: Duration = Duration::from_secs(1);

/// What a waiting request is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum News {
    /// Nothing yet.
    #[default]
    None,
    /// Its claim with this number was granted.
    Granted { number: u64 },
    /// Its claim with this number was ended by somebody else.
    Ended { number: u64, loss: Loss },
    /// Ask the store now. The number tells one such call from the next.
    Ask(u64),
    /// Another request of this instance has taken the claim over.
    Superseded,
    /// The instance stops.
    Stopping,
}

/// Those who are told of a claim, the latest last. More than one only until the store has decided whose it is.
type Waiting = HashMap<ClaimId, Vec<Told>>;

/// One who is told.
struct Told {
    attempt: u64,
    /// The number that the store gave the claim for it, once that is known.
    number: Option<u64>,
    news: watch::Sender<News>,
}

/// The claims of all callers, and those of their requests that wait here.
pub(crate) struct Claims {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) health: Arc<Health>,
    /// What is told of them.
    pub(crate) served: Served,
    waiting: Arc<Mutex<Waiting>>,
    turns: Arc<Mutex<Turns>>,
    stopping: AtomicBool,
}

/// Who has, or waits for, the turn with which claim.
type Turns = HashMap<ClaimId, Arc<AsyncMutex<()>>>;

/// A turn with a claim; given back when it is dropped.
pub(crate) struct Turn {
    turns: Arc<Mutex<Turns>>,
    id: ClaimId,
    guard: Option<OwnedMutexGuard<()>>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turns = lock_any(&self.turns);
        self.guard = None;
        // Nobody else has it or waits for it: those who do have a share in it.
        if turns.get(&self.id).is_some_and(|turn| Arc::strong_count(turn) == 1) {
            turns.remove(&self.id);
        }
    }
}

/// A place among those who are told of news; given up when it is dropped.
pub(crate) struct Listener {
    waiting: Arc<Mutex<Waiting>>,
    id: ClaimId,
    attempt: u64,
    news: watch::Receiver<News>,
}

impl Claims {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        health: Arc<Health>,
        groups: &[String],
    ) -> Arc<Self> {
        let waiting: Arc<Mutex<Waiting>> = Arc::default();
        let told = waiting.clone();
        backend.listen(Arc::new(move |event| tell(&told, event)));
        let served = Served::new(&*backend, clock.clone(), groups);
        Arc::new(Self {
            backend,
            clock,
            health,
            served,
            waiting,
            turns: Arc::default(),
            stopping: AtomicBool::new(false),
        })
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// The turn to look at a claim and then change it, or to end it. Nobody waits for it for ever: a store that does
    /// not answer one request must not keep the next from being asked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the turn goes to the next.
    pub(crate) async fn turn(&self, id: ClaimId) -> Turn {
        let mine = lock_any(&self.turns).entry(id).or_default().clone();
        let guard = tokio::time::timeout(TURN_MAX, mine.lock_owned()).await.ok();
        Turn { turns: self.turns.clone(), id, guard }
    }

    /// Begins to listen for a claim, beside whoever listens for it.
    pub(crate) fn listen(&self, id: ClaimId, attempt: u64) -> Listener {
        let (told, news) = watch::channel(News::None);
        let mut waiting = lock(&self.waiting);
        // Whoever comes after the last was told to stop would not be told.
        if self.stopping.load(Ordering::Relaxed) {
            told.send_replace(News::Stopping);
        }
        waiting.entry(id).or_default().push(Told { attempt, number: None, news: told });
        Listener { waiting: self.waiting.clone(), id, attempt, news }
    }

    /// Whether the instance stops.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Tells every request that waits to answer now.
    pub(crate) fn stop(&self) {
        let waiting = lock(&self.waiting);
        self.stopping.store(true, Ordering::Relaxed);
        for told in waiting.values().flatten() {
            told.news.send_replace(News::Stopping);
        }
    }

    /// Awaits an answer of the store, for so long at most.
    ///
    /// # Cancel safety
    ///
    /// As the call's.
    pub(crate) async fn ask<T>(&self, asked: Asked, call: Call<T>, patience: Duration) -> Result<T> {
        let sent = self.served.sent(asked);
        let patience = patience.min(ANSWER_MAX);
        let answer = match tokio::time::timeout(patience, call).await {
            Ok(answer) => answer,
            Err(_) => {
                let message = format!("the store has not answered for {}", humantime::format_duration(patience));
                Err(Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::Unknown))
            }
        };
        self.health.heard(&answer);
        if answer.is_ok() {
            self.served.answered(sent);
        }
        answer.map_err(|error| if error.store().is_some() { error } else { error.in_store(self.backend.url()) })
    }
}

impl Listener {
    /// Waits for news.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: news that was not returned is returned by the next call.
    pub(crate) async fn news(&mut self) -> News {
        if self.news.changed().await.is_err() {
            // Whoever tells is gone only with all of the service.
            return News::Stopping;
        }
        self.news.borrow_and_update().clone()
    }

    /// What was told last.
    pub(crate) fn latest(&self) -> News {
        self.news.borrow().clone()
    }
}

impl Listener {
    /// The store has given the claim to this request, with this number: those to whom it gave it before are told. Which
    /// of two requests came to the store first is not known before it has answered both.
    pub(crate) fn take_over(&self, number: u64) {
        let mut waiting = lock(&self.waiting);
        let Some(listeners) = waiting.get_mut(&self.id) else { return };
        for told in listeners.iter_mut() {
            if told.attempt == self.attempt {
                told.number = Some(number);
            }
        }
        let latest = listeners.iter().filter_map(|told| told.number).max();
        listeners.retain(|told| {
            let keeps = told.number.is_none() || told.number == latest;
            if !keeps {
                told.news.send_replace(News::Superseded);
            }
            keeps
        });
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut waiting = lock(&self.waiting);
        let Some(listeners) = waiting.get_mut(&self.id) else { return };
        listeners.retain(|told| told.attempt != self.attempt);
        if listeners.is_empty() {
            waiting.remove(&self.id);
        }
    }
}

fn tell(waiting: &Mutex<Waiting>, event: Event) {
    let waiting = lock(waiting);
    let send = |id: &ClaimId, news: News| {
        for told in waiting.get(id).into_iter().flatten() {
            told.news.send_if_modified(|last| {
                // What has been taken over, or is to stop, hears of nothing else.
                let heard = !matches!(last, News::Superseded | News::Stopping);
                if heard {
                    *last = news.clone();
                }
                heard
            });
        }
    };
    match event {
        Event::Granted { id, number, .. } => send(&id, News::Granted { number }),
        Event::Ended { id, number, loss } => send(&id, News::Ended { number, loss }),
        Event::TryNow { id, after: Token(after), .. } => send(&id, News::Ask(after)),
        Event::Resubscribed => {
            for id in waiting.keys() {
                send(id, News::Ask(0));
            }
        }
        _ => {}
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    lock_any(waiting)
}

fn lock_any<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
