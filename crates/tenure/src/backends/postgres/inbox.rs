//! How a client hears: one connection that listens on a channel of its own.
//!
//! The same connection holds an advisory lock whose key is in the channel's name, so that whoever grants a claim can
//! see in the same transaction whether its client is there. Where nothing is heard, as behind a pooler of
//! transactions, the client looks at the names it waits for again and again.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::desk::Desk;
use super::link::{Ear, Link};
use super::news::{Message, PREFIX, key_of};
use super::rows::{cell, queue_of};
use crate::backend::{Event, Listener};
use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::ClaimId;

/// How long a message to oneself may take before the connection counts as deaf.
const HEARD_MAX: Duration = Duration::from_secs(1);
/// How often a connection that listens is asked whether it is still there.
const PING_EVERY: Duration = Duration::from_secs(3);
/// The pause before another try to listen, and between two looks at what is waited for: at first, and at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How long a client that connects and hears nothing waits before it tries to listen again, at first and at most:
/// behind a pooler that is in vain.
const DEAF_FOR: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(60));
/// The most names that are looked at by one statement.
const LOOK_AT_MAX: usize = 256;

pub(super) struct Inbox {
    channel: Arc<str>,
    shared: Arc<Shared>,
    keeper: JoinHandle<()>,
}

struct Shared {
    listener: OnceLock<Listener>,
    /// The last hello to oneself that was heard.
    hello: watch::Sender<u64>,
    /// Whether messages come.
    hears: AtomicBool,
    /// Whether it is known that none will.
    deaf: AtomicBool,
    waiting: Mutex<HashMap<ClaimId, Waiting>>,
    /// Rung when somebody begins to wait.
    waits: Notify,
}

/// A claim that waits.
#[derive(Clone)]
struct Waiting {
    name: Name,
    /// Whether it joined while nothing was heard: nobody tells it, also not later.
    untold: bool,
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

    fn waiting(&self) -> MutexGuard<'_, HashMap<ClaimId, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_untold(&self) -> bool {
        self.waiting().values().any(|waiting| waiting.untold)
    }
}

impl Inbox {
    /// Begins to listen; returns when that is so, or known to be in vain.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the connection is closed.
    pub(super) async fn open(desk: &Arc<Desk>) -> Result<Self> {
        let channel: Arc<str> = format!("{PREFIX}{:016x}", rand::random::<u64>()).into();
        let shared = Arc::new(Shared {
            listener: OnceLock::new(),
            hello: watch::Sender::new(0),
            hears: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            waiting: Mutex::default(),
            waits: Notify::new(),
        });
        let keeper = Keeper { desk: desk.clone(), channel: channel.clone(), shared: shared.clone() };
        let first = keeper.listen().await?;
        if first.is_none() {
            tracing::warn!(
                "nothing is heard from PostgreSQL, as behind a pooler: waiters look again and again (?listen= helps)"
            );
        }
        let keeper = Handle::current().spawn(keeper.run(first));
        Ok(Self { channel, shared, keeper })
    }

    pub(super) fn listen(&self, listener: Listener) {
        drop(self.shared.listener.set(listener));
    }

    /// Where this client is told of grants; nowhere if that is in vain, so that nobody passes it over for not being
    /// heard.
    pub(super) fn address(&self) -> Arc<str> {
        if self.shared.deaf.load(Ordering::Acquire) { "".into() } else { self.channel.clone() }
    }

    /// Whether messages come, or waiters have to look.
    pub(super) fn hears(&self) -> bool {
        self.shared.hears.load(Ordering::Acquire)
    }

    /// A claim of this client, which gave this address, waits.
    pub(super) fn waits(&self, id: ClaimId, name: &Name, address: &str) {
        let waiting = Waiting { name: name.clone(), untold: address.is_empty() };
        if self.shared.waiting().insert(id, waiting).is_none() {
            self.shared.waits.notify_one();
        }
    }

    /// A claim of this client waits no longer.
    pub(super) fn waits_not(&self, id: ClaimId) {
        self.shared.waiting().remove(&id);
    }
}

/// Keeps the connection.
struct Keeper {
    desk: Arc<Desk>,
    channel: Arc<str>,
    shared: Arc<Shared>,
}

impl Keeper {
    /// Ends with the inbox, which aborts it.
    async fn run(self, mut link: Option<Link>) {
        let mut pause = PAUSE.0;
        // The first time it may only have been busy.
        let mut deaf_for = DEAF_FOR.0;
        loop {
            if let Some(open) = link.take() {
                pause = PAUSE.0;
                self.until_ended(&open).await;
                if self.desk.settings.listen.is_none() {
                    self.desk.preparing.doubt(open.host());
                }
                self.shared.hears.store(false, Ordering::Release);
            } else {
                self.look_for(deaf_for).await;
            }
            deaf_for = match self.listen().await {
                Ok(open) => {
                    // What was said meanwhile was not heard.
                    self.shared.tell(Event::Resubscribed);
                    link = open;
                    if link.is_some() { DEAF_FOR.0 } else { (deaf_for * 2).clamp(DEAF_FOR.0, DEAF_FOR.1) }
                }
                Err(error) => {
                    tracing::debug!(%error, "not listening to PostgreSQL");
                    pause = (pause * 2).min(PAUSE.1);
                    pause
                }
            };
        }
    }

    /// Opens the connection, and sees whether it hears what is said over another.
    ///
    /// Said over the same one it would prove nothing: a pooler that has just one client lets it have the same
    /// connection of the server again.
    async fn listen(&self) -> Result<Option<Link>> {
        let Self { desk, channel, shared } = self;
        let weak = Arc::downgrade(shared);
        let ear: Ear = Arc::new(move |heard| {
            let Some(shared) = weak.upgrade() else { return };
            match Message::read(heard.payload()) {
                Some(Message::Hello { nonce }) => drop(shared.hello.send_replace(nonce)),
                Some(message) => message.event().into_iter().for_each(|event| shared.tell(event)),
                None => {}
            }
        });
        let link = Link::listening(&desk.settings, &desk.preparing, ear).await.map_err(|error| {
            match desk.settings.listen {
                Some(_) => Error::new(error.kind(), "the connection that listens (listen= in the URL) cannot be had")
                    .with_certainty(error.certainty())
                    .because(error.to_string()),
                None => error,
            }
        })?;
        let mut other = desk.look().await?;
        let (own, theirs) = (backend(&link).await?, other.query(BACKEND, &[]).await?);
        let theirs: i32 = theirs.first().map_or(Ok(0), |row| cell(row, 0))?;
        if own != theirs && self.hears(&link, own, &mut other).await? {
            // Shared: should the server not have noticed the end of the last one, that one has it too.
            link.query("SELECT pg_advisory_lock_shared($1)", &[(&key_of(channel), Type::INT8)]).await?;
            if desk.settings.listen.is_none() {
                desk.preparing.proved(link.host());
            }
            shared.deaf.store(false, Ordering::Release);
            shared.hears.store(true, Ordering::Release);
            return Ok(Some(link));
        }
        if desk.settings.listen.is_none() {
            desk.preparing.refuted(link.host());
        }
        shared.deaf.store(true, Ordering::Release);
        Ok(None)
    }

    async fn hears(&self, link: &Link, own: i32, other: &mut super::look::Look) -> Result<bool> {
        let (channel, shared) = (&*self.channel, &self.shared);
        link.execute(&format!("LISTEN \"{channel}\"")).await?;
        let nonce = rand::random::<u64>() | 1;
        let mut hello = shared.hello.subscribe();
        let text = Message::Hello { nonce }.text();
        other.query(HELLO, &[(&channel, Type::TEXT), (&text, Type::TEXT)]).await?;
        // With nothing asked meanwhile: a pooler passes on what its connection hears to whoever it works for at that
        // moment, and to nobody at rest.
        let told = timeout(HEARD_MAX, hello.wait_for(|heard| *heard == nonce)).await.is_ok();
        let heard = told && backend(link).await? == own;
        if !heard {
            // The pooler's connection would listen for as long as it lives. As a rule it is given the same one again.
            drop(link.execute(&format!("UNLISTEN \"{channel}\"")).await);
        }
        Ok(heard)
    }

    /// Returns when the connection no longer hears.
    async fn until_ended(&self, link: &Link) {
        let Ok(own) = backend(link).await else { return };
        loop {
            let untold = self.shared.has_untold();
            let pause = if untold { PAUSE.1 } else { PING_EVERY };
            if timeout(pause, link.ended()).await.is_ok() || link.is_closed() {
                return;
            }
            if untold && let Err(error) = self.look(|waiting| waiting.untold).await {
                tracing::debug!(%error, "cannot look at PostgreSQL");
            }
            if !backend(link).await.is_ok_and(|now| now == own) {
                return;
            }
        }
    }

    /// Looks at what is waited for, less and less often as long as nobody joins, for about this long.
    async fn look_for(&self, long: Duration) {
        let (mut pause, mut left) = (PAUSE.0, long);
        while !left.is_zero() {
            if self.shared.waiting().is_empty() {
                // Nothing to look for; it may take less.
                let span = left.min(PING_EVERY);
                let _ = timeout(span, self.shared.waits.notified()).await;
                (pause, left) = (PAUSE.0, left.saturating_sub(span));
                continue;
            }
            let span = pause.min(left);
            // However many join, there is a pause between two looks.
            wait(span).await;
            let joined = timeout(Duration::ZERO, self.shared.waits.notified()).await.is_ok();
            pause = if joined { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
            left = left.saturating_sub(span);
            if let Err(error) = self.look(|_| true).await {
                tracing::debug!(%error, "cannot look at PostgreSQL");
            }
        }
    }

    /// Tells those of the claims that have been granted.
    async fn look(&self, at: impl Fn(&Waiting) -> bool) -> Result<()> {
        let waiting: Vec<(ClaimId, Name)> = {
            let waiting = self.shared.waiting();
            waiting.iter().filter(|(_, one)| at(one)).map(|(id, one)| (*id, one.name.clone())).collect()
        };
        let mut look = self.desk.look().await?;
        for some in waiting.chunks(LOOK_AT_MAX) {
            let names: Vec<&str> = some.iter().map(|(_, name)| name.as_str()).collect();
            let mut there = HashSet::new();
            for row in look.query(&self.desk.statements.look, &[(&names, Type::TEXT_ARRAY)]).await? {
                let queue = match queue_of(&row) {
                    Ok(queue) => queue,
                    // Whoever waits for this name is told when it renews; the others are looked at all the same.
                    Err(error) => {
                        tracing::warn!(%error, "passed over");
                        there.extend(some.iter().map(|(id, _)| *id));
                        continue;
                    }
                };
                there.extend(queue.claims.iter().map(|claim| claim.id));
                let granted = queue.holders().filter(|claim| some.iter().any(|(id, _)| *id == claim.id));
                for (claim, grant) in granted.filter_map(|claim| Some((claim, claim.grant?))) {
                    self.shared.waiting().remove(&claim.id);
                    self.shared.tell(Event::Granted { id: claim.id, grant, number: claim.number });
                }
            }
            // What is in no queue any more is not looked for again: its renewal tells the rest.
            some.iter()
                .filter(|(id, _)| !there.contains(id))
                .for_each(|(id, _)| drop(self.shared.waiting().remove(id)));
        }
        Ok(())
    }
}

/// Nobody needs to find it after a crash, so its commit waits for no disk and no standby.
const HELLO: &str = "SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)";
const BACKEND: &str = "SELECT pg_backend_pid()";

/// Which of the server's processes answers.
async fn backend(link: &Link) -> Result<i32> {
    link.query(BACKEND, &[]).await?.first().map_or(Ok(0), |row| cell(row, 0))
}

/// Lets time pass: nothing rings this.
async fn wait(span: Duration) {
    let _ = timeout(span, Notify::new().notified()).await;
}
