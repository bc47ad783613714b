//! An instance that stops: nobody loses a place by it.

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::{Client, Look, PATIENCE, and, instance, name, over, wish};

/// Of claims that must be renewed to live on.
const TTL: u64 = 1_000;

over!(a_place_lives_on_while_its_request_is_repeated_at_an_instance_that_stops: redis, etcd);

async fn a_place_lives_on_while_its_request_is_repeated_at_an_instance_that_stops(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("stops");
    b.acquire(wish(&name, "holder", 60_000)).await.is(200);
    let waiting = and(wish(&name, "first", TTL), json!({ "wait_ms": 50_000, "queue": true }));
    let first = a.acquiring(waiting.clone()).await;
    look.until(&name, (1, 1)).await;
    b.acquire(and(wish(&name, "second", 60_000), json!({ "queue": true }))).await.is(202);
    let _under_way = a.half_sent().await;
    // Nothing is under way before its head was read, and a connection is taken after those before it.
    a.get("/healthz").await.is(200);
    a.running.stop();
    let told = first.reply().await.tells_problem(503, "unavailable");
    assert_eq!(told.headers["retry-after"], "0", "{told:?}");
    // A claim that nobody renews is there for a ttl: longer than the place lives if nobody renews it.
    b.acquire(and(wish(&name, "control", TTL), json!({ "queue": true }))).await.is(202);
    while look.counts(&name).await.1 == 3 {
        let told = a.acquire(waiting.clone()).await.tells_problem(503, "unavailable").json();
        assert_eq!((&told["owner"], &told["claim"]), (&json!("first"), &json!("1")), "{told}");
    }
    assert_eq!(look.counts(&name).await, (1, 2), "the first and the second wait");
    let goes_on = b.acquiring(waiting).await;
    b.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    goes_on.reply().await.is(200);
    look.until(&name, (1, 1)).await;
}

over!(callers_are_asked_to_come_over_another_connection: memory);

async fn callers_are_asked_to_come_over_another_connection(store: String) {
    let at = instance(&store).await;
    at.acquire(wish("x", "holder", 60_000)).await.is(200);
    let mut kept = at.sent("GET", "/healthz", None).await;
    assert!(!kept.next_reply().await.is(200).headers.contains_key("connection"));
    let _under_way = at.half_sent().await;
    at.get("/healthz").await.is(200);
    at.running.stop();
    // Renewals and releases are served to the end, each over a connection of its own.
    let renewal = json!({ "name": "x", "owner": "holder", "claim": "1" }).to_string();
    kept.send(at.request("POST", "/v1/renew", Some(&renewal)).as_bytes()).await;
    let told = kept.next_reply().await.is(200);
    assert_eq!(told.headers["connection"], "close", "{told:?}");
    kept.is_closed().await;
    at.renew(serde_json::from_str(&renewal).unwrap()).await.is(200);
}

over!(a_connection_of_http_2_is_told_to_go_away: memory);

async fn a_connection_of_http_2_is_told_to_go_away(store: String) {
    let at = instance(&store).await;
    // One that was there before, and one that came when the instance stopped already.
    let mut before = h2_request(&at).await;
    until_frame(&mut before, HEADERS).await;
    let _under_way = at.half_sent().await;
    at.get("/healthz").await.is(200);
    at.running.stop();
    until_frame(&mut before, GO_AWAY).await;
    let mut after = h2_request(&at).await;
    // Whichever comes first.
    let mut kinds = Vec::new();
    while !(kinds.contains(&HEADERS) && kinds.contains(&GO_AWAY)) {
        kinds.push(frame(&mut after).await);
    }
}

const HEADERS: u8 = 1;
const GO_AWAY: u8 = 7;

/// A connection that has sent `GET /healthz`.
async fn h2_request(client: &Client) -> TcpStream {
    let mut stream = TcpStream::connect(client.address).await.unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]); // empty settings
    // GET, http, :path /healthz and :authority localhost, none of them in the table that a connection keeps.
    let mut fields = vec![0x82, 0x86, 0x04, 8];
    fields.extend(b"/healthz");
    fields.extend([0x01, 9]);
    fields.extend(b"localhost");
    sent.extend([0, 0, fields.len() as u8, HEADERS, 5, 0, 0, 0, 1]); // its last frame
    sent.extend(fields);
    stream.write_all(&sent).await.unwrap();
    stream
}

/// Reads frames until one of this kind has come.
async fn until_frame(stream: &mut TcpStream, kind: u8) {
    while frame(stream).await != kind {}
}

/// Reads a frame; answers its kind.
async fn frame(stream: &mut TcpStream) -> u8 {
    let reading = async {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.expect("a frame");
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.expect("all of a frame");
        head[3]
    };
    timeout(PATIENCE, reading).await.expect("a frame")
}
