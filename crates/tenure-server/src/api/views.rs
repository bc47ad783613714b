//! Looking at names, and breaking them.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, Request, State};
use serde::{Deserialize, Serialize};
use tenure::backend::Shape;
use tenure::{Name, NameView, Owner, Token};
use utoipa::{IntoParams, ToSchema};

use super::described::Asked;
use super::fields;
use crate::auth::{Caller, Right};
use crate::connection::Peer;
use crate::limits::{LABEL_BYTES_MAX, PAGE_MAX};
use crate::problem::{Answer, Problem, ms};
use crate::service::Service;

/// How many names a page has unless asked otherwise.
const PAGE_DEFAULT: usize = 256;

/// How many claims of names a page has, unless its first name alone has more.
const PAGE_CLAIMS_MAX: usize = 10_000;

/// A name, who holds it and who waits for it: as `tenure show --json` prints it, and a little more.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LockView {
    name: String,
    /// How many may hold it at once: 1, the number of permits, or null when it is shared or free.
    capacity: Option<u32>,
    holders: Vec<HolderView>,
    /// In order.
    waiters: Vec<WaiterView>,
    /// Claims that were broken a moment ago.
    breaks: Vec<BreakView>,
}

/// An owner that holds a name.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HolderView {
    owner: Option<String>,
    label: Option<String>,
    token: Option<u64>,
    /// `exclusive`, `shared` or `permits`.
    shape: Option<&'static str>,
    units: Option<u32>,
    held_ms: Option<u64>,
    expires_in_ms: Option<u64>,
    /// How long ago it last renewed.
    renewed_ms: Option<u64>,
    claims: Vec<ClaimView>,
    /// The owners that it works for.
    within: Vec<String>,
}

/// A claim that waits.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaiterView {
    owner: Option<String>,
    label: Option<String>,
    shape: Option<&'static str>,
    units: Option<u32>,
    waited_ms: Option<u64>,
    claim: ClaimView,
    within: Vec<String>,
}

/// A claim as the store calls it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimView {
    id: String,
    number: u64,
    /// Of how many permits, if it takes permits.
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u32>,
}

/// A claim that somebody broke.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BreakView {
    claim: String,
    by: String,
    reason: String,
}

impl From<NameView> for LockView {
    fn from(view: NameView) -> Self {
        let owners = |owners: &[Owner]| owners.iter().map(ToString::to_string).collect();
        let of = |shape: Option<Shape>| match shape {
            Some(Shape::Permits { of, .. }) => Some(of),
            _ => None,
        };
        let holders = view.holders.iter().map(|holder| HolderView {
            owner: holder.owner.as_ref().map(ToString::to_string),
            label: holder.label.clone(),
            token: holder.token.map(|token| token.0),
            shape: holder.shape.map(Shape::as_str),
            units: holder.units,
            held_ms: holder.held.map(ms),
            expires_in_ms: holder.expires_in.map(ms),
            renewed_ms: holder.renewed.map(ms),
            claims: holder
                .claims
                .iter()
                .map(|(id, number)| ClaimView { id: id.to_string(), number: *number, of: of(holder.shape) })
                .collect(),
            within: owners(&holder.within),
        });
        let waiters = view.waiters.iter().map(|waiter| WaiterView {
            owner: waiter.owner.as_ref().map(ToString::to_string),
            label: waiter.label.clone(),
            shape: waiter.shape.map(Shape::as_str),
            units: waiter.units,
            waited_ms: waiter.waited.map(ms),
            claim: ClaimView { id: waiter.claim.0.to_string(), number: waiter.claim.1, of: of(waiter.shape) },
            within: owners(&waiter.within),
        });
        let breaks = view.breaks.iter().map(|mark| BreakView {
            claim: mark.claim.to_string(),
            by: mark.by.clone(),
            reason: mark.reason.clone(),
        });
        Self {
            name: view.name.to_string(),
            capacity: view.capacity,
            holders: holders.collect(),
            waiters: waiters.collect(),
            breaks: breaks.collect(),
        }
    }
}

/// Which names to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct List {
    /// What they begin with.
    #[serde(default)]
    prefix: String,
    /// The last name of the page before.
    #[serde(default)]
    after: Option<String>,
    /// How many: 1 to 1,000.
    #[serde(default)]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// One name.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct One {
    /// The name.
    name: String,
}

/// Whose claims to end.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Break {
    /// The holder's token, as a look shows it: holders granted above it stay.
    token: u64,
    /// Only this owner's, as a look shows it.
    #[serde(default)]
    owner: Option<String>,
    /// Why; the holder is told.
    #[serde(default)]
    reason: String,
    /// Who does it, for the holder to read; the token's name stands before it.
    #[serde(default)]
    by: String,
}

/// The same, with the name.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct BreakNamed {
    /// The name.
    name: String,
    /// The holder's token, as a look shows it: holders granted above it stay.
    token: u64,
    /// Only this owner's, as a look shows it.
    #[serde(default)]
    owner: Option<String>,
    /// Why; the holder is told.
    #[serde(default)]
    reason: String,
    /// Who does it, for the holder to read; the token's name stands before it.
    #[serde(default)]
    by: String,
}

/// How many claims were ended.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Broken {
    broken: usize,
}

#[utoipa::path(get, path = "/v1/locks", tag = "views", params(List),
    responses((status = 200, body = Vec<LockView>), Asked))]
/// Names in use, in byte order. A page may be shorter than `limit`, and an empty one is the end.
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Vec<LockView>>> {
    let List { prefix, after, limit } = fields::query(&request)?;
    caller.needs_any(Right::Read)?;
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(Problem::field("limit", format!("limit is {limit}: 1 to {PAGE_MAX}")));
    }
    let after = after.filter(|after| !after.is_empty());
    let after = after.map(|after| fields::name(&after)).transpose();
    let after = after.map_err(|problem| problem.field_is("after"))?;
    let mut page: Vec<LockView> = Vec::new();
    for prefix in caller.within(&prefix) {
        let left = limit - page.len();
        if left == 0 {
            break;
        }
        let names = service.tenure.list_page(&prefix, after.clone(), left).await?;
        page.extend(names.into_iter().map(LockView::from));
    }
    shorten(&mut page);
    Ok(Json(page))
}

/// Leaves out what would make a page too large; the next page begins with it.
fn shorten(page: &mut Vec<LockView>) {
    let mut claims = 0;
    let fits = page.iter().take_while(|name| {
        let before = claims;
        claims += name.holders.len() + name.waiters.len();
        before == 0 || claims <= PAGE_CLAIMS_MAX
    });
    let fits = fits.count();
    page.truncate(fits);
}

#[utoipa::path(get, path = "/v1/locks/{name}", tag = "views",
    params(("name" = String, Path, description = "the name, percent-encoded")),
    responses((status = 200, body = LockView), Asked))]
/// One name. A free one has neither holders nor waiters.
pub(crate) async fn show_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<LockView>> {
    show(&service, &caller, fields::name_in_path(&request)?).await
}

#[utoipa::path(get, path = "/v1/lock", tag = "views", params(One),
    responses((status = 200, body = LockView), Asked))]
/// The same with the name in the query.
pub(crate) async fn show_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<LockView>> {
    let One { name } = fields::query(&request)?;
    show(&service, &caller, fields::name(&name)?).await
}

async fn show(service: &Service, caller: &Caller, name: Name) -> Answer<Json<LockView>> {
    caller.needs(Right::Read, &name)?;
    Ok(Json(service.tenure.inspect(&name).await?.into()))
}

#[utoipa::path(delete, path = "/v1/locks/{name}", tag = "views",
    params(("name" = String, Path, description = "the name, percent-encoded"), Break),
    responses((status = 200, body = Broken), Asked))]
/// Ends holders' claims. Sent twice it does not reach whoever holds next: that one's token is higher.
pub(crate) async fn break_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Broken>> {
    let name = fields::name_in_path(&request)?;
    let ask: Break = fields::query(&request)?;
    break_one(&service, &caller, name, ask).await
}

#[utoipa::path(delete, path = "/v1/lock", tag = "views", params(BreakNamed),
    responses((status = 200, body = Broken), Asked))]
/// The same with the name in the query.
pub(crate) async fn break_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<Broken>> {
    let BreakNamed { name, token, owner, reason, by } = fields::query(&request)?;
    break_one(&service, &caller, fields::name(&name)?, Break { token, owner, reason, by }).await
}

async fn break_one(service: &Service, caller: &Caller, name: Name, ask: Break) -> Answer<Json<Broken>> {
    caller.needs(Right::Break, &name)?;
    let Break { token, owner, reason, by } = ask;
    let owner = owner.map(|owner| Owner::new(owner).map_err(|error| Problem::field("owner", error.to_string())));
    for (field, text) in [("reason", &reason), ("by", &by)] {
        if text.len() > LABEL_BYTES_MAX || text.chars().any(char::is_control) {
            let message = format!("{field} is at most {LABEL_BYTES_MAX} bytes without control characters");
            return Err(Problem::field(field, message));
        }
    }
    // Nobody can pass for somebody else.
    let by = match (&*caller.name, by.is_empty()) {
        (_, true) => caller.shown().to_owned(),
        ("", false) => by,
        (name, false) => format!("{name}: {by}"),
    };
    let broken = service.claims.break_up_to(&name, owner.transpose()?, Token(token), &by, &reason).await?;
    if broken > 0 {
        // Quoted: a name is whatever callers say.
        tracing::info!(?name, by, reason, broken, "broken");
    }
    Ok(Json(Broken { broken }))
}

#[utoipa::path(get, path = "/v1/locks/{name}/explain", tag = "views",
    params(("name" = String, Path, description = "the name, percent-encoded")),
    responses((status = 200, body = serde_json::Value), Asked))]
/// A look with a diagnosis: whether holders renew, how far each waiter is away. Takes up to a ttl.
pub(crate) async fn explain_in_path(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<Json<tenure::explain::Report>> {
    explain(&service, &caller, &peer, fields::name_in_path(&request)?).await
}

#[utoipa::path(get, path = "/v1/explain", tag = "views", params(One),
    responses((status = 200, body = serde_json::Value), Asked))]
/// The same with the name in the query.
pub(crate) async fn explain_named(
    State(service): State<Arc<Service>>,
    Extension(caller): Extension<Caller>,
    Extension(peer): Extension<Peer>,
    request: Request,
) -> Answer<Json<tenure::explain::Report>> {
    let One { name } = fields::query(&request)?;
    explain(&service, &caller, &peer, fields::name(&name)?).await
}

async fn explain(service: &Service, caller: &Caller, peer: &Peer, name: Name) -> Answer<Json<tenure::explain::Report>> {
    caller.needs(Right::Read, &name)?;
    // It takes seconds, and counts as a wait.
    let _permits = (service.waiters.enter(&caller.name, &name)?, peer.begin_to_wait()?);
    let mut report = service.tenure.explain(&name).await?;
    // Names that the caller may not read are nobody's business.
    report.deadlocks.retain(|deadlock| deadlock.waits.iter().all(|wait| caller.may(Right::Read, wait.name.as_str())));
    Ok(Json(report))
}
