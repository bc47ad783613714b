//! What is told of one claim, from the wish to its end.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tracing::Span;

use super::metrics::OfGroup;
use super::recent::{Ended, Recent};
use super::{Observer, Spans};
use crate::clock::{Clock, Moment};
use crate::error::Error;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// An acquire under way. Dropped before it has come to an end, it was cancelled.
pub(crate) struct Wish<'a> {
    observer: &'a Observer,
    clock: &'a dyn Clock,
    name: &'a Name,
    label: &'a Arc<str>,
    since: Moment,
    group: Option<Arc<OfGroup>>,
    spans: Option<Box<Spans>>,
    heard: Mutex<Heard>,
    /// Whether it waits for a task of its own process.
    is_behind_own: AtomicBool,
}

/// What became known of an acquire before it came to its end.
#[derive(Default)]
struct Heard {
    /// Who holds what it waits for.
    behind: Option<Arc<str>>,
    /// Who asks, if a span is told.
    owner: Option<Owner>,
}

/// What is known of a claim that is held.
pub(crate) struct Story {
    since: Moment,
    granted: Moment,
    /// Whom it was waited for.
    pub(super) behind: Option<Arc<str>>,
    spans: Option<Box<Spans>>,
}

impl<'a> Wish<'a> {
    pub(crate) fn new(observer: &'a Observer, clock: &'a dyn Clock, name: &'a Name, label: &'a Arc<str>) -> Self {
        let group = observer.metrics.of(name);
        group.wished();
        Self {
            observer,
            clock,
            name,
            label,
            since: clock.now(),
            group: Some(group),
            spans: Spans::begin(name),
            heard: Mutex::default(),
            is_behind_own: AtomicBool::new(false),
        }
    }

    /// This owner asks the store for it.
    pub(crate) fn asks_as(&self, owner: &Owner) {
        if self.spans.is_some() {
            self.heard().owner = Some(owner.clone());
        }
    }

    /// The one with this label holds it.
    pub(crate) fn is_behind(&self, holder: &Arc<str>) {
        self.heard().behind = Some(holder.clone());
    }

    /// It waits for another task of this process, with the same label.
    pub(crate) fn is_behind_own(&self) {
        self.is_behind_own.store(true, Ordering::Relaxed);
    }

    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The span that acquiring is in.
    pub(crate) fn span(&self) -> Span {
        self.spans.as_ref().map_or_else(Span::none, |spans| spans.acquire())
    }

    /// It was granted then, after it was waited for this one, if for anybody.
    pub(crate) fn granted(
        mut self,
        granted: Moment,
        behind: Option<Arc<str>>,
        owner: &Owner,
        token: Option<Token>,
    ) -> Option<Story> {
        let group = self.group.take()?;
        let mut story = Story { since: self.since, granted, behind, spans: None };
        group.granted(story.waited(), story.behind.is_some());
        if let Some(mut spans) = self.spans.take() {
            spans.granted(owner, token, &story);
            story.spans = Some(spans);
        }
        Some(story)
    }

    /// It began then, with an earlier request.
    pub(crate) fn since(mut self, since: Moment) -> Self {
        self.since = since;
        self
    }

    /// It goes on waiting, without anybody who asks.
    pub(crate) fn put_off(mut self) {
        if let Some(group) = self.group.take() {
            group.put_off();
        }
    }

    /// It was not granted.
    pub(crate) fn ended(mut self, ended: Ended, behind: Option<Arc<str>>) {
        self.end(ended, behind);
    }

    /// It was not granted: somebody holds it, or for this reason.
    pub(crate) fn failed(mut self, error: Option<&Error>) {
        let behind = error.and_then(Error::holder).map(|holder| holder.label.as_str().into());
        self.end(error.map_or(Ended::Busy, Ended::by), behind);
    }

    fn end(&mut self, ended: Ended, behind: Option<Arc<str>>) {
        let Some(group) = self.group.take() else { return };
        group.not_granted(&ended);
        let now = self.clock.now();
        let Heard { behind: heard, owner } = std::mem::take(&mut *self.heard());
        let own = self.is_behind_own.load(Ordering::Relaxed).then(|| self.label.clone());
        let behind = behind.or(heard).or(own);
        if let Some(spans) = &self.spans {
            spans.waited(owner.as_ref(), now.since(self.since), behind.as_deref());
            spans.ended(&ended);
        }
        let recent = Recent {
            name: self.name.clone(),
            label: self.label.clone(),
            waited: now.since(self.since),
            behind,
            held: None,
            token: None,
            ended,
            ago: Duration::ZERO,
        };
        self.observer.ring.add(now, recent);
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.end(Ended::Cancelled, None);
    }
}

impl Story {
    pub(super) fn waited(&self) -> Duration {
        self.granted.since(self.since)
    }

    /// The span that releasing is in.
    pub(crate) fn release_span(&mut self) -> Span {
        self.spans.as_mut().map_or_else(Span::none, |spans| spans.release())
    }

    /// Its guard is gone.
    pub(crate) fn end(
        self,
        observer: &Observer,
        now: Moment,
        (name, label): (&Name, &Arc<str>),
        token: Option<Token>,
        ended: Ended,
    ) {
        let (waited, held) = (self.waited(), now.since(self.granted));
        observer.metrics.of(name).held(held);
        if let Some(spans) = &self.spans {
            spans.ended(&ended);
        }
        let (name, label) = (name.clone(), label.clone());
        let held = Some(held);
        observer
            .ring
            .add(now, Recent { name, label, waited, behind: self.behind, held, token, ended, ago: Duration::ZERO });
    }
}
