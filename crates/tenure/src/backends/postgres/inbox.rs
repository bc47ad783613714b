//! How a client hears: one connection that listens on a channel of its own.
//!
//! The same connection holds an advisory lock whose key is in the channel's name, so that whoever grants a claim can see
//! in the same transaction whether its client is there. Behind a pooler nothing is heard; waiters are asked for again and again then.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::link::{Ear, Link, Preparing};
use super::url::Settings;
use crate::backend::{Event, Listener};
use crate::error::{Loss, Result};
use crate::machine::{Applied, Grant, Op, Outcome};
use crate::owner::ClaimId;

const PREFIX: &str = "tenure_";
/// How long a message to oneself may take before the connection counts as deaf.
const HEARD_MAX: Duration = Duration::from_secs(2);
/// How often a quiet connection is asked whether it still hears.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// The pause before a connection that was lost is opened again: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// The longest message PostgreSQL carries is a little longer.
const MESSAGE_MAX: usize = 7_000;

/// A message: JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Granted {
        claim: ClaimId,
        grant: Grant,
        number: u64,
    },
    Broken {
        claim: ClaimId,
        number: u64,
        by: String,
        reason: String,
    },
    /// To oneself: whether anything is heard.
    Hello,
}

impl Message {
    fn event(self) -> Option<Event> {
        match self {
            Self::Granted { claim, grant, number } => Some(Event::Granted { id: claim, grant, number }),
            Self::Broken { claim, number, by, reason } => {
                Some(Event::Ended { id: claim, number, loss: Loss::Broken { by, reason } })
            }
            Self::Hello => None,
        }
    }
}

/// What is sent when a transaction commits: channels and messages.
#[derive(Debug, Default)]
pub(super) struct News {
    pub(super) channels: Vec<String>,
    pub(super) messages: Vec<String>,
}

impl News {
    /// Whom an operation tells what.
    pub(super) fn note(&mut self, applied: &Applied, op: &Op) {
        for granted in &applied.grants {
            let message = Message::Granted { claim: granted.id, grant: granted.grant, number: granted.number };
            self.add(&granted.inbox, &message);
        }
        if let (Outcome::Evicted(evicted), Op::Break { by, reason, .. }) = (&applied.outcome, op) {
            for ended in evicted {
                let (by, reason) = (by.to_string(), reason.to_string());
                self.add(&ended.inbox, &Message::Broken { claim: ended.id, number: ended.number, by, reason });
            }
        }
    }

    fn add(&mut self, inbox: &str, message: &Message) {
        // Too long for a message: the next renewal tells it.
        if let Ok(text) = serde_json::to_string(message)
            && text.len() <= MESSAGE_MAX
            && key_of(inbox).is_some()
        {
            self.channels.push(inbox.to_owned());
            self.messages.push(text);
        }
    }
}

/// The key of the advisory lock that the client of an inbox holds.
pub(super) fn key_of(inbox: &str) -> Option<i64> {
    let digits = inbox.strip_prefix(PREFIX).filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok().map(u64::cast_signed)
}

pub(super) struct Inbox {
    channel: Arc<str>,
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    listener: OnceLock<Listener>,
    /// Rung by every message.
    heard: Notify,
    /// Whether messages come.
    hears: AtomicBool,
    waiting: Mutex<HashSet<ClaimId>>,
    /// Rung when somebody begins to wait.
    waits: Notify,
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inbox").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Shared {
    fn tell(&self, event: Event) {
        if let Some(listener) = self.listener.get() {
            listener(event);
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashSet<ClaimId>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inbox {
    /// Begins to listen; returns when that is so, or known to be in vain.
    pub(super) async fn open(settings: Arc<Settings>, preparing: Arc<Preparing>) -> Result<Self> {
        let channel: Arc<str> = format!("{PREFIX}{:016x}", rand::random::<u64>()).into();
        let shared = Arc::<Shared>::default();
        let first = listen(&settings, &preparing, &channel, &shared).await?;
        let keeper = Keeper { settings, preparing, channel: channel.clone(), shared: Arc::downgrade(&shared) };
        let keeper = tokio::spawn(keeper.run(first));
        Ok(Self { channel, shared, keeper })
    }

    pub(super) fn listen(&self, listener: Listener) {
        drop(self.shared.listener.set(listener));
    }

    pub(super) fn address(&self) -> Arc<str> {
        self.channel.clone()
    }

    /// Whether messages come, or waiters have to ask.
    pub(super) fn hears(&self) -> bool {
        self.shared.hears.load(Ordering::Acquire)
    }

    /// A claim of this client waits, or does so no longer.
    pub(super) fn waits(&self, id: ClaimId, whether: bool) {
        let changed = if whether { self.shared.waiting().insert(id) } else { self.shared.waiting().remove(&id) };
        if changed && whether {
            self.shared.waits.notify_one();
        }
    }
}

/// Opens the connection and says hello to oneself.
async fn listen(
    settings: &Settings,
    preparing: &Arc<Preparing>,
    channel: &str,
    shared: &Arc<Shared>,
) -> Result<Option<Link>> {
    let weak = Arc::downgrade(shared);
    let ear: Ear = Arc::new(move |message| {
        let Some(shared) = weak.upgrade() else { return };
        shared.heard.notify_waiters();
        shared.heard.notify_one();
        if let Some(event) = serde_json::from_str::<Message>(message.payload()).ok().and_then(Message::event) {
            shared.tell(event);
        }
    });
    let link = Link::listening(settings, preparing, ear).await?;
    link.execute(&format!("LISTEN \"{channel}\"")).await?;
    if says_hello(&link, channel, shared).await? {
        link.query("SELECT pg_advisory_lock($1)", &[(&key_of(channel), Type::INT8)]).await?;
        shared.hears.store(true, Ordering::Release);
        return Ok(Some(link));
    }
    tracing::warn!(
        "nothing is heard from PostgreSQL, as behind a pooler: waiters ask again and again (?listen= helps)"
    );
    shared.hears.store(false, Ordering::Release);
    Ok(None)
}

async fn says_hello(link: &Link, channel: &str, shared: &Shared) -> Result<bool> {
    let heard = shared.heard.notified();
    tokio::pin!(heard);
    heard.as_mut().enable();
    let hello = serde_json::to_string(&Message::Hello).unwrap_or_default();
    link.query("SELECT pg_notify($1, $2)", &[(&channel, Type::TEXT), (&hello, Type::TEXT)]).await?;
    Ok(timeout(HEARD_MAX, heard).await.is_ok())
}

/// Keeps the connection.
struct Keeper {
    settings: Arc<Settings>,
    preparing: Arc<Preparing>,
    channel: Arc<str>,
    shared: Weak<Shared>,
}

impl Keeper {
    async fn run(self, mut link: Option<Link>) {
        loop {
            match link.take() {
                Some(open) => self.watch(&open).await,
                None => {
                    self.poll().await;
                    return;
                }
            }
            let mut pause = PAUSE.0;
            link = loop {
                let Some(shared) = self.shared.upgrade() else { return };
                match listen(&self.settings, &self.preparing, &self.channel, &shared).await {
                    Ok(open) => {
                        // What was said meanwhile was not heard.
                        shared.tell(Event::Resubscribed);
                        break open;
                    }
                    Err(error) => tracing::debug!(%error, "not listening to PostgreSQL"),
                }
                drop(shared);
                // Nothing rings this: it only lets time pass.
                let _ = timeout(pause, Notify::new().notified()).await;
                pause = (pause * 2).min(PAUSE.1);
            };
        }
    }

    /// Returns when the connection no longer hears.
    async fn watch(&self, link: &Link) {
        loop {
            let Some(shared) = self.shared.upgrade() else { return };
            let heard = timeout(LOOK_EVERY, shared.heard.notified());
            let quiet = tokio::select! {
                heard = heard => heard.is_err(),
                () = link.ended() => return,
            };
            if link.is_closed() || (quiet && !says_hello(link, &self.channel, &shared).await.unwrap_or(false)) {
                return;
            }
        }
    }

    /// Where nothing is heard: asks for every claim as long as one waits, less and less often.
    async fn poll(&self) {
        let mut pause = PAUSE.0;
        loop {
            let Some(shared) = self.shared.upgrade() else { return };
            if shared.waiting().is_empty() {
                pause = PAUSE.0;
                let _ = timeout(LOOK_EVERY, shared.waits.notified()).await;
                continue;
            }
            let more = timeout(pause, shared.waits.notified()).await.is_ok();
            pause = if more { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
            shared.tell(Event::Resubscribed);
        }
    }
}
