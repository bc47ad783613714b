//! Watching: a claim that waits hears when its turn has come, and one that is ended by others hears of that.
//!
//! One task for each claim, asleep nearly always. It never decides: what it hears makes it look again.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{join, select};
use zookeeper_client::OneshotWatcher;

use super::desk::{self, Desk};
use super::look::{Ahead, Fresh};
use super::names::may_stay;
use super::session::{Answered, Kind};
use super::table::{Entry, Placed};
use crate::backend::Event;
use crate::machine::{Grant, Shape, Standing};
use crate::owner::ClaimId;

/// How long a look that failed is waited after.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often in a row it is looked again at once.
const AT_ONCE_MAX: u32 = 8;
/// A pause is doubled so often at most.
const PAUSES_MAX: u32 = 8;

/// What a claim is woken by.
enum Woken {
    By(OneshotWatcher, Option<OneshotWatcher>),
    /// At once: what was to be watched has gone already.
    Now,
    /// Its node is not there.
    Gone,
}

/// Looks after a claim, unless somebody does.
pub(super) fn start(desk: &Arc<Desk>, id: ClaimId) {
    let begins = desk.table.change(id, |entry| !std::mem::replace(&mut entry.minded, true));
    if begins == Some(true) {
        desk.runtime.spawn(mind(desk.weak(), id));
    }
}

async fn mind(desk: Weak<Desk>, id: ClaimId) {
    let mut pace = Pace::default();
    loop {
        let woken = {
            let Some(desk) = desk.upgrade() else { return };
            let Some((entry, placed)) = present(&desk, id) else { return };
            match watch(&desk, id, &entry, &placed).await {
                Ok(Woken::Gone) => gone(&desk, id, &entry, &placed).await,
                woken => woken,
            }
        };
        let pause = match &woken {
            Ok(Woken::By(..)) => pace.slept(),
            Ok(Woken::Now) => pace.at_once(),
            Ok(Woken::Gone) | Err(_) => Some(pace.failed()),
        };
        match woken {
            Ok(Woken::By(own, Some(other))) => {
                // The watch that is not needed any more is taken back.
                select(Box::pin(own.changed()), Box::pin(other.changed())).await;
            }
            Ok(Woken::By(own, None)) => drop(own.changed().await),
            Ok(Woken::Now) => tokio::task::yield_now().await,
            Ok(Woken::Gone) => {}
            Err(error) => tracing::debug!(%error, claim = %id, "a claim cannot be watched"),
        }
        if let Some(pause) = pause {
            desk::pause(pause).await;
        }
    }
}

/// How soon a claim is looked at again.
#[derive(Debug, Default)]
struct Pace {
    /// Looks in a row that failed.
    failed: u32,
    /// Looks in a row that were followed by another at once.
    at_once: u32,
}

impl Pace {
    /// A watch was set, and fired.
    fn slept(&mut self) -> Option<Duration> {
        *self = Self::default();
        None
    }

    /// What was to be watched is not there. That is progress, as a rule; but a node that is not what its name says
    /// may be waited for without there being anything to watch.
    fn at_once(&mut self) -> Option<Duration> {
        self.at_once = self.at_once.saturating_add(1);
        (self.at_once > AT_ONCE_MAX).then(|| self.failed())
    }

    fn failed(&mut self) -> Duration {
        let pause = PAUSE.0 * (1 << self.failed.min(PAUSES_MAX));
        self.failed = self.failed.saturating_add(1);
        pause.min(PAUSE.1)
    }
}

/// What to do about a claim that is not at its node. [`Woken::Gone`]: look again, a little later.
async fn gone(desk: &Desk, id: ClaimId, entry: &Entry, placed: &Placed) -> Answered<Woken> {
    let moves = |now: Entry| now.moving > 0 || now.placed != entry.placed;
    if desk.table.get(id).is_some_and(moves) {
        return Ok(Woken::Gone);
    }
    let missing = desk.missing(&entry.session, &entry.name, id, Some(placed.number)).await?;
    desk.ended(id, placed, &missing);
    Ok(Woken::Now)
}

/// The claim, if there is still something to look after.
fn present(desk: &Desk, id: ClaimId) -> Option<(Entry, Placed)> {
    let seen = desk.table.change(id, |entry| {
        let placed = entry.placed.clone().filter(|_| !entry.ending && !entry.session.has_ended());
        // Whoever places it anew starts another.
        entry.minded = placed.is_some();
        let seen = entry.clone();
        entry.ahead = None;
        placed.map(|placed| (seen, placed))
    });
    seen.flatten()
}

/// Sets the watches of a claim, and tells of its grant.
async fn watch(desk: &Arc<Desk>, id: ClaimId, entry: &Entry, placed: &Placed) -> Answered<Woken> {
    let session = &entry.session;
    let parent = desk.paths.of(&entry.name);
    let own = format!("{parent}/{}", placed.node);
    // Sent one after the other: the look misses nothing that the watch does not tell of.
    let watched = session.ask(Kind::Read, || session.client.check_and_watch_stat(&own));
    let (watched, looked) = join(watched, look(desk, id, entry, placed)).await;
    let (there, own) = watched?;
    if there.is_none_or(|stat| stat.ephemeral_owner != session.id) {
        return Ok(Woken::Gone);
    }
    let (ahead, all) = match looked? {
        Looked::Holds(number, grant) => {
            desk.tell_granted(id, number, grant);
            return Ok(Woken::By(own, None));
        }
        Looked::Waits(ahead, all) => (ahead, all),
        Looked::Gone => return Ok(Woken::Gone),
    };
    let other = match ahead {
        Ahead::Any => all,
        // Somebody was, a moment ago.
        Ahead::Nobody => return Ok(Woken::Now),
        Ahead::Node(node) => {
            let path = format!("{parent}/{node}");
            let (there, other) = session.ask(Kind::Read, || session.client.check_and_watch_stat(&path)).await?;
            match there {
                None => return Ok(Woken::Now),
                // Somebody's data, which may stay for ever: the next look is at what it says.
                Some(stat) if stat.ephemeral_owner == 0 && !may_stay(&node) => {
                    desk.forget(&path);
                    return Ok(Woken::Now);
                }
                Some(_) => Some(other),
            }
        }
    };
    Ok(Woken::By(own, other))
}

/// How a claim was seen to stand.
enum Looked {
    /// It holds: its number, and what it was given.
    Holds(u64, Grant),
    /// It waits for these; for permits with a watch on the whole queue.
    Waits(Ahead, Option<OneshotWatcher>),
    /// Its node is not there.
    Gone,
}

async fn look(desk: &Desk, id: ClaimId, entry: &Entry, placed: &Placed) -> Answered<Looked> {
    if let Some(grant) = entry.grant {
        return Ok(Looked::Holds(placed.number, grant));
    }
    let session = &entry.session;
    // Before the look, so that nothing is missed in between.
    let all = match entry.request.shape {
        Shape::Permits { .. } => {
            let parent = desk.paths.of(&entry.name);
            let watched = session.ask(Kind::Read, || session.client.list_and_watch_children(&parent)).await;
            Some(watched?.1)
        }
        _ => None,
    };
    // It was looked at when it came. If whom it was behind is there still, so is all that was said of it.
    if let Some(ahead @ Ahead::Node(_)) = &entry.ahead {
        return Ok(Looked::Waits(ahead.clone(), None));
    }
    Ok(match desk.stand(id, entry).await? {
        Some((Standing { number, state: Ok(grant), .. }, _)) => Looked::Holds(number, grant),
        Some((_, ahead)) => Looked::Waits(ahead, all),
        None => Looked::Gone,
    })
}

impl Desk {
    /// Tells of a grant, once; and lets claims of the same owner look again, which now may stand within it.
    pub(super) fn tell_granted(self: &Arc<Self>, id: ClaimId, number: u64, grant: crate::machine::Grant) {
        let told = self.table.change(id, |entry| std::mem::replace(&mut entry.told, true));
        if told != Some(false) {
            return;
        }
        self.tell(Event::Granted { id, grant, number });
        let Some(granted) = self.table.get(id) else { return };
        for other in self.table.waiting(&granted.name, &granted.request.owner, id) {
            let desk = self.clone();
            self.runtime.spawn(async move { desk.look_again(other).await });
        }
    }

    /// Looks how a waiting claim stands, and tells if it holds.
    async fn look_again(self: Arc<Self>, id: ClaimId) {
        let Some(entry) = self.table.get(id) else { return };
        // If this fails, its renewal looks.
        if let Ok(Some((standing, _))) = self.stand(id, &entry).await
            && let Ok(grant) = standing.state
        {
            self.tell_granted(id, standing.number, grant);
        }
    }

    /// The claims of a name, seen by all.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn all_nodes(
        &self,
        session: &super::session::Session,
        name: &crate::name::Name,
    ) -> Answered<Vec<(super::names::Node, Arc<super::record::Known>)>> {
        let listing = self.listing(session, name, Fresh::Yes).await?;
        self.look_into_all(session, name, &listing.nodes).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_at_once_again_and_again_has_an_end() {
        let mut pace = Pace::default();
        let pauses: Vec<_> = (0..20).map(|_| pace.at_once()).collect();
        assert!(pauses[..8].iter().all(Option::is_none), "others come and go: {pauses:?}");
        assert_eq!(pauses[8], Some(PAUSE.0));
        assert!(pauses[8..].is_sorted() && pauses[19] == Some(PAUSE.1), "{pauses:?}");
        assert_eq!((pace.slept(), pace.at_once(), pace.failed()), (None, None, PAUSE.0));
    }
}
