//! Streams of events, the history, and whether the store answers.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::Tenure;
use tenure_server::Right;
use tenure_testkit::servers::Redis;
use tokio::time::{sleep, timeout};

use crate::support::{Client, Connection, PATIENCE, TokenFile, and, instance, instance_with, memory, name, over, wish};

/// A stream after its head, and perhaps after an event.
async fn listen(client: &Client, path: &str, last: Option<&str>) -> Connection {
    let mut request = client.request("GET", path, None);
    if let Some(last) = last {
        request = request.replace("\r\n\r\n", &format!("\r\nlast-event-id: {last}\r\n\r\n"));
    }
    let mut stream = client.open().await;
    stream.send(request.as_bytes()).await;
    let head = stream.next_reply().await.is(200);
    assert_eq!(head.headers["content-type"], "text/event-stream");
    stream
}

/// The next event: its id, kind and content.
async fn next(stream: &mut Connection) -> (Option<String>, String, Value) {
    let (mut id, mut kind) = (None, String::new());
    loop {
        let line = timeout(PATIENCE, stream.until("\n")).await.expect("an event");
        match line.trim_end().split_once(": ") {
            Some(("id", text)) => id = Some(text.to_owned()),
            Some(("event", text)) => kind = text.to_owned(),
            Some(("data", text)) => return (id, kind, serde_json::from_str(text).unwrap()),
            _ => {}
        }
    }
}

/// Reads until an event of this kind about this name, and answers its id.
async fn until(stream: &mut Connection, kind: &str, name: &str) -> String {
    let found = async {
        loop {
            let (id, told, event) = next(stream).await;
            assert_eq!(event["event"], told);
            if told == kind && event["name"] == name {
                return id.unwrap();
            }
        }
    };
    timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no {kind} of {name}"))
}

over!(what_happens_is_told_and_readers_that_come_back_miss_nothing: memory, redis);

async fn what_happens_is_told_and_readers_that_come_back_miss_nothing(store: String) {
    let (a, b) = (instance(&store).await, instance(&store).await);
    let (one, two) = (name("told/one"), name("told/two"));
    let path = "/v1/events?prefix=told/";
    let mut stream = listen(&a, path, None).await;
    let held = a.acquire(wish(&one, "o", 60_000)).await.is(200).json();
    let granted = until(&mut stream, "granted", &one).await;
    // What happens at another instance is told too.
    b.acquire(wish(&two, "o", 60_000)).await.is(200);
    let last = until(&mut stream, "granted", &two).await;
    drop(stream);

    b.release(json!({ "name": one, "owner": "o", "claim": "1" })).await.is(200);
    let mut again = listen(&a, path, Some(&last)).await;
    until(&mut again, "released", &one).await;
    // From further back: what was told is told again, in order.
    let mut earlier = listen(&a, path, Some(&granted)).await;
    assert_eq!(until(&mut earlier, "granted", &two).await, last);
    until(&mut earlier, "released", &one).await;

    // Another instance cannot know, nor can anybody what never was.
    for (at, last) in [(&b, last.as_str()), (&a, "00000000-1"), (&a, "nonsense"), (&a, "")] {
        let mut stream = listen(at, path, Some(last)).await;
        assert_eq!(next(&mut stream).await.1, "gap", "{last:?}");
    }
    // What others see of an owner is not what the owner sends.
    let seen = a.get("/v1/recent").await.is(200).json().to_string() + &a.show(&two).await.to_string();
    assert!(!seen.contains("\"o\"") && held["shown"].as_str().is_some_and(|shown| shown.len() >= 32), "{seen}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_events_do_not_tell_what_happens_to_names_outside_the_prefixes() {
    let file = TokenFile::of(&[("all", &Right::ALL, &[]), ("few", &Right::ALL, &["few/"])]);
    let at = instance_with(&memory().await, |options| options.tokens = Some(file.path.clone())).await;
    let (all, few) = (at.with(file.secret("all")), at.with(file.secret("few")));
    let mut stream = listen(&few, "/v1/events", None).await;
    let mut ids = Vec::new();
    for number in 0..16 {
        all.acquire(wish(&format!("other/{number}"), "o", 60_000)).await.is(200);
        few.acquire(wish(&format!("few/{number}"), "o", 60_000)).await.is(200);
        ids.push(until(&mut stream, "granted", &format!("few/{number}")).await);
    }
    let random = |id: &String| id.split_once('-').and_then(|(_, id)| u64::from_str_radix(id, 16).ok());
    let random: Vec<u64> = ids.iter().map(|id| random(id).unwrap_or_else(|| panic!("{ids:?}"))).collect();
    assert!(!random.is_sorted(), "they count: {ids:?}");
    assert!(ids.iter().all(|id| id.len() == ids[0].len()), "their lengths tell of their age: {ids:?}");

    // Whoever comes back with any of them misses nothing, and hears nothing twice.
    drop(stream);
    for (place, id) in ids.iter().enumerate().take(15) {
        let mut again = listen(&few, "/v1/events", Some(id)).await;
        let (_, kind, event) = next(&mut again).await;
        assert_eq!((kind.as_str(), &event["name"]), ("granted", &json!(format!("few/{}", place + 1))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_ended_is_in_the_history() {
    let at = instance(&memory().await).await;
    at.acquire(wish("x", "o", 60_000)).await.is(200);
    at.acquire(wish("x", "p", 60_000)).await.tells_problem(409, "busy");
    at.release(json!({ "name": "x", "owner": "o", "claim": "1" })).await.is(200);
    let recent = at.get("/v1/recent").await.is(200).json();
    let ended: Vec<_> = recent.as_array().unwrap().iter().map(|one| one["ended"].as_str().unwrap()).collect();
    assert_eq!((ended.len(), ended[0]), (2, "released"), "{recent}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_the_instance() {
    let at = instance(&memory().await).await;
    let mut stream = listen(&at, "/v1/events", None).await;
    at.running.stop();
    assert_eq!(next(&mut stream).await.1, "stopping");
    stream.is_closed().await;
    timeout(Duration::from_secs(9), at.running.ended()).await.expect("nothing is waited for");
}

#[tokio::test(flavor = "multi_thread")]
async fn readiness_follows_the_store_and_health_does_not() {
    let redis = tokio::task::spawn_blocking(Redis::start).await.unwrap();
    let at = instance(redis.url()).await;
    let mut stream = listen(&at, "/v1/events", None).await;
    at.get("/readyz").await.is(200);
    redis.pause();
    let turns = |to: u16| {
        let at = at.client.clone();
        async move {
            while at.get("/readyz").await.status != to {
                sleep(Duration::from_millis(50)).await;
            }
        }
    };
    timeout(PATIENCE, turns(503)).await.expect("not ready");
    at.get("/readyz").await.tells_problem(503, "unavailable");
    at.get("/healthz").await.is(200);
    let unknown = at.acquire(wish("x", "o", 2_000)).await.tells_problem(503, "unavailable");
    let told = unknown.json();
    assert_eq!((&told["owner"], &told["claim"]), (&json!("o"), &json!("1")), "{unknown:?}");
    assert!(told["certainty"].is_string() && unknown.headers.contains_key("retry-after"), "{unknown:?}");
    redis.resume();
    timeout(PATIENCE, turns(200)).await.expect("ready again");
    let away_and_back = async {
        let mut kinds = Vec::new();
        while kinds.last().is_none_or(|kind| kind != "back") {
            kinds.push(next(&mut stream).await.1);
        }
        kinds
    };
    let kinds = timeout(PATIENCE, away_and_back).await.expect("the store is back");
    assert!(kinds.contains(&"away".to_owned()), "{kinds:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_too_slow_is_told_and_dropped() {
    let store = memory().await;
    let at = instance(&store).await;
    // What the kernel keeps for it is little, and what is said of a long name is much.
    let mut slow = at.open_small().await;
    slow.send(at.request("GET", "/v1/events", None).as_bytes()).await;
    let stem = "x".repeat(480);
    // Claims beside the service, so that there are many soon. Nobody reads meanwhile.
    let tenure = Tenure::connect(&store).await.unwrap();
    let told = async {
        loop {
            for _ in 0..2 {
                let mut guards = Vec::new();
                for number in 0..5_000 {
                    guards.push(tenure.lock(format!("{stem}/{number}")).try_acquire().await.unwrap().unwrap());
                }
                all_are_told(&at).await;
                drop(guards);
            }
            if slow.has("read too slowly").await {
                return;
            }
        }
    };
    timeout(PATIENCE, told).await.expect("the reader is told");
    slow.until("read too slowly").await;
    slow.until("\r\n0\r\n\r\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_at_all_does_not_shut_others_out() {
    let store = memory().await;
    let at = instance_with(&store, |options| {
        (options.limits.streams, options.limits.idle) = (1, Duration::from_secs(1));
    });
    let at = at.await;
    let mut silent = at.open_small().await;
    silent.send(at.request("GET", "/v1/events", None).as_bytes()).await;
    let tenure = Tenure::connect(&store).await.unwrap();
    let stem = "x".repeat(480);
    let served = async {
        loop {
            // So much happens that what the system keeps for a reader is full, and then nobody takes anything.
            let mut guards = Vec::new();
            for number in 0..2_000 {
                guards.push(tenure.lock(format!("{stem}/{number}")).try_acquire().await.unwrap().unwrap());
            }
            sleep(Duration::from_millis(100)).await;
            let mut other = at.sent("GET", "/v1/events", None).await;
            let reply = other.next_reply().await;
            if reply.status == 200 {
                return;
            }
            reply.tells_problem(429, "too_many");
        }
    };
    timeout(PATIENCE, served).await.expect("another reader is served");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "night: a comment comes every 15 s"]
async fn a_stream_on_which_nothing_happens_says_that_it_lives() {
    let at = instance(&memory().await).await;
    let mut stream = listen(&at, "/v1/events?prefix=nothing", None).await;
    // Twice: the time counts from the last thing that was said.
    for _ in 0..2 {
        stream.until(":\n\n").await;
    }
}

over!(a_name_that_is_held_and_waited_for_is_explained: memory, redis, etcd);

async fn a_name_that_is_held_and_waited_for_is_explained(store: String) {
    let (a, b) = (instance(&store).await, instance(&store).await);
    let name = name("explained/it");
    let held = a.acquire(and(wish(&name, "holder", 60_000), json!({ "label": "boss" }))).await.is(200).json();
    for owner in ["first", "second"] {
        let waits = and(wish(&name, owner, 60_000), json!({ "queue": true, "label": owner }));
        b.acquire(waits).await.is(202);
    }
    let encoded = name.replace('/', "%2F");
    for path in [format!("/v1/locks/{encoded}/explain"), format!("/v1/explain?name={encoded}")] {
        let renewing = async {
            loop {
                b.renew(json!({ "name": name, "owner": "holder", "claim": "1" })).await.is(200);
                sleep(Duration::from_millis(100)).await;
            }
        };
        let told = tokio::select! {
            told = a.get(&path) => told.is(200).json(),
            () = renewing => unreachable!("it renews on and on"),
        };
        let holder = &told["holders"][0];
        assert_eq!((&holder["label"], &holder["owner"]), (&json!("boss"), &held["shown"]), "{told}");
        assert_eq!((&holder["token"], &holder["renewal"]), (&held["token"], &json!("renewing")), "{told}");
        let waiters: Vec<_> =
            told["waiters"].as_array().unwrap().iter().map(|one| (&one["label"], &one["hand_overs"])).collect();
        assert_eq!(waiters, [(&json!("first"), &json!(1)), (&json!("second"), &json!(2))], "{told}");
        assert_eq!((&told["wait"]["hand_overs"], &told["wait"]["unbounded"]), (&json!(3), &json!(true)), "{told}");
        assert_eq!((&told["break"]["ends"], &told["break"]["grants"]), (&json!(1), &json!(1)), "{told}");
    }
}

/// Returns when somebody who reads has been told of what happened before.
async fn all_are_told(at: &Client) {
    let mut reader = listen(at, "/v1/events?prefix=last", None).await;
    let last = name("last");
    at.acquire(wish(&last, "o", 60_000)).await.is(200);
    until(&mut reader, "granted", &last).await;
    at.release(json!({ "name": last, "owner": "o", "claim": "1" })).await.is(200);
}
