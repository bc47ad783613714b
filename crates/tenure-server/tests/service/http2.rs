//! HTTP/2: many requests on one connection, of which waiters do not take all.

use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Method, Request};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tenure_server::STREAMS_MAX;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::support::{Client, Look, PATIENCE, and, instance, name, over, wish};

/// One connection that all requests go over.
struct Http2(SendRequest<Full<Bytes>>, String);

impl Http2 {
    async fn to(client: &Client) -> Self {
        let stream = TcpStream::connect(client.address).await.unwrap();
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Self(sender, client.address.to_string())
    }

    /// A request that is under way, whether or not it is awaited.
    fn post(&self, path: &str, body: &Value) -> impl Future<Output = (u16, Value)> + Send + use<> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{}{path}", self.1))
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let sent = self.0.clone().send_request(request);
        async move {
            let response = timeout(PATIENCE, sent).await.expect("an answer").unwrap();
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice(&body).unwrap())
        }
    }
}

over!(waiters_leave_streams_of_a_connection_for_renewals_and_releases: memory, redis);

async fn waiters_leave_streams_of_a_connection_for_renewals_and_releases(store: String) {
    let (at, look) = (instance(&store).await, Look::at(&store).await);
    let may_wait = STREAMS_MAX as usize / 4 * 3;
    let (name, more) = (name("streams"), 10);
    let connection = Http2::to(&at).await;
    let holder = json!({ "name": name, "owner": "holder", "claim": "1" });
    let (status, held) = connection.post("/v1/acquire", &wish(&name, "holder", 60_000)).await;
    assert_eq!(status, 200, "{held}");
    let mut waiting = JoinSet::new();
    for number in 0..may_wait + more {
        let waits = and(wish(&name, &format!("waiter-{number}"), 60_000), json!({ "wait_ms": 50_000 }));
        waiting.spawn(connection.post("/v1/acquire", &waits));
    }
    // As many as may wait do, and the others are told to use another connection.
    for _ in 0..more {
        let (status, told) = timeout(PATIENCE, waiting.join_next()).await.expect("an answer").unwrap().unwrap();
        assert_eq!((status, &told["kind"]), (429, &json!("too_many")), "{told}");
        assert!(told["hint"].as_str().unwrap().contains("another connection"), "{told}");
    }
    look.until(&name, (1, may_wait)).await;
    for _ in 0..10 {
        let (status, renewed) = connection.post("/v1/renew", &holder).await;
        assert_eq!((status, &renewed["token"]), (200, &held["token"]), "{renewed}");
    }
    assert_eq!(connection.post("/v1/release", &holder).await.0, 200);
    let (status, next) = timeout(PATIENCE, waiting.join_next()).await.expect("an answer").unwrap().unwrap();
    assert!(status == 200 && next["token"].as_u64() > held["token"].as_u64(), "{next}");
    // What one connection may not, another may.
    let other = Http2::to(&at).await;
    let waits = and(wish(&name, "elsewhere", 60_000), json!({ "wait_ms": 50_000 }));
    let waits = tokio::spawn(other.post("/v1/acquire", &waits));
    look.until(&name, (1, may_wait)).await;
    assert!(timeout(Duration::ZERO, waits).await.is_err(), "it waits");
}
