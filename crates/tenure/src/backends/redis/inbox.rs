//! Where a client hears of its grants: one channel, subscribed to for as long as the client lives.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::PubSub;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::node::Node;
use super::place::CONNECT_MAX;
use super::wire;
use crate::backend::{Event, Listener};
use crate::error::Result;
use crate::owner::ClaimId;

/// How often a silent connection is asked whether it is alive.
const PING_EVERY: Duration = Duration::from_secs(3);
/// How long it may take to say so.
const PING_MAX: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(10);
const RETRY_MAX: Duration = Duration::from_millis(500);

/// How many messages are remembered, to know one that comes again.
const RECENT_MAX: usize = 1024;

/// Whom messages are told to, once somebody listens.
#[derive(Clone, Default)]
pub(in crate::backends) struct Ear(Arc<Mutex<Hearing>>);

#[derive(Default)]
struct Hearing {
    listener: Option<Listener>,
    /// What was told lately: in a cluster each message comes once from every master.
    recent: VecDeque<(ClaimId, u64, u64)>,
}

impl Ear {
    pub(in crate::backends) fn listen(&self, listener: Listener) {
        self.hearing().listener = Some(listener);
    }

    fn hearing(&self) -> MutexGuard<'_, Hearing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `copies` if the same message may come from several servers.
    fn tell(&self, event: Event, copies: bool) {
        let mut hearing = self.hearing();
        let mark = match &event {
            Event::Granted { id, number, grant } => Some((*id, *number, grant.token.0)),
            Event::Ended { id, number, .. } => Some((*id, *number, 0)),
            Event::TryNow { .. } | Event::Resubscribed => None,
        };
        if let Some(mark) = mark.filter(|_| copies) {
            if hearing.recent.contains(&mark) {
                return;
            }
            hearing.recent.push_front(mark);
            hearing.recent.truncate(RECENT_MAX);
        }
        let listener = hearing.listener.clone();
        drop(hearing);
        if let Some(listener) = listener {
            listener(event);
        }
    }
}

/// A subscription on one server. Ends when it is dropped.
pub(in crate::backends) struct Inbox {
    task: JoinHandle<()>,
    restart: Arc<Notify>,
    subscribed: watch::Receiver<bool>,
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Inbox {
    /// Subscribes, and keeps the subscription from then on.
    pub(in crate::backends) async fn open(node: &Arc<Node>, channel: Arc<str>, ear: Ear) -> Result<Self> {
        let first = node.place.open_inbox(&channel).await?;
        Ok(Self::keep(node, channel, ear, Some(first)))
    }

    /// Subscribes in the background.
    pub(in crate::backends) fn keep(node: &Arc<Node>, channel: Arc<str>, ear: Ear, first: Option<PubSub>) -> Self {
        let restart = node.inbox_restart.clone();
        let (up, subscribed) = watch::channel(false);
        let task = listen(Arc::downgrade(node), channel, ear, first, restart.clone(), up);
        Self { task: node.runtime().spawn(task), restart, subscribed }
    }

    /// Waits a moment until it is subscribed.
    pub(in crate::backends) async fn subscribed(&self) {
        let mut subscribed = self.subscribed.clone();
        // If not, then later: until then the answers to renewals tell what it would have heard.
        let _ = timeout(CONNECT_MAX, subscribed.wait_for(|up| *up)).await;
    }

    /// Subscribes anew: the server is another one by now.
    pub(in crate::backends) fn restart(&self) {
        self.restart.notify_one();
    }
}

async fn listen(
    node: Weak<Node>,
    channel: Arc<str>,
    ear: Ear,
    mut first: Option<PubSub>,
    restart: Arc<Notify>,
    up: watch::Sender<bool>,
) {
    let mut pause = RETRY_MIN;
    loop {
        let Some((place, copies)) = node.upgrade().map(|node| (node.place.clone(), !node.is_alone())) else { return };
        let opened = match first.take() {
            Some(inbox) => Ok(inbox),
            None => place.open_inbox(&channel).await,
        };
        match opened {
            Ok(inbox) => {
                pause = RETRY_MIN;
                // Whatever was said meanwhile was missed, and the server may be another one: ask for everything.
                up.send_replace(true);
                ear.tell(Event::Resubscribed, copies);
                hear(inbox, &ear, &restart, copies).await;
                up.send_replace(false);
            }
            Err(error) => tracing::debug!(%error, "no inbox"),
        }
        let Some(node) = node.upgrade() else { return };
        node.leave_idle_connection();
        drop(node);
        let jitter = 0.5 + rand::random::<f64>() / 2.0;
        let _ = timeout(pause.mul_f64(jitter), restart.notified()).await;
        pause = (pause * 2).min(RETRY_MAX);
    }
}

/// Passes messages on until the connection fails or is to be left.
async fn hear(inbox: PubSub, ear: &Ear, restart: &Notify, copies: bool) {
    let (mut sink, mut messages) = inbox.split();
    loop {
        tokio::select! {
            message = timeout(PING_EVERY, messages.next()) => match message {
                Ok(Some(message)) => match std::str::from_utf8(message.get_payload_bytes()).ok().and_then(wire::event) {
                    Some(event) => ear.tell(event, copies),
                    None => tracing::warn!("a message in the inbox that is not tenure's"),
                },
                Ok(None) => return,
                Err(_silent) => {
                    let alive = timeout(PING_MAX, sink.ping::<redis::Value>()).await;
                    if !matches!(alive, Ok(Ok(_))) {
                        return;
                    }
                }
            },
            () = restart.notified() => return,
        }
    }
}
