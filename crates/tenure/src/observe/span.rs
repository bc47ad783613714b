//! Spans, through `tracing`: `claim` from the wish to its end, within whatever the caller is in; below it `acquire`,
//! `hold` and `release`.

use std::time::Duration;

use tracing::{Span, field, info_span};

use super::recent::Ended;
use super::story::Story;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// The spans of one claim. There is none where nobody listens.
pub(crate) struct Spans {
    claim: Span,
    /// While it is held.
    hold: Span,
}

impl Spans {
    pub(super) fn begin(name: &Name) -> Option<Box<Self>> {
        let claim = info_span!(
            "claim",
            %name,
            owner = field::Empty,
            token = field::Empty,
            waited_ms = field::Empty,
            behind = field::Empty,
            ended = field::Empty,
        );
        (!claim.is_disabled()).then(|| Box::new(Self { claim, hold: Span::none() }))
    }

    /// While it is asked and waited for.
    pub(super) fn acquire(&self) -> Span {
        info_span!(parent: &self.claim, "acquire")
    }

    pub(super) fn granted(&mut self, owner: &Owner, token: Option<Token>, story: &Story) {
        self.waited(Some(owner), story.waited(), story.behind.as_deref());
        if let Some(token) = token {
            self.claim.record("token", token.0);
        }
        self.hold = info_span!(parent: &self.claim, "hold");
    }

    /// It waited so long, for this one if for anybody. Who asked is not known of one that only waited for others of its
    /// process.
    pub(super) fn waited(&self, owner: Option<&Owner>, waited: Duration, behind: Option<&str>) {
        if let Some(owner) = owner {
            self.claim.record("owner", field::display(owner));
        }
        self.claim.record("waited_ms", u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        if let Some(behind) = behind {
            self.claim.record("behind", behind);
        }
    }

    /// While it is released.
    pub(crate) fn release(&mut self) -> Span {
        self.hold = Span::none();
        info_span!(parent: &self.claim, "release")
    }

    pub(super) fn ended(&self, ended: &Ended) {
        self.claim.record("ended", field::display(ended));
    }
}
