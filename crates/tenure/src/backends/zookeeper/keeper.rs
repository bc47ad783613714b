//! What goes on as long as a session lives: it is heard of now and then, claims that nobody renews are ended, and
//! nodes that nobody knows of are removed.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::{Error as Refused, SessionState};

use super::desk::{Desk, pause};
use super::names::Node;
use super::session::{Kind, Session};
use super::table::Entry;
use crate::backend::Event;
use crate::clock::Moment;
use crate::owner::ClaimId;

/// The keeper looks round at least and at most so often.
const ROUND: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// A session without claims is let go after so long.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// The most nodes that are removed at a time.
const REMOVED_MAX: usize = 256;

/// Looks after a new session until it ends or nobody has it any more.
pub(super) fn start(desk: &Arc<Desk>, session: &Arc<Session>) {
    desk.runtime.spawn(follow(desk.weak(), Arc::downgrade(session), session.client.state_watcher()));
    desk.runtime.spawn(keep(desk.weak(), Arc::downgrade(session)));
}

/// Hears of connections that broke, and of the session's end.
async fn follow(desk: Weak<Desk>, session: Weak<Session>, mut states: zookeeper_client::StateWatcher) {
    let mut state = states.peek_state();
    let mut is_new = true;
    loop {
        {
            let (Some(desk), Some(session)) = (desk.upgrade(), session.upgrade()) else { return };
            if state.is_terminated() {
                tracing::debug!(?session, %state, "a ZooKeeper session ended");
                return desk.session_ended(&session);
            }
            if state == SessionState::SyncConnected {
                // Seen now, so that one that breaks soon is not taken for the same as the next.
                if session.doubt().is_some() {
                    desk.doubt(&session);
                }
            }
            if state == SessionState::SyncConnected && !is_new {
                // Connected anew: what happened meanwhile is asked for.
                desk.tell(Event::Resubscribed);
            }
            is_new = false;
        }
        state = states.changed().await;
    }
}

async fn keep(desk: Weak<Desk>, session: Weak<Session>) {
    let mut rounds = Rounds::default();
    loop {
        let round = {
            let (Some(desk), Some(session)) = (desk.upgrade(), session.upgrade()) else { return };
            if session.has_ended() {
                return desk.vacate(&session);
            }
            rounds.go(&desk, &session).await;
            if rounds.is_idle(&desk, &session) && desk.retire(&session) {
                return;
            }
            // Twice in that time, so that pings are not much further apart.
            (desk.pace().min(session.timeout / 10) / 2).clamp(ROUND.0, ROUND.1)
        };
        pause(round).await;
    }
}

/// What a keeper knows from its rounds before.
#[derive(Default)]
pub(super) struct Rounds {
    /// Since when the session has had nothing.
    idle_since: Option<Moment>,
    swept_at: Option<Moment>,
    /// How many nodes were made when it last swept.
    swept_made: u64,
    /// Nodes that nobody knew of the last time. One that is being made may be among them; the next time it is not.
    suspects: HashSet<String>,
}

impl Rounds {
    async fn go(&mut self, desk: &Arc<Desk>, session: &Arc<Session>) {
        let now = desk.clock.now();
        if session.heard() + desk.pace().min(session.timeout / 10) <= now {
            session.ping().await;
        }
        if !session.is_connected() {
            // Nothing can be done, and what is asked now would be done late.
            return;
        }
        let overdue = desk.table.overdue(session.id, now);
        join_all(overdue.into_iter().take(REMOVED_MAX).map(|(id, entry)| end_overdue(desk, id, entry))).await;
        for (path, writer) in desk.old_notes(session.id, now) {
            // If this fails, it goes with its session.
            let _ = writer.ask(Kind::Write, || writer.client.delete(&path, None)).await;
        }
        if self.swept_at.is_none_or(|at| at + session.timeout / 2 <= now) {
            self.swept_at = Some(now);
            self.sweep(desk, session).await;
        }
    }

    fn is_idle(&mut self, desk: &Desk, session: &Session) -> bool {
        let now = desk.clock.now();
        if desk.table.count(session.id) > 0 {
            self.idle_since = None;
            return false;
        }
        let since = *self.idle_since.get_or_insert(now);
        since + IDLE_MAX.max(session.timeout * 2) <= now
    }

    /// Removes nodes that no claim knows of: a request that was done late, or whose answer was lost.
    async fn sweep(&mut self, desk: &Desk, session: &Session) {
        if let Some(unknown) = self.look_for_unknown(desk, session).await {
            self.remove_suspects(desk, session, unknown).await;
        }
    }

    /// The nodes of this session that no claim knows of, if there may be some and the server tells.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn look_for_unknown(&mut self, desk: &Desk, session: &Session) -> Option<HashSet<String>> {
        let made = session.made.load(Ordering::Relaxed);
        if made == self.swept_made && self.suspects.is_empty() {
            return None;
        }
        let listed = session.ask(Kind::Read, || session.client.list_ephemerals(desk.paths.root())).await;
        // Before 3.6 a server does not tell; such a node then goes with its session.
        let nodes = listed.ok()?;
        self.swept_made = made;
        desk.table.absolve_all_but(session.id, &nodes);
        let unknown = |path: &String| {
            desk.paths.is_claim(path)
                && of_claim(path).is_some_and(|(id, node)| !desk.table.knows(id, session.id, node))
        };
        Some(nodes.into_iter().filter(unknown).take(REMOVED_MAX).collect())
    }

    /// Removes those that nobody knew of the last time either. A claim that came for one meanwhile keeps it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what is left is found again.
    pub(super) async fn remove_suspects(&mut self, desk: &Desk, session: &Session, unknown: HashSet<String>) {
        for path in unknown.intersection(&self.suspects) {
            let Some((id, node)) = of_claim(path) else { continue };
            if !desk.table.condemn(id, session.id, node) {
                continue;
            }
            tracing::debug!(node = %path, "removing a node of no claim");
            let removed = session.ask(Kind::Write, || session.client.delete(path, None)).await;
            if matches!(removed, Ok(()) | Err(Refused::NoNode)) {
                desk.table.absolve(session.id, node);
            }
        }
        self.suspects = unknown;
    }
}

/// The claim that a node is called after, and the node's name.
fn of_claim(path: &str) -> Option<(ClaimId, &str)> {
    let (_, node) = path.rsplit_once('/')?;
    Some((Node::parse(node)?.id?, node))
}

/// Ends a claim that nobody has renewed for its ttl.
async fn end_overdue(desk: &Arc<Desk>, id: ClaimId, entry: Entry) {
    // Whoever asks for it right now keeps it.
    let Ok(_turn) = entry.gate.try_lock() else { return };
    let now = desk.clock.now();
    let due = desk.table.change(id, |entry| {
        entry.ending |= entry.expires <= now;
        entry.ending
    });
    if due != Some(true) {
        return;
    }
    let Some(placed) = &entry.placed else {
        // Whether there is a node is not known: the sweep sees.
        entry.session.made.fetch_add(1, Ordering::Relaxed);
        desk.table.remove(id, None);
        return;
    };
    let path = format!("{}/{}", desk.paths.of(&entry.name), placed.node);
    match entry.session.ask(Kind::Write, || entry.session.client.delete(&path, None)).await {
        Ok(()) | Err(Refused::NoNode) => {
            desk.table.remove(id, Some(placed));
        }
        // Tried again in the next round.
        Err(error) => tracing::debug!(%error, claim = %id, "a claim that nobody renews could not be ended"),
    }
}
