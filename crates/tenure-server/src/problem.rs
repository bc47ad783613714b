//! The one shape of every error.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::backend::{MemoKind, Place, Shape};
use tenure::{Certainty, Error, ErrorKind};
use utoipa::ToSchema;

/// How much of a name a claim takes.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ShapeView {
    /// `exclusive`, `shared` or `permits`.
    shape: &'static str,
    units: u32,
    /// Of how many permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity: Option<u32>,
}

impl From<Shape> for ShapeView {
    fn from(shape: Shape) -> Self {
        let capacity = match shape {
            Shape::Permits { of, .. } => Some(of),
            _ => None,
        };
        Self { shape: shape.as_str(), units: shape.units(), capacity }
    }
}

/// An error as callers see it: what happened, to what, and what to do.
#[derive(Clone, Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Problem(Box<ProblemBody>);

/// What it says.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody {
    #[serde(skip)]
    #[schema(ignore)]
    pub(crate) status: StatusCode,
    /// What it is about: `invalid`, `unauthorized`, `forbidden`, `not_found`, `busy`, `timeout`, `superseded`,
    /// `conflict`, `not_held`, `changed`, `no_memo`, `lost`, `broken`, `gone`, `too_many`, `unavailable` and so on.
    kind: &'static str,
    /// What happened, for people.
    message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
    /// Whether it may have taken effect all the same: `not_applied` or `unknown`.
    #[serde(skip_serializing_if = "Option::is_none")]
    certainty: Option<&'static str>,
    /// The label of who holds the name.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<String>,
    /// How long the holder still holds unless it renews. A retry returns it as `presumed_ms`, if it is told to.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_expires_in_ms: Option<u64>,
    /// How many claims stood before this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    ahead: Option<usize>,
    /// How many of them wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    waiters_ahead: Option<usize>,
    /// The longest ttl of those who hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_ttl_ms: Option<u64>,
    /// Why it can never be granted beside the live claims: `mixed`, `upgrade`, `permits_within_permits`, `not_session`,
    /// `not_held` or `units`.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'static str>,
    /// How the name is in use, if that is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<ShapeView>,
    /// The version of the memo that is there; 0 if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u64>,
    /// The kind of the memo that is there, if that is why.
    #[serde(skip_serializing_if = "Option::is_none")]
    memo_kind: Option<&'static str>,
    /// The field that was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Who broke the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// Why it was broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The owner to repeat the request with.
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    /// The claim to repeat the request with.
    #[serde(skip_serializing_if = "Option::is_none")]
    claim: Option<String>,
    /// The answer's `x-request-id`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) request_id: String,
    #[serde(skip)]
    #[schema(ignore)]
    retry_after: Option<Duration>,
}

pub(crate) type Answer<T> = Result<T, Problem>;

impl Deref for Problem {
    type Target = ProblemBody;

    fn deref(&self) -> &ProblemBody {
        &self.0
    }
}

impl DerefMut for Problem {
    fn deref_mut(&mut self) -> &mut ProblemBody {
        &mut self.0
    }
}

impl Problem {
    pub(crate) fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(ProblemBody {
            status,
            kind,
            message: message.into(),
            hint: None,
            certainty: None,
            holder: None,
            holder_expires_in_ms: None,
            ahead: None,
            waiters_ahead: None,
            holder_ttl_ms: None,
            refusal: None,
            live: None,
            version: None,
            memo_kind: None,
            field: None,
            by: None,
            reason: None,
            owner: None,
            claim: None,
            request_id: String::new(),
            retry_after: None,
        }))
    }

    /// A field that cannot be what it is.
    pub(crate) fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        let mut problem = Self::new(StatusCode::BAD_REQUEST, "invalid", message);
        problem.field = Some(field.into());
        problem
    }

    pub(crate) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", message)
    }

    pub(crate) fn conflict(kind: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, kind, message)
    }

    pub(crate) fn gone(kind: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, kind, message)
    }

    pub(crate) fn broken(by: &str, reason: &str) -> Self {
        let mut problem = Self::gone("broken", format!("the claim was broken by {by}"));
        problem.by = Some(by.to_owned());
        problem.reason = Some(reason.to_owned());
        problem
    }

    /// The memo is not the one that was to be replaced.
    pub(crate) fn memo_changed(version: u64) -> Self {
        let message = match version {
            0 => "nothing is kept with this name, and `after` names a version".to_owned(),
            version => format!("the memo's version is {version}, and `after` names another"),
        };
        let mut problem = Self::new(StatusCode::PRECONDITION_FAILED, "changed", message);
        problem.version = Some(version);
        problem.hint("read it, and write again with its version as `after`")
    }

    /// A recipe keeps a memo of its own there.
    pub(crate) fn memo_of_another_kind(kind: MemoKind) -> Self {
        let mut problem = Self::conflict("conflict", format!("a memo of the kind {kind} is kept with this name"));
        problem.memo_kind = Some(kind.as_str());
        problem.hint("use another name")
    }

    pub(crate) fn too_many(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many", message).retry_after(Duration::from_secs(1))
    }

    /// The store cannot be asked, or its answer is not known.
    pub(crate) fn unavailable(message: impl Into<String>, certainty: Certainty) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
            .certain(certainty)
            .retry_after(Duration::from_secs(1))
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn certain(mut self, certainty: Certainty) -> Self {
        self.certainty = Some(match certainty {
            Certainty::NotApplied => "not_applied",
            Certainty::Unknown => "unknown",
        });
        self
    }

    pub(crate) fn retry_after(mut self, pause: Duration) -> Self {
        self.retry_after = Some(pause);
        self
    }

    /// Who holds the name, and where the claim stood.
    pub(crate) fn held_by(mut self, place: &Place) -> Self {
        if !place.holder.is_empty() {
            self.holder = Some(place.holder.to_string());
        }
        self.holder_expires_in_ms = Some(ms(place.holder_expires_in));
        self.ahead = Some(place.ahead);
        self.waiters_ahead = Some(place.waiters_ahead);
        self.holder_ttl_ms = Some(ms(place.holder_ttl));
        self
    }

    /// Why it can never be granted, for programs.
    pub(crate) fn refused(mut self, refusal: &'static str, live: Option<Shape>) -> Self {
        self.refusal = Some(refusal);
        self.live = live.map(ShapeView::from);
        self
    }

    /// How long a holder that the store has lost may still trust its lease.
    pub(crate) fn holder_may_live(mut self, for_: Duration) -> Self {
        self.holder_expires_in_ms = Some(ms(for_));
        self
    }

    /// With whose owner and claim to repeat it.
    pub(crate) fn of_claim(mut self, owner: &str, claim: Option<&str>) -> Self {
        self.owner = Some(owner.to_owned());
        self.claim = claim.map(str::to_owned);
        self
    }

    /// The field has another name here.
    pub(crate) fn field_is(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }

    /// The field is that of one of many.
    pub(crate) fn at_place(mut self, list: &str, place: usize) -> Self {
        self.field = self.field.take().map(|field| format!("{list}[{place}].{field}"));
        self
    }

    /// What it is about.
    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// Who holds the name.
    pub(crate) fn holder(&self) -> Option<&str> {
        self.holder.as_deref()
    }

    /// Whether the store has lost a claim that waited.
    pub(crate) fn is_vanished(&self) -> bool {
        self.is_transient() && self.holder_expires_in_ms.is_some()
    }

    /// Whether a repeated request may fare better.
    pub(crate) fn is_transient(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// The answer, once its id is known.
    pub(crate) fn render(self) -> Response {
        let retry_after = self.retry_after.map(|pause| HeaderValue::from(pause.as_secs()));
        let status = self.status;
        let mut response = (status, axum::Json(self)).into_response();
        if let Some(pause) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, pause);
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl IntoResponse for Problem {
    /// Passed on as it is: the layer that knows the request's id renders it.
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            ErrorKind::Conflict | ErrorKind::NotHeld | ErrorKind::Timeout | ErrorKind::Deadlock => StatusCode::CONFLICT,
            ErrorKind::Lost => StatusCode::GONE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let problem = Self::new(status, error.kind().as_str(), error.to_string());
        if status != StatusCode::SERVICE_UNAVAILABLE {
            return problem;
        }
        problem.certain(error.certainty()).retry_after(Duration::from_secs(1))
    }
}

/// A duration in whole milliseconds, rounded down.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
