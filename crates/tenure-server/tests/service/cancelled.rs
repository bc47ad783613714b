//! A caller that goes away at any step of a request leaves nothing, or a claim that ends by its ttl.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::Owner;
use tokio::time::sleep;

use crate::support::{Client, Look, and, instance, name, over, wish};

/// Short: tests wait for its end.
const TTL: u64 = 2_000;

/// How far a request has got when its caller goes.
#[derive(Clone, Copy, Debug)]
enum Step {
    HalfAHead,
    Head,
    HalfABody,
    Sent,
    /// A few bytes of the answer were read.
    AnswerBegun,
}

const STEPS: [Step; 5] = [Step::HalfAHead, Step::Head, Step::HalfABody, Step::Sent, Step::AnswerBegun];

/// How it goes.
#[derive(Clone, Copy, Debug)]
enum Going {
    Closed,
    Reset,
}

/// Sends a request up to a step, and goes.
async fn leave(client: &Client, path: &str, body: &Value, step: Step, going: Going) {
    let body = body.to_string();
    let request = client.request("POST", path, Some(&body));
    let bytes = request.as_bytes();
    let head = bytes.len() - body.len();
    let sent = match step {
        Step::HalfAHead => head / 2,
        Step::Head => head,
        Step::HalfABody => head + body.len() / 2,
        Step::Sent | Step::AnswerBegun => bytes.len(),
    };
    let mut connection = client.open().await;
    connection.send(&bytes[..sent]).await;
    if matches!(step, Step::AnswerBegun) {
        connection.begins_to_answer().await;
    }
    match going {
        Going::Closed => drop(connection),
        Going::Reset => connection.reset(),
    }
}

async fn at_every_step(client: &Client, path: &str, body: impl Fn(&str) -> Value) -> Vec<String> {
    let mut names = Vec::new();
    for step in STEPS {
        for going in [Going::Closed, Going::Reset] {
            let name = name(&format!("{step:?}-{going:?}"));
            leave(client, path, &body(&name), step, going).await;
            names.push(name);
        }
    }
    names
}

/// Waits until all of them are free, for as long as nothing takes: there is nobody left who would renew.
async fn all_end(look: &Look, names: &[String]) {
    for name in names {
        look.until(name, (0, 0)).await;
    }
}

over!(an_acquire_that_is_left_leaves_nothing_that_stays: redis, etcd, zookeeper);

async fn an_acquire_that_is_left_leaves_nothing_that_stays(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let mut names = at_every_step(&a, "/v1/acquire", |name| wish(name, "worker", TTL)).await;
    names.extend(at_every_step(&b, "/v1/acquire", |name| json!({ "name": name, "ttl_ms": TTL })).await);
    let waits = json!({ "wait_ms": 20_000, "queue": true });
    names.extend(at_every_step(&a, "/v1/acquire", |name| and(wish(name, "worker", TTL), waits.clone())).await);
    all_end(&look, &names).await;
}

over!(a_renewal_that_is_left_leaves_a_claim_that_ends: redis, etcd, zookeeper);

async fn a_renewal_that_is_left_leaves_a_claim_that_ends(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let mut names = Vec::new();
    for step in STEPS {
        for going in [Going::Closed, Going::Reset] {
            let name = name(&format!("{step:?}"));
            a.acquire(wish(&name, "worker", TTL)).await.is(200);
            leave(&b, "/v1/renew", &json!({ "name": name, "owner": "worker", "claim": "1" }), step, going).await;
            names.push(name);
        }
    }
    all_end(&look, &names).await;
}

over!(a_release_that_is_left_is_made_or_not_begun: redis, etcd, zookeeper);

async fn a_release_that_is_left_is_made_or_not_begun(store: String) {
    // Longer than the test: what is to end is ended by the release.
    let ttl = 120_000;
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    for step in STEPS {
        for going in [Going::Closed, Going::Reset] {
            let name = name(&format!("{step:?}"));
            let held = a.acquire(wish(&name, "worker", ttl)).await.is(200);
            let release = json!({ "name": name, "owner": "worker", "claim": "1" });
            leave(&b, "/v1/release", &release, step, going).await;
            match step {
                Step::HalfAHead | Step::Head | Step::HalfABody => {
                    assert_eq!(look.tokens(&name).await, [held.token()], "{step:?}");
                    a.release(release).await.is(200);
                }
                // The end of the connection may overtake what was sent.
                Step::Sent => {
                    let again = a.release(release).await;
                    assert!([200, 410].contains(&again.status), "{again:?}");
                }
                Step::AnswerBegun => {}
            }
            look.until(&name, (0, 0)).await;
        }
    }
}

over!(a_wait_that_is_left_ends_at_once_if_nobody_knows_its_owner: redis, etcd, zookeeper);

async fn a_wait_that_is_left_ends_at_once_if_nobody_knows_its_owner(store: String) {
    let (at, other, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("left");
    other.acquire(wish(&name, "holder", 120_000)).await.is(200);
    for going in [Going::Closed, Going::Reset] {
        // Its ttl is longer than the test has patience.
        let body = json!({ "name": name, "ttl_ms": 120_000, "wait_ms": 50_000, "queue": true });
        let waits = at.acquiring(body).await;
        look.until(&name, (1, 1)).await;
        match going {
            Going::Closed => drop(waits),
            Going::Reset => waits.reset(),
        }
        look.until(&name, (1, 0)).await;
    }
}

over!(a_wait_that_is_left_keeps_its_place_for_its_ttl_if_its_owner_is_known: redis, etcd, zookeeper);

async fn a_wait_that_is_left_keeps_its_place_for_its_ttl_if_its_owner_is_known(store: String) {
    let (a, b, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("kept");
    a.acquire(wish(&name, "holder", 120_000)).await.is(200);
    let ttl = 20_000;
    let waits = |owner: &str| and(wish(&name, owner, ttl), json!({ "wait_ms": 50_000 }));
    let first = a.acquiring(waits("first")).await;
    look.until(&name, (1, 1)).await;
    let _second = b.acquiring(waits("second")).await;
    look.until(&name, (1, 2)).await;
    let order = |view: tenure::NameView| -> Vec<Option<Owner>> {
        view.waiters.iter().map(|waiter| waiter.owner.clone()).collect()
    };
    let before = order(look.view(&name).await);
    drop(first);
    // Whatever the instance does about it, it has done before it answers the next on a new connection and some more.
    sleep(Duration::from_millis(300)).await;
    assert_eq!(order(look.view(&name).await), before);
    // At the other instance it goes on, in its place.
    let again = b.acquiring(waits("first")).await;
    a.release(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
    again.reply().await.is(200);
    assert_eq!(order(look.view(&name).await), before[1..]);
}

over!(a_grant_that_nobody_hears_ends_by_its_ttl: redis, etcd, zookeeper);

async fn a_grant_that_nobody_hears_ends_by_its_ttl(store: String) {
    let (at, other, look) = (instance(&store).await, instance(&store).await, Look::at(&store).await);
    let name = name("unheard");
    other.acquire(wish(&name, "holder", 120_000)).await.is(200);
    let waits = at.acquiring(and(wish(&name, "worker", TTL), json!({ "wait_ms": 3_000, "queue": true }))).await;
    look.until(&name, (1, 1)).await;
    // The connection stays, and nobody reads it: the instance renews until the wait is over, and no longer.
    look.until(&name, (1, 0)).await;
    drop(waits);
}

over!(a_caller_that_closes_behind_more_than_its_request_leaves_nothing: memory, redis);

async fn a_caller_that_closes_behind_more_than_its_request_leaves_nothing(store: String) {
    let (at, look) = (instance(&store).await, Look::at(&store).await);
    // Whoever reads requests does not look further than the bytes behind this one, so that it does not see the end.
    let left_behind = async |name: &str, more: Value| {
        let body = and(json!({ "name": name, "ttl_ms": 3_600_000 }), more).to_string();
        let mut connection = at.open().await;
        connection.send(format!("{}\r\n", at.request("POST", "/v1/acquire", Some(&body))).as_bytes()).await;
        look.until(name, (1, 1)).await;
        drop(connection);
    };
    let granted = name("granted");
    at.acquire(wish(&granted, "holder", 60_000)).await.is(200);
    left_behind(&granted, json!({ "wait_ms": 50_000 })).await;
    at.release(json!({ "name": granted, "owner": "holder", "claim": "1" })).await.is(200);
    look.until(&granted, (0, 0)).await;

    let kept = name("kept");
    at.acquire(wish(&kept, "holder", 60_000)).await.is(200);
    left_behind(&kept, json!({ "wait_ms": 1_000, "queue": true })).await;
    look.until(&kept, (1, 0)).await;
}
