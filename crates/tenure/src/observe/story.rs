//! What is told of one claim, from the wish to its end.

use std::sync::Arc;
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
        Self { observer, clock, name, label, since: clock.now(), group: Some(group), spans: Spans::begin(name) }
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

    /// It was not granted: somebody holds it, or for this reason.
    pub(crate) fn failed(mut self, error: Option<&Error>) {
        let behind = error.and_then(Error::holder).map(|holder| holder.label.as_str().into());
        self.end(error.map_or(Ended::Busy, Ended::by), behind);
    }

    fn end(&mut self, ended: Ended, behind: Option<Arc<str>>) {
        let Some(group) = self.group.take() else { return };
        group.not_granted(&ended);
        if let Some(spans) = &self.spans {
            spans.ended(&ended);
        }
        let now = self.clock.now();
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
