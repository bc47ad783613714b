//! Memos: what the exclusive holder keeps with a name.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tenure::backend::MemoWrite;
use tenure::{MEMO_BYTES_MAX, MemoKind, Name, Token};
use utoipa::{IntoParams, ToSchema};

use super::described::{Asked, Changed, Clashes, Ended, NoMemo, Sent};
use super::fields;
use super::identity::{Identity, one_name};
use crate::auth::{Caller, Right};
use crate::claims::write_id;
use crate::limits::MEMO_BODY_BYTES_MAX;
use crate::problem::{Answer, Problem, ms};
use crate::service::Service;

/// The longest that a memo may be kept and yet end: a hundred years.
const KEEP_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A memo to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteMemo {
    #[serde(default)]
    #[schema(min_length = 1, max_length = 512)]
    name: Option<String>,
    #[schema(pattern = "^[!-~]{1,128}$")]
    owner: String,
    #[serde(default)]
    #[schema(pattern = "^[!-~]{1,128}$")]
    claim: Option<String>,
    /// The token of the grant.
    token: u64,
    /// The version to replace; 0 if there is to be none.
    after: u64,
    /// A number for this write, the same when it is repeated: that is one write then, however often it arrives.
    write: u64,
    /// Who keeps it: `user` (the default), `once`, `election` or `cached`. One of another kind is not replaced.
    #[serde(default)]
    #[schema(pattern = "^(user|once|election|cached)$")]
    kind: Option<String>,
    /// How long it is kept, by the store's clock; for ever without.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 3_153_600_000_000_u64)]
    keep_ms: Option<u64>,
    /// Only if the store gave the claim this number.
    #[serde(default)]
    number: Option<u64>,
    /// Up to 64 KiB, in base64 with its padding.
    #[schema(max_length = 87384)]
    value: String,
}

/// It is written.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Written {
    name: String,
    version: u64,
}

/// Whose memo.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct One {
    /// The name.
    name: String,
}

#[utoipa::path(put, path = "/v1/locks/{name}/memo", tag = "memos", request_body = WriteMemo,
    params(("name" = String, Path, description = "the name, percent-encoded")),
    responses((status = 200, body = Written), Sent, Ended, Clashes, Changed))]
/// Writes the memo of a name. The store checks in the same step that the claim holds it exclusively.
pub(crate) async fn write_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Written>> {
    let name = fields::name_in_path(&request)?;
    let ask = fields::body(request, MEMO_BODY_BYTES_MAX).await?;
    let caller = service.gate.still(&caller)?;
    write(&service, &caller, Some(name), ask).await
}

#[utoipa::path(put, path = "/v1/memo", tag = "memos", request_body = WriteMemo,
    responses((status = 200, body = Written), Sent, Ended, Clashes, Changed))]
/// The same with the name in the body.
pub(crate) async fn write_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Written>> {
    let ask = fields::body(request, MEMO_BODY_BYTES_MAX).await?;
    let caller = service.gate.still(&caller)?;
    write(&service, &caller, None, ask).await
}

async fn write(service: &Service, caller: &Caller, name: Option<Name>, ask: WriteMemo) -> Answer<Json<Written>> {
    let name = one_name(name, ask.name)?;
    caller.needs(Right::Acquire, &name)?;
    must_keep_memos(service)?;
    let identity = Identity::of(caller, &name, ask.owner, ask.claim)?;
    let kind = match ask.kind.as_deref() {
        None => MemoKind::User,
        Some(word) => MemoKind::from_word(word).ok_or_else(|| {
            let words = MemoKind::ALL.map(MemoKind::as_str).join(", ");
            Problem::field("kind", format!("kind is {word:?}: one of {words}"))
        })?,
    };
    let keep =
        ask.keep_ms.map(|keep| fields::within("keep_ms", keep, Duration::from_millis(1), KEEP_MAX)).transpose()?;
    let mut write = MemoWrite {
        id: identity.id,
        owner: identity.shown.clone(),
        number: ask.number,
        token: Token(ask.token),
        after: ask.after,
        write: ask.write,
        kind,
        keep,
        bytes: bytes(&ask.value)?.into(),
    };
    write.write = write_id(&name, &write);
    match service.claims.write_memo(&name, write).await {
        Ok(version) => Ok(Json(Written { name: name.to_string(), version })),
        Err(problem) if problem.is_transient() => Err(identity.tell(problem)),
        Err(problem) => Err(problem),
    }
}

fn must_keep_memos(service: &Service) -> Answer<()> {
    if service.claims.backend.capabilities().memos {
        return Ok(());
    }
    Err(Problem::new(StatusCode::BAD_REQUEST, "invalid", "the store behind this service keeps no memos")
        .hint("GET /v1/store says what it can do"))
}

fn bytes(value: &str) -> Answer<Vec<u8>> {
    let bytes = STANDARD
        .decode(value)
        .map_err(|error| Problem::field("value", format!("value is not base64, with its padding: {error}")))?;
    if bytes.len() > MEMO_BYTES_MAX {
        let message = format!("a memo has at most {MEMO_BYTES_MAX} bytes, this one {}", bytes.len());
        return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).field_is("value"));
    }
    Ok(bytes)
}

#[utoipa::path(get, path = "/v1/locks/{name}/memo", tag = "memos",
    params(("name" = String, Path, description = "the name, percent-encoded")),
    responses((status = 200, description = "what was written", content_type = "application/octet-stream", body = Vec<u8>,
        headers(
            ("tenure-memo-token" = u64, description = "the token of the holder that wrote it"),
            ("tenure-memo-version" = u64, description = "which write it is: what the next one replaces"),
            ("tenure-memo-age-ms" = u64, description = "how long ago it was written, by the store's clock"),
            ("tenure-memo-kind" = String, description = "who keeps it: `user`, `once`, `election` or `cached`"),
        )), Asked, NoMemo))]
/// The memo of a name, byte by byte; what is known of it is in the headers.
pub(crate) async fn read_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    read(&service, &caller, fields::name_in_path(&request)?).await
}

#[utoipa::path(get, path = "/v1/memo", tag = "memos", params(One),
    responses((status = 200, description = "what was written", content_type = "application/octet-stream", body = Vec<u8>,
        headers(
            ("tenure-memo-token" = u64, description = "the token of the holder that wrote it"),
            ("tenure-memo-version" = u64, description = "which write it is: what the next one replaces"),
            ("tenure-memo-age-ms" = u64, description = "how long ago it was written, by the store's clock"),
            ("tenure-memo-kind" = String, description = "who keeps it: `user`, `once`, `election` or `cached`"),
        )), Asked, NoMemo))]
/// The same with the name in the query.
pub(crate) async fn read_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Response> {
    let One { name } = fields::query(&request)?;
    read(&service, &caller, fields::name(&name)?).await
}

async fn read(service: &Service, caller: &Caller, name: Name) -> Answer<Response> {
    caller.needs(Right::Read, &name)?;
    must_keep_memos(service)?;
    let Some(memo) = service.tenure.memo(&name).await? else {
        return Err(Problem::new(StatusCode::NOT_FOUND, "no_memo", "nothing is kept with this name"));
    };
    let mut response = memo.bytes.to_vec().into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert("tenure-memo-token", memo.token.0.into());
    headers.insert("tenure-memo-version", memo.version.into());
    headers.insert("tenure-memo-age-ms", ms(memo.age).into());
    headers.insert("tenure-memo-kind", HeaderValue::from_static(memo.kind.as_str()));
    Ok(response)
}
