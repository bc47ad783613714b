//! Asking the servers whether sessions that connected anew have their timeouts still: one question for all sessions
//! of a client.
//!
//! A server that dies sends all its clients, with all their sessions, to the others at once, and servers limit the
//! connections of each client. So there is one round of questions at a time, for all who are in doubt when it begins;
//! whoever comes later is in the next. The first begins at once: a connection that breaks while it is in doubt costs
//! a session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::desk::Desk;
use super::limits::Host;
use super::probe::{self, Question, Reply};
use super::session::Session;
use crate::backend::Event;
use crate::clock::Moment;

/// How long servers have to say what they allow: a part of the shortest timeout, and so long at least and at most.
const PATIENCE_PART: u32 = 4;
const PATIENCE_MIN: Duration = Duration::from_millis(200);
pub(super) const PATIENCE_MAX: Duration = probe::PATIENCE[0];
/// A round that left doubt is followed by another after this part of the shortest timeout, and so long at least and
/// at most.
const AGAIN_PART: u32 = 10;
const AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// The sessions of which is not known whether they have their timeouts still.
#[derive(Debug, Default)]
pub(super) struct Doubted {
    list: Mutex<List>,
    /// That one more has come.
    news: Notify,
}

#[derive(Debug, Default)]
struct List {
    sessions: Vec<(Weak<Session>, Moment)>,
    /// Whether somebody asks for them.
    is_asked: bool,
}

/// A session in doubt: over which connection, and since when at the latest.
struct InDoubt {
    session: Arc<Session>,
    connection: u64,
    since: Moment,
}

impl Doubted {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those who still are. If there are none, whoever asks for them is done.
    fn present(&self) -> Vec<InDoubt> {
        let mut list = self.list();
        let mut present: Vec<InDoubt> = Vec::new();
        list.sessions.retain(|(session, since)| {
            let session = session.upgrade().filter(|session| !session.has_ended());
            let Some(session) = session.filter(|session| present.iter().all(|other| other.session.id != session.id))
            else {
                return false;
            };
            let Some(connection) = session.doubt() else { return false };
            present.push(InDoubt { session, connection, since: *since });
            true
        });
        list.is_asked = !present.is_empty();
        present
    }
}

impl Desk {
    /// A session has connected anew: the servers are asked what that is worth.
    pub(super) fn doubt(self: &Arc<Self>, session: &Arc<Session>) {
        let mut list = self.doubted.list();
        // The latest first: it is asked for what has happened since then.
        list.sessions.insert(0, (Arc::downgrade(session), self.clock.now()));
        if std::mem::replace(&mut list.is_asked, true) {
            self.doubted.news.notify_one();
        } else {
            self.runtime.spawn(ask(self.weak(), self.doubted.clone()));
        }
    }

    /// Asks all servers for their limits, if nobody has since this was called. Once one has answered, the others are
    /// given `grace`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was not learnt is asked for again.
    pub(super) async fn ask_limits(&self, grace: Duration) {
        let came = self.clock.now();
        let mut asked_at = self.asked_at.lock().await;
        if asked_at.is_none_or(|at| at < came) {
            let now = self.clock.now();
            let told = probe::all(&self.settings, PATIENCE_MAX, grace).await.told;
            if !told.is_empty() {
                self.learn_limits(told);
                *asked_at = Some(now);
            }
        }
    }

    /// Ends a session that the servers still have: its nodes are not to stay until it times out there.
    fn give_up(&self, session: &Session) {
        for (_, entry) in self.table.of_session(session.id) {
            if let Some(placed) = &entry.placed {
                // Sent now, and nobody waits for it.
                drop(session.client.delete(&format!("{}/{}", self.paths.of(&entry.name), placed.node), None));
            }
        }
        self.session_ended(session);
    }
}

/// Asks, round after round, until nobody is in doubt. A session is in doubt for its timeout at most.
async fn ask(desk: Weak<Desk>, doubted: Arc<Doubted>) {
    let mut rounds = Rounds::default();
    loop {
        let again = {
            let Some(desk) = desk.upgrade() else { return };
            let sessions = doubted.present();
            if sessions.is_empty() {
                return;
            }
            if rounds.go(&desk, sessions).await == Left::Nobody {
                continue;
            }
            about((desk.shortest() / AGAIN_PART).clamp(AGAIN.0, AGAIN.1))
        };
        // Whoever has come meanwhile is asked for at once.
        let _ = timeout(again, doubted.news.notified()).await;
    }
}

/// This time or up to half of it less, not the same for all clients.
fn about(time: Duration) -> Duration {
    time.mul_f64(0.5 + rand::random::<f64>() / 2.0)
}

/// Whether a session has its timeout still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Kept,
    Lost,
    /// A server that it may be at does not say.
    Unknown,
}

/// Whom a round left in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Somebody,
    Nobody,
}

/// What is known from the rounds before.
#[derive(Default)]
struct Rounds {
    /// When servers were asked that told their ticks then.
    ticks: HashMap<Host, Moment>,
}

impl Rounds {
    async fn go(&mut self, desk: &Arc<Desk>, sessions: Vec<InDoubt>) -> Left {
        // Of some nobody will ever know: these need not be asked for.
        let (spoilt, sessions): (Vec<_>, Vec<_>) =
            sessions.into_iter().partition(|doubted| doubted.session.is_spoilt());
        for InDoubt { session, .. } in &spoilt {
            tracing::warn!(?session, "a ZooKeeper session reconnected before its timeout was known: it is given up");
            desk.give_up(session);
        }
        let verdicts = self.question(desk, &sessions).await;
        let (mut left, mut is_settled, mut is_lost) = (Left::Nobody, false, !spoilt.is_empty());
        for (InDoubt { session, connection, .. }, verdict) in sessions.iter().zip(verdicts) {
            match verdict {
                Verdict::Kept => is_settled |= session.settle(*connection, desk.limits().tick),
                Verdict::Lost => {
                    tracing::warn!(
                        ?session,
                        "a ZooKeeper session has another timeout since it reconnected: it is given up"
                    );
                    desk.give_up(session);
                    is_lost = true;
                }
                // Nobody relies on anything in a session of which nothing has counted for so long, and a new one has
                // a timeout that is known; a server that never says would keep all from their locks for ever.
                Verdict::Unknown if session.has_lost(session.timeout) => {
                    tracing::warn!(
                        ?session,
                        "no server tells whether a ZooKeeper session has its timeout still: it is given up"
                    );
                    desk.give_up(session);
                }
                Verdict::Unknown => left = Left::Somebody,
            }
        }
        if is_settled {
            // What was answered in doubt did not count: so all are asked for now.
            desk.tell(Event::Resubscribed);
        }
        if is_lost {
            // What the servers allow now is for those who come next.
            let desk = desk.clone();
            desk.runtime.clone().spawn(async move { desk.ask_limits(PATIENCE_MAX).await });
        }
        left
    }

    /// Asks all servers that these sessions may be at for their timeouts.
    async fn question(&mut self, desk: &Desk, sessions: &[InDoubt]) -> Vec<Verdict> {
        let timeouts = || sessions.iter().map(|doubted| doubted.session.timeout);
        let (Some(shortest), Some(longest)) = (timeouts().min(), timeouts().max()) else { return Vec::new() };
        let (began, latest) = (desk.clock.now(), sessions.iter().map(|doubted| doubted.since).max());
        let patience = (desk.shortest() / PATIENCE_PART).clamp(PATIENCE_MIN, PATIENCE_MAX);
        let hosts = desk.heard_hosts();
        let asked = hosts.iter().map(|host| {
            let tick = self.ticks.get(host).copied() < latest;
            probe::of(&desk.settings, host, Question { shortest, longest, tick }, patience)
        });
        // Written meanwhile: the server that answers this in half the time is none of those that do not answer in all
        // of it.
        let written = sessions.iter().map(|doubted| doubted.session.is_answered_within(patience / 2));
        let (replies, written) = tokio::join!(join_all(asked), join_all(written));
        let tick = |(host, reply): (&Host, &Reply)| Some((host.clone(), reply.heard?.tick?));
        let ticks: Vec<_> = hosts.iter().zip(&replies).filter_map(tick).collect();
        desk.learn_ticks(&ticks);
        self.ticks.extend(ticks.into_iter().map(|(host, _)| (host, began)));
        let verdict = |(InDoubt { session, .. }, is_answered): (&InDoubt, bool)| {
            let own = hosts.iter().zip(&replies).filter(|(host, _)| session.hosts.contains(host));
            of(session.timeout, own.map(|(_, reply)| reply), is_answered)
        };
        sessions.iter().zip(written).map(verdict).collect()
    }
}

/// What becomes of a session by what its servers replied, and whether its own answers writes.
fn of<'a>(timeout: Duration, replies: impl Iterator<Item = &'a Reply>, writes_are_answered: bool) -> Verdict {
    let (mut is_answered, mut is_in_doubt) = (false, false);
    for reply in replies {
        match &reply.heard {
            Some(heard) if !(heard.min..=heard.max).contains(&timeout) => return Verdict::Lost,
            heard => is_answered |= heard.is_some(),
        }
        is_in_doubt |= reply.leaves_doubt(writes_are_answered);
    }
    if is_answered && !is_in_doubt { Verdict::Kept } else { Verdict::Unknown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::zookeeper::limits::Heard;

    fn heard(min: u64, max: u64) -> Reply {
        let (min, max) = (Duration::from_secs(min), Duration::from_secs(max));
        Reply { heard: Some(Heard { min, max, tick: None }), ..Reply::default() }
    }

    #[test]
    fn each_session_is_judged_by_what_was_asked_for_all() {
        // Asked for 4 and 9 seconds.
        let (same, shorter, longer) = (heard(4, 9), heard(4, 7), heard(6, 9));
        let verdict = |timeout, replies: &[&Reply]| of(Duration::from_secs(timeout), replies.iter().copied(), true);
        for timeout in [4, 7, 9] {
            assert_eq!(verdict(timeout, &[&same]), Verdict::Kept);
        }
        for (timeout, other) in [(9, &shorter), (4, &longer)] {
            assert_eq!(verdict(timeout, &[&same, other]), Verdict::Lost);
        }
        assert_eq!(verdict(7, &[&shorter, &longer]), Verdict::Kept, "they differ, but not in this");
        assert_eq!(verdict(7, &[]), Verdict::Unknown);
        let closed = || Reply { closed: Some("too many connections".to_owned()), ..Reply::default() };
        assert_eq!(verdict(7, &[&same, &closed()]), Verdict::Unknown);
        assert_eq!(verdict(9, &[&closed(), &shorter]), Verdict::Lost, "whatever others do not say");
    }

    #[test]
    fn a_pause_is_not_the_same_for_all_and_never_longer() {
        let pauses: Vec<Duration> = (0..100).map(|_| about(Duration::from_millis(100))).collect();
        assert!(pauses.iter().all(|pause| (50..=100).contains(&pause.as_millis())), "{pauses:?}");
        assert!(pauses.iter().any(|pause| *pause != pauses[0]));
    }
}
