//! The layer over HTTP: what it refuses, and why that alone is no fence.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::{Extension, Router, routing};
use rusqlite::Connection;
use tenure::Shape::{Exclusive, Shared};
use tenure::fence::http::{FenceLayer, from_headers, header_map, refusal};
use tenure::fence::{Failure, Fence, Gate, OWNER_HEADER, TOKEN_HEADER, sqlite};
use tokio::sync::Semaphore;
use tower::ServiceExt as _;

use crate::resource::{fence, in_sqlite};

const RESOURCE: &str = "stock/42";

/// A number behind a gate, to which requests add one.
fn counter(gate: &Arc<Gate<u32>>) -> Router {
    let (seen, gate) = (gate.clone(), gate.clone());
    let layer = FenceLayer::new(move |_: &Parts, fence| {
        let looked = seen.look(&fence).map_err(Failure::<Infallible>::from);
        async move { looked }
    });
    let add = async move |Extension(fence): Extension<Fence>| -> Response<Body> {
        gate.write_as(&fence, |count| *count += 1).map_or_else(|refused| refusal(&refused), |()| Response::default())
    };
    Router::new().route("/", routing::post(add)).layer(layer)
}

async fn post(service: &Router, headers: HeaderMap) -> (StatusCode, String) {
    let mut request = Request::post("/").body(Body::empty()).unwrap();
    *request.headers_mut() = headers;
    let answer = service.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await.unwrap();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn headers_are_needed_once_and_well_formed() {
    let gate = Arc::new(Gate::new(0));
    let service = counter(&gate);
    let good = header_map(&fence(5, "a", Exclusive));
    let mut bad = vec![HeaderMap::new()];
    for name in [TOKEN_HEADER, OWNER_HEADER] {
        let mut missing = good.clone();
        missing.remove(name);
        let mut malformed = good.clone();
        malformed.insert(name, "-1".parse().unwrap());
        let mut not_text = good.clone();
        not_text.insert(name, b"\xff".as_slice().try_into().unwrap());
        let mut twice = good.clone();
        twice.append(name, good[name].clone());
        bad.extend([missing, malformed, not_text, twice]);
    }
    for headers in bad {
        let (status, body) = post(&service, headers.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{headers:?}");
        assert!(body.contains(r#""kind":"invalid""#) && body.contains("Tenure-"), "{body}");
    }
    assert_eq!(post(&service, good).await.0, StatusCode::OK);
    drop(service);
    assert_eq!(Arc::into_inner(gate).unwrap().into_inner(), 1, "no other request came through");
}

#[tokio::test]
async fn a_stale_request_is_answered_412_before_the_handler() {
    let gate = Arc::new(Gate::new(0));
    let service = counter(&gate);
    assert_eq!(post(&service, header_map(&fence(6, "b", Exclusive))).await.0, StatusCode::OK);
    let layer = FenceLayer::new({
        let gate = gate.clone();
        move |_: &Parts, fence| {
            let looked = gate.look(&fence).map_err(Failure::<Infallible>::from);
            async move { looked }
        }
    });
    let unreached = async || -> StatusCode { panic!("the handler ran") };
    let service = Router::new().route("/", routing::post(unreached)).layer(layer);
    let (status, body) = post(&service, header_map(&fence(5, "a", Exclusive))).await;
    assert_eq!(status, StatusCode::PRECONDITION_FAILED);
    assert!(body.contains("stale") && body.contains("6 has been accepted"), "{body}");
}

#[tokio::test]
async fn a_readers_fence_stays_one_over_the_wire() {
    let reader = fence(5, "a", Shared);
    assert_eq!(from_headers(&header_map(&reader)).unwrap(), reader);
    let gate = Arc::new(Gate::new(0));
    let (status, body) = post(&counter(&gate), header_map(&reader)).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "a write under a shared lock");
    assert!(body.contains("shared"), "{body}");
}

#[tokio::test]
async fn a_fence_that_cannot_be_read_lets_nothing_through() {
    let layer = FenceLayer::new(|_: &Parts, _| async { Err(Failure::Store("password=x")) });
    let unreached = async || -> StatusCode { panic!("the handler ran") };
    let service = Router::new().route("/", routing::post(unreached)).layer(layer);
    let (status, body) = post(&service, header_map(&fence(5, "a", Exclusive))).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(!body.contains("password"), "{body}");
}

/// Why the layer alone is no fence: both requests pass it before either has its effect. Only the check in the effect's
/// own transaction sees them in the order of their effects.
#[tokio::test]
async fn the_layer_lets_a_request_pass_that_is_overtaken_and_the_transaction_refuses_it() {
    let database = in_sqlite();
    database.execute_batch("CREATE TABLE stock (token INTEGER); INSERT INTO stock VALUES (0)").unwrap();
    let database = Arc::new(Mutex::new(database));
    let passed = Arc::new(Semaphore::new(0));
    // Each handler waits here between the layer and its effect.
    let go_on = [(5, Arc::new(Semaphore::new(0))), (6, Arc::new(Semaphore::new(0)))];

    let seen = database.clone();
    let layer = FenceLayer::new(move |_: &Parts, fence| {
        let looked = sqlite::look(&seen.lock().unwrap(), RESOURCE, &fence);
        async move { looked }
    });
    let (stock, passes, gates) = (database.clone(), passed.clone(), go_on.clone());
    let handler = async move |Extension(fence): Extension<Fence>| -> Response<Body> {
        passes.add_permits(1);
        let (_, gate) = gates.iter().find(|(token, _)| *token == fence.token().get()).unwrap();
        gate.acquire().await.unwrap().forget();
        match effect(&mut stock.lock().unwrap(), &fence) {
            Ok(()) => Response::default(),
            Err(Failure::Refused(refused)) => refusal(&refused),
            Err(Failure::Store(error)) => panic!("{error}"),
        }
    };
    let service = Router::new().route("/", routing::post(handler)).layer(layer);
    let send = |token, owner: &str| {
        let (service, headers) = (service.clone(), header_map(&fence(token, owner, Exclusive)));
        tokio::spawn(async move { post(&service, headers).await.0 })
    };

    let (stale, fresh) = (send(5, "a"), send(6, "b"));
    let both = tokio::time::timeout(Duration::from_secs(60), passed.acquire_many(2)).await;
    assert!(both.is_ok(), "both are past the layer");
    go_on[1].1.add_permits(1);
    assert_eq!(fresh.await.unwrap(), StatusCode::OK);
    go_on[0].1.add_permits(1);
    assert_eq!(stale.await.unwrap(), StatusCode::PRECONDITION_FAILED);
    let last: i64 = database.lock().unwrap().query_row("SELECT token FROM stock", [], |row| row.get(0)).unwrap();
    assert_eq!(last, 6);
}

fn effect(database: &mut Connection, fence: &Fence) -> Result<(), Failure<rusqlite::Error>> {
    let transaction = database.transaction().map_err(Failure::Store)?;
    let token = fence.token().get().cast_signed();
    sqlite::update(&transaction, RESOURCE, fence, "UPDATE stock SET token = ?1", [token])?;
    transaction.commit().map_err(Failure::Store)
}
