//! The front of a queue: as its watch tells it, or else read once for all who need it at the same time.
//!
//! etcd reads all keys of a queue to find its front. Where a thousand wait while their watch is made anew, each would
//! read it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::desk::Desk;
use super::entry::{Entry, Line, head};
use super::wire::Answered as _;
use crate::backend::ClaimRequest;
use crate::clock::Moment;
use crate::error::Result;
use crate::name::Name;

/// For how long what was read is good enough to see that others stand before a claim.
const FRESH: Duration = Duration::from_secs(1);

/// What was read of one name; held while it is read.
type Slot = Arc<tokio::sync::Mutex<Option<(Moment, Line)>>>;

#[derive(Debug, Default)]
pub(super) struct Glances {
    slots: Mutex<HashMap<Name, Slot>>,
}

impl Glances {
    fn slot(&self, name: &Name) -> Slot {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() == slots.capacity() {
            // Before the table grows, what nobody uses goes.
            slots.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        slots.entry(name.clone()).or_default().clone()
    }
}

impl Desk {
    /// The front of a queue after a key was made by this revision: as it is known if it is long, else as it is now.
    ///
    /// For a claim whose owner has no other it may be older: the key stands behind all that is known. Other owners
    /// may have come to hold just before it, and then it re-enters, or is refused.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn front(&self, name: &Name, request: &ClaimRequest, created: i64) -> Result<Line> {
        if request.solo
            && let Some(line) = self.ear.long_front(name, self.wall())
        {
            return Ok(line);
        }
        match self.ear.front_at(name, created, self.wall()).await {
            Some(line) => Ok(line),
            None => self.glance(name, |_, line| line.revision >= created).await,
        }
    }

    /// The front of a queue as it was a moment ago, or is now.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn fresh_front(&self, name: &Name) -> Result<Line> {
        let now = self.clock.now();
        self.glance(name, |at, _| now.since(at) < FRESH).await
    }

    /// The front of a queue as somebody else has just read it, if that is good enough, or as it is now.
    async fn glance(&self, name: &Name, is_enough: impl FnOnce(Moment, &Line) -> bool) -> Result<Line> {
        let slot = self.glances.slot(name);
        let mut read = slot.lock().await;
        if let Some((_, line)) = read.as_ref().filter(|(at, line)| is_enough(*at, line)) {
            return Ok(line.clone());
        }
        let begun = self.clock.now();
        let line = self.head(name).await?;
        *read = line.more.then(|| (begun, line.clone()));
        Ok(line)
    }

    async fn head(&self, name: &Name) -> Result<Line> {
        let under = self.keys.under(name);
        let found = self.range(head(&under)).await?;
        let revision = found.header().revision;
        Ok(Line::of(&under, found.kvs, found.more, revision))
    }

    /// The queue of a claim whose key was there before, without reading it if it is known.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn line_of_known(&self, name: &Name, request: &ClaimRequest, own: Option<&Entry>) -> Result<Line> {
        if let Some(own) = own {
            let line = self.front(name, request, own.created).await?;
            if self.plainly_waits(&line, own, request) {
                return Ok(line);
            }
            // One by an earlier key was there when this one was made. Whether it still is, nobody but etcd can say.
            if line.find(request.id).is_none_or(|found| found.key == own.key) {
                return self.telling_at(name, line, own.created).await;
            }
        }
        self.line(name).await
    }

    /// The front of a queue, as it was when a key was made or later, if it tells who holds; else all of the queue.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn telling_at(&self, name: &Name, line: Line, created: i64) -> Result<Line> {
        if line.revision >= created { self.telling(name, line).await } else { self.line(name).await }
    }

    /// Whether a claim stands behind others, as far as is known, and there is nothing else to it. That stays true
    /// when more is known: of the keys before it none is added, and the watch tells when they go.
    pub(super) fn plainly_waits(&self, line: &Line, own: &Entry, request: &ClaimRequest) -> bool {
        let before = line.queue_before(own.created, self.wall());
        !before.has_room_for(request)
            && line.find(request.id).is_none()
            && before.refusal(request).is_none()
            && line.outer_of(own, request.id, &before).is_none()
    }
}
