//! The routes.

mod acquire;
mod asked;
mod described;
mod events;
mod fields;
mod identity;
mod memo;
mod pages;
mod release;
mod renew;
mod views;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post, put};
use utoipa::OpenApi;

use self::described::Bearer;
use crate::gate;
use crate::problem::ProblemBody;
use crate::service::Service;

/// The document that describes them, from the code.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "tenure",
        description = "Locks for programs on many machines: leases that say when they are lost, with fencing tokens. \
            A client may trust a lease until its own clock before the request was sent plus the answer's \
            expires_in_ms, never plus the ttl.",
        license(name = "MIT", identifier = "MIT")
    ),
    paths(
        acquire::acquire_named, acquire::acquire_in_path, renew::renew_named, renew::renew_in_path, release::release_named,
        release::release_in_path, views::list, views::show_named, views::show_in_path, views::explain_named,
        views::explain_in_path, views::break_named, views::break_in_path, memo::read_named, memo::read_in_path,
        memo::write_named, memo::write_in_path, events::events, pages::recent, pages::store,
        pages::metrics, pages::healthz, pages::readyz, pages::document, pages::dashboard, pages::file
    ),
    components(schemas(ProblemBody)),
    modifiers(&Bearer),
    security((), ("bearer" = [])),
    tags(
        (name = "claims", description = "Acquire, renew, release"),
        (name = "memos", description = "What the exclusive holder keeps with a name, and anyone reads"),
        (name = "views", description = "Who holds, who waits, what happens; break"),
        (name = "service", description = "The store behind it, health, metrics")
    )
)]
struct Document;

/// The OpenAPI document, as it is served and checked in.
pub fn openapi() -> String {
    described::text(&Document::openapi())
}

/// All routes.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/v1/acquire", post(acquire::acquire_named))
        .route("/v1/renew", post(renew::renew_named))
        .route("/v1/release", post(release::release_named))
        .route("/v1/locks", get(views::list))
        .route("/v1/lock", get(views::show_named).delete(views::break_named))
        .route("/v1/explain", get(views::explain_named))
        .route("/v1/memo", put(memo::write_named).get(memo::read_named))
        .route("/v1/locks/{name}", get(views::show_in_path).delete(views::break_in_path))
        .route("/v1/locks/{name}/acquire", post(acquire::acquire_in_path))
        .route("/v1/locks/{name}/renew", post(renew::renew_in_path))
        .route("/v1/locks/{name}/release", post(release::release_in_path))
        .route("/v1/locks/{name}/memo", put(memo::write_in_path).get(memo::read_in_path))
        .route("/v1/locks/{name}/explain", get(views::explain_in_path))
        .route("/v1/events", get(events::events))
        .route("/v1/recent", get(pages::recent))
        .route("/v1/store", get(pages::store))
        .route("/metrics", get(pages::metrics))
        .route("/healthz", get(pages::healthz))
        .route("/readyz", get(pages::readyz))
        .route("/openapi.json", get(pages::document))
        .route("/", get(pages::dashboard))
        .route("/assets/{file}", get(pages::file))
        .fallback(gate::not_found)
        .method_not_allowed_fallback(gate::not_allowed)
        .layer(from_fn_with_state(service.clone(), gate::pass))
        .with_state(service)
}
