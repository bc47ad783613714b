//! Requests that wait: what ends them, and what does not.

use serde_json::json;
use tenure_server::Right;

use crate::support::{TokenFile, and, instance, instance_with, memory, name, over, wish};

/// Longer than anything here takes: a wait that comes to its end would be a failure.
const WAIT: u64 = 50_000;
/// Of claims that wait: how often they are renewed follows from it.
const TTL: u64 = 4_000;

over!(whose_claim_is_gone_is_told_and_does_not_wait_on: redis, etcd);

async fn whose_claim_is_gone_is_told_and_does_not_wait_on(store: String) {
    let (a, b) = (instance(&store).await, instance(&store).await);
    let name = name("gone");
    a.acquire(wish(&name, "holder", 60_000)).await.is(200);
    let waiting = and(wish(&name, "waiter", TTL), json!({ "wait_ms": WAIT }));
    let first = and(waiting.clone(), json!({ "wait_ms": 0, "queue": true }));
    let number = a.acquire(first).await.is(202).number();
    let waits = a.acquiring(waiting).await;
    // It is under way once the store has given it another number.
    while a.show(&name).await["waiters"][0]["claim"]["number"] == number {}
    b.release(json!({ "name": name, "owner": "waiter", "claim": "1" })).await.is(200);
    let told = waits.reply().await.tells_problem(503, "unavailable").json();
    assert_eq!(told["certainty"], "not_applied", "{told}");
    assert!(told["holder_expires_in_ms"].is_u64(), "{told}");
    assert_eq!((&told["owner"], &told["claim"]), (&json!("waiter"), &json!("1")), "{told}");
}

over!(a_stale_copy_leaves_whoever_waits_in_peace: redis, etcd);

async fn a_stale_copy_leaves_whoever_waits_in_peace(store: String) {
    let at = instance(&store).await;
    let name = name("stale");
    at.acquire(wish(&name, "holder", 60_000)).await.is(200);
    let queued = and(wish(&name, "waiter", 20_000), json!({ "queue": true }));
    let old = at.acquire(queued.clone()).await.is(202).number();
    let now = at.acquire(queued.clone()).await.is(202).number();
    assert!(old < now, "a retry takes the claim over");
    let mut waits = at.acquiring(and(queued.clone(), json!({ "wait_ms": WAIT, "number": now }))).await;
    // It is under way once the store has given it another number.
    while at.show(&name).await["waiters"][0]["claim"]["number"] == now {}
    let copy = and(queued, json!({ "wait_ms": WAIT, "number": old }));
    at.acquire(copy).await.tells_problem(409, "superseded");
    at.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    waits.next_reply().await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_loses_its_token_waits_and_listens_no_more() {
    let before = TokenFile::of(&[("stays", &[Right::Admin], &[]), ("goes", &[Right::Admin], &[])]);
    let after = TokenFile::of(&[("stays", &[Right::Admin], &[])]);
    let at = instance_with(&memory().await, |options| options.tokens = Some(before.path.clone())).await;
    let (stays, goes) = (at.with(before.secret("stays")), at.with(before.secret("goes")));
    stays.acquire(wish("x", "holder", 60_000)).await.is(200);
    let mut events = goes.sent("GET", "/v1/events", None).await;
    events.next_reply().await.is(200);
    let waits = goes.acquiring(and(wish("x", "waiter", 60_000), json!({ "wait_ms": WAIT, "queue": true }))).await;
    while stays.show("x").await["waiters"].as_array().unwrap().is_empty() {}
    std::fs::copy(&after.path, &before.path).unwrap();
    assert_eq!(at.running.reload().unwrap().len(), 1, "it is told who is gone");
    waits.reply().await.tells_problem(401, "unauthorized");
    // The chunk that ends a body.
    events.until("0\r\n\r\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_of_the_service_are_those_that_it_was_given() {
    let at = instance_with(&memory().await, |options| options.hosts = vec!["locks.example".to_owned()]).await;
    for (host, status) in [("locks.example:7420", 200), ("LOCKS.example", 200), ("evil.example", 421)] {
        let mut connection = at.open().await;
        connection.send(at.request("GET", "/v1/locks", None).replace("127.0.0.1", host).as_bytes()).await;
        connection.next_reply().await.is(status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_is_presumed_to_hold_only_for_those_who_wait() {
    let at = instance(&memory().await).await;
    let presumed = and(wish("ghost", "o", 1_000), json!({ "presumed_ms": 86_400_000 }));
    let told = at.acquire(presumed).await.tells_problem(400, "invalid").json();
    assert_eq!(told["field"], "presumed_ms");
    assert_eq!(at.show("ghost").await["holders"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_is_taken_away_before_the_body_arrives_is_not_used() {
    let path = |of: &str| format!("/v1/{of}");
    let held = json!({ "name": "x", "owner": "holder", "claim": "1" });
    for (of, body) in [("acquire", wish("y", "o", 60_000)), ("renew", held.clone()), ("release", held.clone())] {
        let before = TokenFile::of(&[("stays", &[Right::Admin], &[]), ("goes", &[Right::Admin], &[])]);
        let after = TokenFile::of(&[("stays", &[Right::Admin], &[])]);
        let at = instance_with(&memory().await, |options| options.tokens = Some(before.path.clone())).await;
        let goes = at.with(before.secret("goes"));
        goes.acquire(wish("x", "holder", 60_000)).await.is(200);
        let request = goes.request("POST", &path(of), Some(&body.to_string()));
        let (head, body) = request.split_at(request.len() - body.to_string().len());
        let mut connection = at.open().await;
        // Whoever is told to go on has been let in.
        connection.send(head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n").as_bytes()).await;
        connection.until("100 Continue\r\n\r\n").await;
        std::fs::copy(&after.path, &before.path).unwrap();
        at.running.reload().unwrap();
        connection.send(body.as_bytes()).await;
        connection.next_reply().await.tells_problem(401, "unauthorized");
    }
}
