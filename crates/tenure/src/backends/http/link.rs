//! Requests to the instances of a service, one of which is enough.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{HeaderMap, Method, Request};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::Serialize;

use super::answer::problem;
use super::url::Settings;
use crate::backends::kit::tls::{Distrust, GREETING_MAX, first_bytes, misfit, speaks_tls};
use crate::error::{Certainty, Error, ErrorKind, Result};

/// How long making a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long any request may take: the longest wait and then some.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// How long a request may take at one of several instances, as long as there is another to ask.
const TRY_MAX: Duration = Duration::from_secs(2);
/// How long a poll may take: its wait and then some.
const POLL_MAX: Duration = Duration::from_secs(30);
/// The largest answer: a page of a thousand names with long queues.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// How long an idle connection is kept: shorter than the service does, so that it is not closed just when it is used.
const IDLE_MAX: Duration = Duration::from_secs(30);

#[cfg(feature = "tls")]
type Connector = hyper_rustls::HttpsConnector<HttpConnector>;
#[cfg(not(feature = "tls"))]
type Connector = HttpConnector;

/// An answer: its status, its headers and its body.
pub(super) type Told = (u16, HeaderMap, Bytes);

/// The way to a service.
pub(super) struct Link {
    settings: Settings,
    client: Client<Connector, Full<Bytes>>,
    /// The instance that answered last.
    current: AtomicUsize,
    authorization: Option<HeaderValue>,
}

impl Link {
    pub(super) fn new(settings: Settings) -> Result<Self> {
        let invalid = |problem: String| Error::new(ErrorKind::Invalid, format!("{:?} {problem}", settings.shown));
        let connector = connector(&settings).map_err(invalid)?;
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_MAX)
            .build(connector);
        let authorization = match &settings.bearer {
            Some(bearer) => {
                let value = HeaderValue::from_str(&format!("Bearer {bearer}"));
                let mut value = value.map_err(|_| invalid("has a token that cannot be sent".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
            None => None,
        };
        Ok(Self { settings, client, current: AtomicUsize::new(0), authorization })
    }

    /// Why the service was not reached at all, if waiting will not mend it.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is asked of the service.
    pub(super) async fn misfit(&self, error: &Error) -> Option<Error> {
        let told = error.to_string();
        for host in &self.settings.hosts {
            let server = format!("the service at {host}");
            if let Some(distrust) = Distrust::of(&told) {
                return Some(distrust.explained(&server, ["ca", "cert", "key"]).because(told));
            }
            let (name, port) = host.rsplit_once(':')?;
            let at = (name.trim_start_matches('[').trim_end_matches(']'), port.parse().ok()?);
            if self.settings.tls {
                let greeting = format!("GET /healthz HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
                let plain = first_bytes(at, greeting.as_bytes(), GREETING_MAX).await == Some(*b"HTTP");
                if plain {
                    return Some(misfit(&server, "speaks without TLS there: write http://"));
                }
            } else if speaks_tls(at, GREETING_MAX).await {
                return Some(misfit(
                    &server,
                    "speaks TLS there: write https://, and ca=FILE if its CA is not the system's",
                ));
            }
        }
        None
    }

    pub(super) fn shown(&self) -> &str {
        &self.settings.shown
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.settings.tls
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.settings.hosts
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn get(&self, path: &str) -> Result<(u16, Bytes)> {
        self.ask(&Method::GET, path, Bytes::new()).await.map(without_headers)
    }

    /// # Cancel safety
    ///
    /// Cancel safe: it changes nothing.
    pub(super) async fn get_with_headers(&self, path: &str) -> Result<Told> {
        self.ask(&Method::GET, path, Bytes::new()).await
    }

    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn delete(&self, path: &str) -> Result<(u16, Bytes)> {
        self.ask(&Method::DELETE, path, Bytes::new()).await.map(without_headers)
    }

    /// A request that waits: that it is given up says nothing of the instance.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn poll(&self, path: &str, body: &impl Serialize) -> Result<(u16, Bytes)> {
        let body = json(body)?;
        let place = self.current.load(Ordering::Relaxed) % self.settings.hosts.len();
        let asked = self.ask_one(&self.settings.hosts[place], &Method::POST, path, body);
        let answer = tokio::time::timeout(POLL_MAX, asked).await.unwrap_or_else(|_| Err(silent(POLL_MAX)));
        if !matches!(&answer, Ok((status, ..)) if !cannot_serve(*status)) {
            self.leave(place);
        }
        answer.map(without_headers)
    }

    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn post(&self, path: &str, body: &impl Serialize) -> Result<(u16, Bytes)> {
        self.ask(&Method::POST, path, json(body)?).await.map(without_headers)
    }

    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn put(&self, path: &str, body: &impl Serialize) -> Result<(u16, Bytes)> {
        self.ask(&Method::PUT, path, json(body)?).await.map(without_headers)
    }

    /// The next request goes to another instance, if there is one.
    pub(super) fn go_elsewhere(&self) {
        let hosts = self.settings.hosts.len();
        let next = |current: usize| Some((current + 1) % hosts);
        let _ = self.current.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Asks the instance that answered last, and each other one if that one does not answer or cannot serve. All that
    /// is asked so may be asked again: the service knows it by its owner and claim. One that has not answered when
    /// the caller gives up is not asked next.
    async fn ask(&self, method: &Method, path: &str, body: Bytes) -> Result<Told> {
        let (hosts, first) = (&self.settings.hosts, self.current.load(Ordering::Relaxed));
        let (mut unclear, mut last) = (None, Err(silent(ANSWER_MAX)));
        for turn in 0..hosts.len() {
            let place = (first + turn) % hosts.len();
            // One that hangs must not cost a lease; but where all are slow one of them is waited for.
            let patience = if turn + 1 < hosts.len() { TRY_MAX } else { ANSWER_MAX };
            let mut unanswered = Unanswered { link: self, place, armed: hosts.len() > 1 };
            let asked = self.ask_one(&hosts[place], method, path, body.clone());
            let answer = tokio::time::timeout(patience, asked).await.unwrap_or_else(|_| Err(silent(patience)));
            unanswered.armed = false;
            if matches!(&answer, Ok((status, ..)) if !cannot_serve(*status)) {
                self.current.store(place, Ordering::Relaxed);
                return answer;
            }
            self.leave(place);
            // Whatever the others say: what one of them may have done is not known.
            if unclear.is_none() && certainty(&answer) == Certainty::Unknown {
                unclear = Some(answer);
            } else {
                last = answer;
            }
        }
        unclear.unwrap_or(last).map_err(|error| error.in_store(self.shown()))
    }

    /// The next request goes to the instance after this one.
    fn leave(&self, place: usize) {
        let next = (place + 1) % self.settings.hosts.len();
        let _ = self.current.compare_exchange(place, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    async fn ask_one(&self, host: &str, method: &Method, path: &str, body: Bytes) -> Result<Told> {
        let scheme = if self.settings.tls { "https" } else { "http" };
        let mut request = Request::builder().method(method.clone()).uri(format!("{scheme}://{host}{path}"));
        request = request.header(ACCEPT, "application/json");
        if matches!(*method, Method::POST | Method::PUT) {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| Error::new(ErrorKind::Invalid, format!("this cannot be sent: {error}")))?;
        let response = self.client.request(request).await.map_err(|error| {
            let certainty = if error.is_connect() { Certainty::NotApplied } else { Certainty::Unknown };
            let message = format!("the service at {host} was not reached");
            Error::new(ErrorKind::Unavailable, message).with_certainty(certainty).because(error)
        })?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| {
            let message = format!("the answer of the service at {host} broke off");
            Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::Unknown).because(error)
        })?;
        Ok((status, headers, body.to_bytes()))
    }
}

/// Leaves an instance alone that has not answered a request when it was dropped.
struct Unanswered<'a> {
    link: &'a Link,
    place: usize,
    armed: bool,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if self.armed {
            self.link.leave(self.place);
        }
    }
}

fn without_headers((status, _, body): Told) -> (u16, Bytes) {
    (status, body)
}

fn json(body: &impl Serialize) -> Result<Bytes> {
    let body = serde_json::to_vec(body);
    body.map(Bytes::from).map_err(|error| Error::new(ErrorKind::Invalid, format!("this cannot be sent: {error}")))
}

/// Whether an answer says that this instance, or the way to it, cannot serve now: another may.
fn cannot_serve(status: u16) -> bool {
    matches!(status, 502..=504)
}

/// Whether what was asked may have been done.
fn certainty(answer: &Result<Told>) -> Certainty {
    match answer {
        Ok((status, _, body)) => problem(*status, body).certainty(),
        Err(error) => error.certainty(),
    }
}

fn silent(patience: Duration) -> Error {
    let message = format!("the service has not answered for {} s", patience.as_secs());
    Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::Unknown)
}

fn plain() -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_MAX));
    connector
}

#[cfg(not(feature = "tls"))]
fn connector(settings: &Settings) -> std::result::Result<Connector, String> {
    if settings.tls { Err(crate::backends::kit::no_tls::MISSING.to_owned()) } else { Ok(plain()) }
}

#[cfg(feature = "tls")]
fn connector(settings: &Settings) -> std::result::Result<Connector, String> {
    use std::sync::Arc;

    use crate::backends::kit::pem::provider;

    let pem = settings.files.read(["cert", "key"])?;
    let unusable = |error: rustls::Error| format!("cannot use TLS: {error}");
    let roots = match pem.roots() {
        Some(roots) => roots,
        None if settings.tls => system_roots()?,
        None => rustls::RootCertStore::empty(),
    };
    let config = rustls::ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots);
    let config = match pem.identity.as_ref().and_then(crate::backends::kit::pem::Identity::parsed) {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).map_err(unusable)?,
        None => config.with_no_client_auth(),
    };
    let mut connector = plain();
    connector.enforce_http(false);
    Ok(hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(connector))
}

#[cfg(feature = "tls")]
fn system_roots() -> std::result::Result<rustls::RootCertStore, String> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        Err("needs ca=FILE: this system has no authorities of its own".to_owned())
    } else {
        Ok(roots)
    }
}
