//! The fence over HTTP: a layer for axum and tower, and headers for clients.
//!
//! A client adds [`Fence::headers`] to its requests (or [`header_map`], for clients that take one). The layer answers
//! 400 where they are missing or malformed and **412** where a newer holder has been at the resource already (not 409:
//! trying again cannot help), and hands the handler a [`Fence`] as a request extension.
//!
//! **The layer only refuses early.** A request that has passed it may be overtaken by a newer holder's before its
//! effect. So the handler checks the fence again, in the effect's own transaction (`fence::postgres`, `fence::sqlite`,
//! `fence::redis`) or in a [`Gate`](super::Gate):
//!
//! ```
//! use std::convert::Infallible;
//! use std::sync::Arc;
//! use axum::http::request::Parts;
//! use axum::{Extension, Router, response::Response, routing::post};
//! use tenure::fence::http::{FenceLayer, refusal};
//! use tenure::fence::{Failure, Fence, Gate};
//!
//! let stock = Arc::new(Gate::new(10).named("stock"));
//! let seen = stock.clone();
//! // Looks at what has been accepted for the resource that a request is about.
//! let layer = FenceLayer::new(move |_: &Parts, fence: Fence| {
//!     let refused = seen.look(&fence).map_err(Failure::<Infallible>::from);
//!     async move { refused }
//! });
//! let sell = async move |Extension(fence): Extension<Fence>| -> Response {
//!     match stock.write_as(&fence, |stock| *stock -= 1) {
//!         Ok(()) => Response::default(),
//!         Err(refused) => refusal(&refused),
//!     }
//! };
//! let service: Router = Router::new().route("/stock", post(sell)).layer(layer);
//! ```
//!
//! Whoever can send the headers can lock everybody else out with a high token: authenticate callers before this layer.

use std::fmt::Display;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use ::http::request::Parts;
use ::http::{Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use super::{Failure, Fence, OWNER_HEADER, Refused, TOKEN_HEADER};
use crate::error::{Error, ErrorKind};

/// The headers of a fence, for a client that takes a map of them.
pub fn header_map(fence: &Fence) -> HeaderMap {
    let headers = fence.headers().into_iter().filter_map(|(name, value)| {
        // Digits, letters and a semicolon: always a header.
        Some((HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?))
    });
    headers.collect()
}

/// The fence that a request carries.
///
/// # Errors
///
/// [`ErrorKind::Invalid`] if a header is missing, malformed, or there twice.
pub fn from_headers(headers: &HeaderMap) -> Result<Fence, Error> {
    let only = |name: &str| {
        let mut values = headers.get_all(name).iter();
        match (values.next().and_then(|value| value.to_str().ok()), values.next()) {
            (Some(value), None) => Ok(value),
            _ => Err(Error::new(ErrorKind::Invalid, format!("a request here needs one header {name}"))),
        }
    };
    Fence::from_headers(only(TOKEN_HEADER)?, only(OWNER_HEADER)?)
}

/// The answer to a request that was refused: 412 if it is stale, 400 if its lock does not order it. The body is JSON:
/// `{"kind": …, "message": …}`.
pub fn refusal<B: From<String>>(refused: &Refused) -> Response<B> {
    match refused {
        Refused::Stale { .. } => answer(StatusCode::PRECONDITION_FAILED, "stale", refused),
        _ => answer(StatusCode::BAD_REQUEST, "invalid", refused),
    }
}

fn answer<B: From<String>>(status: StatusCode, kind: &str, message: &dyn Display) -> Response<B> {
    let body = serde_json::json!({ "kind": kind, "message": message.to_string() });
    let mut response = Response::new(B::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// Refuses requests early that carry no fence or a stale one; the module says what that is worth.
#[derive(Clone, Debug)]
pub struct FenceLayer<L> {
    look: L,
}

impl<L> FenceLayer<L> {
    /// `look` finds the resource of a request and asks whether anything stands against the fence by now: with
    /// `Gate::look`, `postgres::look`, `sqlite::look` or `redis::look`. If it fails the request is answered 503.
    pub fn new<F, E>(look: L) -> Self
    where
        L: Fn(&Parts, Fence) -> F,
        F: Future<Output = Result<(), Failure<E>>>,
    {
        Self { look }
    }
}

impl<S, L: Clone> Layer<S> for FenceLayer<L> {
    type Service = Fenced<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Fenced { inner, look: self.look.clone() }
    }
}

/// A service behind a [`FenceLayer`].
#[derive(Clone, Debug)]
pub struct Fenced<S, L> {
    inner: S,
    look: L,
}

impl<S, L, F, E, Body, Answer> Service<Request<Body>> for Fenced<S, L>
where
    S: Service<Request<Body>, Response = Response<Answer>> + Clone + Send + 'static,
    S::Future: Send,
    L: Fn(&Parts, Fence) -> F,
    F: Future<Output = Result<(), Failure<E>>> + Send + 'static,
    E: Display + Send,
    Body: Send + 'static,
    Answer: From<String>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that was polled ready is the one to call.
        let clone = self.inner.clone();
        let mut inner = mem::replace(&mut self.inner, clone);
        let (mut parts, body) = request.into_parts();
        let looked = from_headers(&parts.headers).map(|fence| (fence, (self.look)(&parts, fence)));
        Box::pin(async move {
            let (fence, look) = match looked {
                Ok(looked) => looked,
                Err(error) => return Ok(answer(StatusCode::BAD_REQUEST, "invalid", &error)),
            };
            match look.await {
                Ok(()) => {}
                Err(Failure::Refused(refused)) => return Ok(refusal(&refused)),
                Err(Failure::Store(error)) => {
                    // What the store says is for the log, not for the caller.
                    tracing::warn!(%error, "the fence of a resource could not be read");
                    let message = "the fence of this resource could not be read: try again";
                    return Ok(answer(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &message));
                }
            }
            parts.extensions.insert(fence);
            inner.call(Request::from_parts(parts, body)).await
        })
    }
}
