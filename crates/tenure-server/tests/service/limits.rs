//! What is allowed at once: what is too much is refused, and renewals and releases are served all the same.

use std::time::Duration;

use serde_json::json;
use tenure_server::{Limits, Right};
use tokio::time::{sleep, timeout};

use crate::support::{
    Client, Connection, Instance, Look, PATIENCE, TokenFile, and, instance_with, memory, name, redis, wish,
};

const TTL: u64 = 60_000;

/// An instance with few of everything.
async fn limited(store: &str, change: impl FnOnce(&mut Limits)) -> Instance {
    instance_with(store, |options| change(&mut options.limits)).await
}

async fn waits(client: &Client, look: &Look, name: &str, owner: &str) -> Connection {
    let (held, waiting) = look.counts(name).await;
    let waits = client.acquiring(and(wish(name, owner, TTL), json!({ "wait_ms": 50_000 }))).await;
    look.until(name, (held, waiting + 1)).await;
    waits
}

async fn is_too_many(client: &Client, look: &Look, name: &str) {
    let before = look.counts(name).await;
    let reply = client.acquire(and(wish(name, "one too many", TTL), json!({ "wait_ms": 50_000, "owner": "o" }))).await;
    assert!(reply.headers.contains_key("retry-after"), "{reply:?}");
    reply.tells_problem(429, "too_many");
    assert_eq!(look.counts(name).await, before, "nothing was done");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_bounded_in_all_and_the_rest_is_served() {
    let store = redis().await;
    let (at, look) = (limited(&store, |limits| limits.waiters = 2).await, Look::at(&store).await);
    let name = name("all");
    at.acquire(wish(&name, "holder", TTL)).await.is(200);
    let first = waits(&at, &look, &name, "first").await;
    let second = waits(&at, &look, &name, "second").await;
    is_too_many(&at, &look, &name).await;
    // What does not wait is served, and so is who holds.
    at.acquire(wish(&name, "impatient", TTL)).await.tells_problem(409, "busy");
    at.renew(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    at.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    first.reply().await.is(200);
    // There is room again: after a grant, and after a caller that went.
    let third = waits(&at, &look, &name, "third").await;
    is_too_many(&at, &look, &name).await;
    drop(third);
    let again = async {
        loop {
            let mut fourth = at.acquiring(and(wish(&name, "fourth", TTL), json!({ "wait_ms": 50_000 }))).await;
            if fourth.is_silent_for(Duration::from_millis(300)).await {
                return;
            }
            fourth.next_reply().await.tells_problem(429, "too_many");
        }
    };
    timeout(PATIENCE, again).await.expect("room for a fourth");
    drop(second);
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_bounded_for_each_caller_and_for_each_name() {
    let store = redis().await;
    let file = TokenFile::of(&[("alice", &Right::ALL, &[]), ("bob", &Right::ALL, &[])]);
    let at = instance_with(&store, |options| {
        options.tokens = Some(file.path.clone());
        (options.limits.waiters_of_caller, options.limits.waiters_for_name) = (2, 2);
    });
    let (at, look) = (at.await, Look::at(&store).await);
    let (alice, bob) = (at.with(file.secret("alice")), at.with(file.secret("bob")));
    let (one, two) = (name("one"), name("two"));
    for name in [&one, &two] {
        alice.acquire(wish(name, "holder", TTL)).await.is(200);
    }
    let _first = waits(&alice, &look, &one, "1").await;
    let _second = waits(&alice, &look, &two, "2").await;
    is_too_many(&alice, &look, &one).await;
    let _third = waits(&bob, &look, &one, "3").await;
    is_too_many(&bob, &look, &one).await;
    let _fourth = waits(&bob, &look, &two, "4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_and_releases_find_a_connection_however_many_wait() {
    let store = redis().await;
    let (at, look) = (limited(&store, |limits| limits.connections = 16).await, Look::at(&store).await);
    let most = Limits { connections: 16, ..Limits::default() }.consistent().waiters;
    let name = name("full");
    at.acquire(wish(&name, "holder", TTL)).await.is(200);
    let mut waiting = Vec::new();
    for owner in 0..most {
        waiting.push(waits(&at, &look, &name, &owner.to_string()).await);
    }
    assert!(most <= 12, "three quarters of the connections");
    is_too_many(&at, &look, &name).await;
    at.renew(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    at.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    look.until(&name, (1, most - 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_are_closed_when_room_is_needed() {
    let at = limited(&memory().await, |limits| limits.connections = 8).await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        let mut connection = at.sent("GET", "/healthz", None).await;
        connection.next_reply().await.is(200);
        idle.push(connection);
    }
    // One needs room, then several at a time.
    at.get("/healthz").await.is(200);
    let several: Vec<_> = (0..4).map(|_| at.get("/healthz")).collect();
    for reply in futures_util::future::join_all(several).await {
        reply.is(200);
    }
    idle[0].is_closed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_say_nothing_or_half_a_head_do_not_keep_others_out() {
    for said in ["", "POST /v1/acq", "POST /v1/acquire HTTP/1.1\r\nhost: 127.0.0.1\r\n"] {
        let at = limited(&memory().await, |limits| limits.connections = 8).await;
        let mut silent = Vec::new();
        for _ in 0..8 {
            let mut connection = at.open().await;
            connection.send(said.as_bytes()).await;
            silent.push(connection);
        }
        sleep(Duration::from_millis(100)).await;
        for _ in 0..3 {
            at.acquire(wish("x", "o", TTL)).await.is(200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_not_idle_and_does_not_keep_others_out() {
    let at = limited(&memory().await, |limits| limits.connections = 8).await;
    let mut stream = at.sent("GET", "/v1/events", None).await;
    stream.next_reply().await.is(200);
    let mut idle = Vec::new();
    for _ in 0..7 {
        let mut connection = at.sent("GET", "/healthz", None).await;
        connection.next_reply().await.is(200);
        idle.push(connection);
    }
    for _ in 0..3 {
        at.get("/healthz").await.is(200);
    }
    at.acquire(wish("x", "o", TTL)).await.is(200);
    stream.until("granted").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded() {
    let at = limited(&memory().await, |limits| limits.streams = 1).await;
    let mut stream = at.sent("GET", "/v1/events", None).await;
    stream.next_reply().await.is(200);
    at.get("/v1/events").await.tells_problem(429, "too_many");
    drop(stream);
    let again = async {
        loop {
            let mut stream = at.sent("GET", "/v1/events", None).await;
            if stream.next_reply().await.status == 200 {
                return;
            }
        }
    };
    timeout(PATIENCE, again).await.expect("room for another");
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_and_bodies_that_do_not_arrive_are_not_waited_for() {
    let at = limited(&memory().await, |limits| limits.idle = Duration::from_secs(1)).await;
    let request = at.request("POST", "/v1/acquire", Some(&wish("x", "o", TTL).to_string()));
    let slow_head = async {
        let mut connection = at.open().await;
        connection.send(&request.as_bytes()[..20]).await;
        connection.is_closed().await;
    };
    let slow_body = async {
        let mut connection = at.open().await;
        connection.send(&request.as_bytes()[..request.len() - 1]).await;
        connection.next_reply().await.tells_problem(408, "timeout");
        connection.is_closed().await;
    };
    let large_head = async {
        let mut connection = at.open().await;
        connection.send(request.replace("host:", &format!("x: {}\r\nhost:", "x".repeat(32 * 1024))).as_bytes()).await;
        // Refused or closed before it is read: in either case it is not served.
        let reply = connection.try_reply().await;
        assert!(reply.as_ref().is_none_or(|reply| reply.status == 431), "{reply:?}");
    };
    tokio::join!(slow_head, slow_body, large_head);
    assert_eq!(at.get("/v1/locks").await.is(200).json(), json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn places_that_are_kept_are_bounded_for_each_name_and_none_is_lost_by_a_retry() {
    let store = redis().await;
    let (at, free, look) = (
        limited(&store, |limits| limits.waiters_for_name = 1).await,
        limited(&store, |_| {}).await,
        Look::at(&store).await,
    );
    let name = name("places");
    let queues = |owner: &str, wait_ms: u64| and(wish(&name, owner, TTL), json!({ "queue": true, "wait_ms": wait_ms }));
    at.acquire(wish(&name, "holder", TTL)).await.is(200);
    at.acquire(queues("first", 1)).await.is(202);
    for wait_ms in [0, 1] {
        at.acquire(queues("second", wait_ms)).await.tells_problem(429, "too_many");
        look.until(&name, (1, 1)).await;
    }
    // One that stands already keeps its place, wherever it came from.
    free.acquire(queues("third", 0)).await.is(202);
    for wait_ms in [0, 1] {
        at.acquire(queues("first", wait_ms)).await.is(202);
        at.acquire(queues("third", wait_ms)).await.is(202);
        assert_eq!(look.counts(&name).await, (1, 2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_of_as_many_claims_as_are_allowed_fits() {
    let at = limited(&memory().await, |_| {}).await;
    // As long as they may be, and each character of a name written as JSON writes it for those who read ASCII only.
    let name = "\\u0101".repeat(256);
    let one = format!(r#"{{"name":"{name}","owner":"{0}","claim":"{0}","ttl_ms":86400000}}"#, "o".repeat(128));
    let body = format!(r#"{{"locks":[{}]}}"#, vec![one; 1_000].join(","));
    let reply = at.call("POST", "/v1/renew", Some(&body)).await.is(200).json();
    assert_eq!(reply["locks"].as_array().unwrap().len(), 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn diagnoses_are_bounded_as_waits_are() {
    let at = limited(&memory().await, |limits| limits.waiters = 1).await;
    at.acquire(wish("x", "holder", TTL)).await.is(200);
    let mut waits = at.acquiring(and(wish("x", "waiter", TTL), json!({ "wait_ms": 50_000 }))).await;
    while at.show("x").await["waiters"].as_array().unwrap().is_empty() {}
    at.get("/v1/explain?name=x").await.tells_problem(429, "too_many");
    at.release(json!({ "name": "x", "owner": "holder", "claim": "1" })).await.is(200);
    waits.next_reply().await.is(200);
    at.get("/v1/explain?name=x").await.is(200);
}
