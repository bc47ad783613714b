//! Spans, through `tracing`: `claim` from the wish to its end, within whatever the caller is in; below it `acquire`,
//! `hold` and `release`.

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
        self.claim.record("owner", field::display(owner));
        if let Some(token) = token {
            self.claim.record("token", token.0);
        }
        self.claim.record("waited_ms", u64::try_from(story.waited().as_millis()).unwrap_or(u64::MAX));
        if let Some(behind) = &story.behind {
            self.claim.record("behind", &**behind);
        }
        self.hold = info_span!(parent: &self.claim, "hold");
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
