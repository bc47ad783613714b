//! What every request passes: is it meant for us, does a strange web page send it, who calls. And every answer: its id,
//! the shape of its errors, what browsers may do with it.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tokio::sync::watch;

use crate::auth::{Caller, Tokens};
use crate::connection::Peer;
use crate::problem::{Answer, Problem};
use crate::service::Service;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The dashboard's own files and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
    base-uri 'none'; frame-ancestors 'none'; form-action 'none'";

/// Who may come in.
#[derive(Debug)]
pub(crate) struct Gate {
    /// The tokens that are known; none where nobody is asked.
    pub(crate) tokens: Option<ArcSwap<Tokens>>,
    /// Names of this service besides those of the loopback, where nobody is asked.
    pub(crate) hosts: Vec<String>,
    /// Counts how often the tokens were read again.
    pub(crate) reloads: watch::Sender<u64>,
}

impl Gate {
    fn caller(&self, headers: &HeaderMap, certified: Option<&str>) -> Answer<Caller> {
        let Some(tokens) = &self.tokens else { return Ok(Caller::anybody()) };
        let refused = |message: &str| Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", message);
        let hint = "send authorization: Bearer SECRET; `tenure serve token NAME` makes one";
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            // A certificate counts as the token of the name in it.
            if let Some(caller) = certified.and_then(|name| tokens.load().named(name)) {
                return Ok(caller);
            }
            return Err(refused("no token was sent").hint(hint));
        };
        let given = given.to_str().unwrap_or_default();
        let bearer = given.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        let Some((_, secret)) = bearer else { return Err(refused("not a bearer token").hint(hint)) };
        tokens.load().caller(secret.trim()).ok_or_else(|| refused("this token is not known"))
    }

    /// The caller as it is now, if it still is one: tokens may have been read again.
    pub(crate) fn again(&self, caller: &Caller) -> Option<Caller> {
        match &self.tokens {
            Some(tokens) => tokens.load().named(&caller.name),
            None => Some(caller.clone()),
        }
    }

    /// The caller as it is now, for a request that took its time to arrive.
    ///
    /// # Errors
    ///
    /// Its token is gone.
    pub(crate) fn still(&self, caller: &Caller) -> Answer<Caller> {
        let gone = || Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "this token is not known any more");
        self.again(caller).ok_or_else(gone)
    }

    /// Where nobody is asked who they are, a page must not reach us by a name of its own that it has turned to us.
    fn is_meant(&self, host: &str) -> bool {
        if self.tokens.is_some() {
            return true;
        }
        let name = host_of(host);
        if self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return true;
        }
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

/// A host without its port and brackets.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split_once(']').map_or(rest, |(host, _)| host);
    }
    authority.rsplit_once(':').map_or(authority, |(host, _)| host)
}

/// Refuses what a page of another origin sends.
fn same_origin(headers: &HeaderMap, host: &str) -> Answer<()> {
    let foreign = || Err(Problem::forbidden("a web page of another origin may not call this service"));
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.split_once("://").map_or("", |(_, authority)| authority);
        if authority.is_empty() || !authority.eq_ignore_ascii_case(host) {
            return foreign();
        }
    }
    match headers.get(FETCH_SITE).map(HeaderValue::as_bytes) {
        None | Some(b"same-origin" | b"none") => Ok(()),
        Some(_) => foreign(),
    }
}

/// Whether a path is open to all: it tells nothing of locks.
fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/healthz" | "/readyz" | "/openapi.json" | "/favicon.ico") || path.starts_with("/assets/")
}

/// The layer around all routes.
///
/// # Cancel safety
///
/// As the route's.
pub(crate) async fn pass(State(service): State<Arc<Service>>, mut request: Request, next: Next) -> Response {
    let id = format!("{:016x}", rand::random::<u64>());
    let began = Instant::now();
    let (method, path, version) = (request.method().clone(), request.uri().path().to_owned(), request.version());
    let mut response = match admit(&service.gate, &mut request, &path) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    let problem = response.extensions_mut().remove::<Problem>();
    if let Some(mut problem) = problem {
        problem.request_id.clone_from(&id);
        response = problem.render();
    }
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID, id);
    }
    // Whoever repeats a request goes over a new connection, which a balancer leads to another instance. HTTP/2 has a
    // frame for that.
    if service.claims.is_stopping() && version < Version::HTTP_2 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let status = response.status().as_u16();
    // Neither queries nor bodies: a path names a lock, nothing else.
    tracing::debug!(%id, %method, path, status, took = ?began.elapsed(), "answered");
    response
}

fn admit(gate: &Gate, request: &mut Request, path: &str) -> Answer<()> {
    let headers = request.headers();
    let named = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_owned);
    // HTTP/2 has it in the URI.
    let host = named.or_else(|| request.uri().authority().map(ToString::to_string)).unwrap_or_default();
    if !gate.is_meant(&host) {
        let message = format!("{host:?} is not this service's name: without tokens it is localhost");
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "misdirected", message)
            .hint("call it as localhost or 127.0.0.1, or start it with --tokens"));
    }
    let caller = if is_open(path) && matches!(*request.method(), Method::GET | Method::HEAD) {
        Caller::nobody()
    } else {
        same_origin(request.headers(), &host)?;
        let certified = request.extensions().get::<Peer>().and_then(|peer| peer.certified.clone());
        gate.caller(request.headers(), certified.as_deref())?
    };
    request.extensions_mut().insert(caller);
    Ok(())
}

/// Answers a path that no route has.
///
/// # Cancel safety
///
/// Cancel safe: it does nothing.
pub(crate) async fn not_found(request: Request) -> Problem {
    let problem = Problem::new(StatusCode::NOT_FOUND, "not_found", format!("there is no {}", request.uri().path()));
    if request.uri().path().starts_with("/v1/locks/") {
        return problem.hint("write / in a name as %2F, or send the name in the body: POST /v1/acquire {\"name\":…}");
    }
    problem.hint("see /openapi.json")
}

/// Answers a method that the route does not have.
///
/// # Cancel safety
///
/// Cancel safe: it does nothing.
pub(crate) async fn not_allowed(request: Request) -> Problem {
    let message = format!("{} does not take {}", request.uri().path(), request.method());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "not_allowed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_was_turned_to_us_is_not_ours() {
        let hosts = vec!["locks.example".to_owned()];
        let gate = Gate { tokens: None, hosts, reloads: watch::channel(0).0 };
        for host in
            ["localhost", "LOCALHOST:7420", "127.0.0.1:7420", "127.8.8.8", "[::1]:7420", "[::1]", "locks.example:7420"]
        {
            assert!(gate.is_meant(host), "{host}");
        }
        for host in ["", "evil.example:7420", "localhost.evil.example", "127.0.0.1.nip.io:7420", "10.0.0.1", "[::2]"] {
            assert!(!gate.is_meant(host), "{host}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_refused() {
        let headers = |pairs: &[(&str, &str)]| {
            let pairs =
                pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap()));
            pairs.collect::<HeaderMap>()
        };
        let ours = |pairs: &[(&str, &str)]| same_origin(&headers(pairs), "locks.example:7420").is_ok();
        assert!(ours(&[]));
        assert!(ours(&[("origin", "http://locks.example:7420"), ("sec-fetch-site", "same-origin")]));
        assert!(ours(&[("sec-fetch-site", "none")]));
        for foreign in
            ["null", "http://evil.example", "http://locks.example", "http://evil.example:7420", "locks.example:7420"]
        {
            assert!(!ours(&[("origin", foreign)]), "{foreign}");
        }
        for site in ["cross-site", "same-site", "x"] {
            assert!(!ours(&[("sec-fetch-site", site)]), "{site}");
        }
    }
}
