//! What the service says of itself and of its store, and the dashboard.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tenure::observe::Asked;
use utoipa::ToSchema;

use super::described::{self, Missing};
use crate::assets;
use crate::auth::{Caller, Right};
use crate::problem::{Answer, Problem, ms};
use crate::service::Service;

/// How long the store may take to tell the time.
const TIME_MAX: Duration = Duration::from_secs(2);

/// The store behind this instance.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Store {
    /// Its URL, without a password; null for those who may not read all names.
    url: Option<String>,
    /// Its kind.
    store: &'static str,
    capabilities: Capabilities,
    guarantees: Guarantees,
    ttl_min_ms: u64,
    ttl_max_ms: u64,
    /// What of a lease is never there to be used.
    lease_lag_ms: u64,
    /// The store's time, as RFC 3339 has it; null where it is not known.
    time: Option<String>,
    /// The same in microseconds since 1970.
    time_us: Option<u64>,
    /// The name of the caller's token.
    caller: String,
    /// What the caller may do.
    rights: Vec<Right>,
    /// With which names; all of them if there is none.
    prefixes: Vec<String>,
}

/// What the store can do.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Capabilities {
    queue: bool,
    pushes: bool,
    tokens: bool,
    shared: bool,
    permits: bool,
    sessions: bool,
    records: bool,
    notes: bool,
    memos: bool,
    time: bool,
}

/// What its locks survive: `kept`, `claims end`, `only the token protects`, `not protected`, `cannot happen`.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Guarantees {
    time: &'static str,
    client_crash: String,
    client_pause: String,
    store_crash: String,
    failover: String,
    partition: String,
    clock_step: String,
    tokens: &'static str,
    /// What becomes of memos; null where none are kept.
    memos: Option<Memos>,
}

/// What memos survive.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Memos {
    /// The store crashes and comes back.
    crash: bool,
    /// It fails over to a replica.
    failover: bool,
    /// It runs out of memory.
    eviction: bool,
}

/// A claim that ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Recent {
    name: String,
    label: String,
    waited_ms: u64,
    /// Whom it was waited for.
    behind: Option<String>,
    held_ms: Option<u64>,
    token: Option<u64>,
    /// How it ended.
    ended: String,
    ago_ms: u64,
}

#[utoipa::path(get, path = "/v1/store", tag = "service",
    responses((status = 200, body = Store), described::Asked))]
/// The store, what it can do, and who the caller is.
pub(crate) async fn store(State(service): State<Arc<Service>>, Extension(caller): Extension<Caller>) -> Json<Store> {
    let backend = &service.claims.backend;
    let (can, survives) = (backend.capabilities(), backend.guarantees());
    let (min, max) = can.ttl_limits();
    let memos = survives.memos;
    // What else there is to say does not wait for it.
    let time = if can.time { service.claims.ask(Asked::Inspect, backend.time(), TIME_MAX).await.ok() } else { None };
    Json(Store {
        url: caller.needs_all().is_ok().then(|| backend.url().to_owned()),
        store: survives.store,
        capabilities: Capabilities {
            queue: can.queue,
            pushes: can.pushes,
            tokens: can.tokens,
            shared: can.shared,
            permits: can.permits,
            sessions: can.sessions,
            records: can.records,
            notes: can.notes,
            memos: can.memos,
            time: can.time,
        },
        guarantees: Guarantees {
            time: survives.time,
            client_crash: survives.client_crash.to_string(),
            client_pause: survives.client_pause.to_string(),
            store_crash: survives.store_crash.to_string(),
            failover: survives.failover.to_string(),
            partition: survives.partition.to_string(),
            clock_step: survives.clock_step.to_string(),
            tokens: survives.tokens,
            memos: memos.map(|memos| Memos { crash: memos.crash, failover: memos.failover, eviction: memos.eviction }),
        },
        ttl_min_ms: ms(min),
        ttl_max_ms: ms(max),
        lease_lag_ms: ms(can.lease_lag),
        time: time.map(|time| humantime::format_rfc3339_micros(time).to_string()),
        time_us: time.and_then(micros),
        caller: caller.name.to_string(),
        rights: caller.rights.to_vec(),
        prefixes: caller.prefixes.to_vec(),
    })
}

/// Microseconds since 1970.
fn micros(time: SystemTime) -> Option<u64> {
    u64::try_from(time.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_micros()).ok()
}

#[utoipa::path(get, path = "/v1/recent", tag = "views",
    responses((status = 200, body = Vec<Recent>), described::Asked))]
/// The claims that ended last at this instance, the latest first: what was waited for, behind whom, how it ended.
pub(crate) async fn recent(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
) -> Answer<Json<Vec<Recent>>> {
    caller.needs_any(Right::Read)?;
    let recent = service.recent().into_iter().filter(|one| caller.may(Right::Read, one.name.as_str()));
    let told = recent.map(|one| Recent {
        name: one.name.to_string(),
        label: one.label.to_string(),
        waited_ms: ms(one.waited),
        behind: one.behind.as_ref().map(ToString::to_string),
        held_ms: one.held.map(ms),
        token: one.token.map(|token| token.0),
        ended: one.ended.to_string(),
        ago_ms: ms(one.ago),
    });
    Ok(Json(told.collect()))
}

#[utoipa::path(get, path = "/metrics", tag = "service",
    responses((status = 200, description = "Prometheus' text format", body = String), described::Asked))]
/// Metrics of this instance.
pub(crate) async fn metrics(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
) -> Answer<Response> {
    caller.needs_all()?;
    service.claims.served.tell();
    let text = service.metrics.as_ref().map(|metrics| metrics.render()).unwrap_or_default();
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response())
}

#[utoipa::path(get, path = "/healthz", tag = "service", responses((status = 200, content_type = "text/plain", body = String), described::Asked))]
/// Whether this process lives: what balancers probe.
pub(crate) async fn healthz() -> &'static str {
    "ok\n"
}

#[utoipa::path(get, path = "/readyz", tag = "service",
    responses((status = 200, content_type = "text/plain", body = String), described::Asked))]
/// Whether the store has answered within the last ten seconds.
pub(crate) async fn readyz(State(service): State<Arc<Service>>) -> Answer<&'static str> {
    if service.health.is_ready() {
        return Ok("ok\n");
    }
    let silence = service.health.silence().as_secs();
    Err(Problem::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "unavailable",
        format!("the store has not answered for {silence} s"),
    ))
}

#[utoipa::path(get, path = "/", tag = "service",
    responses((status = 200, content_type = "text/html; charset=utf-8", body = String), described::Asked))]
/// The dashboard.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(crate) async fn dashboard() -> Response {
    asset("index.html")
}

#[utoipa::path(get, path = "/assets/{file}", tag = "service",
    params(("file" = String, Path, description = "one of those that the dashboard names")),
    responses((status = 200, description = "a style sheet, a script or a picture", content_type = "*/*", body = String), described::Asked, Missing))]
/// Its files.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(crate) async fn file(request: Request) -> Response {
    // As it came: no file of ours has a name that would have to be encoded.
    asset(request.uri().path().strip_prefix("/assets/").unwrap_or_default())
}

fn asset(name: &str) -> Response {
    let Some((kind, bytes)) = assets::find(name) else {
        return Problem::new(StatusCode::NOT_FOUND, "not_found", "there is no such file").into_response();
    };
    let mut response = bytes.into_response();
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[utoipa::path(get, path = "/openapi.json", tag = "service",
    responses((status = 200, body = serde_json::Value), described::Asked))]
/// This document.
///
/// # Cancel safety
///
/// Cancel safe: it changes nothing.
pub(crate) async fn document() -> Response {
    static TEXT: LazyLock<String> = LazyLock::new(super::openapi);
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}
