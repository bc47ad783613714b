//! `explain`, over real stores: holders that are well and that are not, queues, other libraries' locks.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure::Tenure;
use tenure_testkit::servers::{Redis, shared};
use zookeeper_client::{Acls, Client, CreateMode};

use crate::served::Served;
use crate::support::{Running, Store, done, eventually};

fn explain(store: &Store, name: &str) -> Value {
    done(&mut store.command(["explain", name, "--json"])).exits(0).json()
}

/// The stores that a holder is looked at in.
fn stores() -> Vec<Store> {
    vec![
        Store::new(),
        Store::on(shared::redis().url()),
        Store::on(shared::etcd().url()),
        Store::on(shared::postgres().url()),
    ]
}

#[test]
fn a_free_name_is_free() {
    let store = Store::new();
    let text = store.tenure("explain x").exits(0).text();
    assert_eq!(text, "x is free: a claim would be granted at once");
    let told = explain(&store, "x");
    assert_eq!(told["holders"], json!([]));
    assert_eq!(told["wait"], json!({"hand_overs": 0, "if_holders_die_ms": null, "unbounded": false}));
    assert_eq!(told["break"], json!({"ends": 0, "grants": 0, "refused": null}));
    assert_eq!(told["looked_ms"], 0, "there is nothing to look for");
}

#[test]
fn a_holder_that_is_well_is_seen_to_renew_in_every_store_that_tells() {
    for store in stores() {
        let run = store.start("well --ttl 9s", "sleep 600");
        let mut told = Value::Null;
        eventually("a renewal is seen", || {
            told = explain(&store, "well");
            told["holders"][0]["renewal"] == "renewing"
        });
        let holder = &told["holders"][0];
        assert_eq!(holder["pid"], run.pid.as_raw_nonzero().get(), "{}: {told}", store.url());
        assert_eq!(holder["host"].as_str().map(str::is_empty), Some(false), "{told}");
        assert!((8_900..=9_100).contains(&holder["ttl_ms"].as_u64().unwrap()), "{}: {told}", store.url());
        assert!(told["looked_ms"].as_u64().unwrap() <= 6_000, "bounded: {told}");
        assert_eq!(told["wait"]["unbounded"], true);
    }
}

#[test]
fn a_holder_in_a_fleet_is_seen_to_renew_by_its_expiry() {
    let store = Store::on(shared::fleet().url_with("node_timeout=500ms"));
    let run = store.start("explained --ttl 9s", "sleep 600");
    let mut told = Value::Null;
    eventually("a renewal is seen", || {
        let explained = done(&mut store.command(["explain", "explained", "--json"]));
        told = if explained.code == 0 { explained.json() } else { Value::Null };
        told["holders"][0]["renewal"] == "renewing"
    });
    assert_eq!(told["holders"][0]["pid"], run.pid.as_raw_nonzero().get(), "{told}");
    assert!(told["holders"][0]["renewed_ms"].is_null(), "a node does not tell: {told}");
    assert_eq!(told["wait"]["unbounded"], true);
}

#[test]
fn a_holder_behind_a_service_is_told_as_its_store_tells() {
    let behind = Store::new();
    let served = Served::start(&behind, &[]);
    let store = Store::on(format!("http://{}", served.address));
    let run = store.start("x --ttl 9s", "sleep 600");
    let waiter = store.start_waiter("x", "--label next");
    let mut told = Value::Null;
    eventually("a renewal is seen", || {
        told = explain(&store, "x");
        told["holders"][0]["renewal"] == "renewing"
    });
    assert_eq!(told["holders"][0]["pid"], run.pid.as_raw_nonzero().get(), "{told}");
    assert_eq!(told["waiters"][0]["hand_overs"], 1, "{told}");
    assert_eq!(told["break"], json!({"ends": 1, "grants": 1, "refused": null}));
    drop(waiter);
}

#[test]
fn a_holder_that_was_stopped_is_overdue() {
    let store = Store::new();
    let run = store.start("x --ttl 12s", "sleep 600");
    run.signal(Signal::STOP);
    let mut text = String::new();
    eventually("it is overdue", || {
        text = store.tenure("explain x").exits(0).text();
        text.contains("which is overdue")
    });
    assert!(text.contains("no renewal for") && text.contains("nobody renews it"), "{text}");
}

#[test]
fn a_claim_that_nobody_renews_is_overdue_soon_after_a_third_of_its_ttl() {
    let store = Store::new();
    store.tenure("acquire x --ttl 6s --label job").exits(0);
    let told = store.tenure("explain x").exits(0).says("looking for up to ");
    assert!(told.text().contains("which is overdue"), "{told:?}");
}

#[test]
fn what_a_day_long_ttl_does_not_tell_within_the_look_is_said() {
    let store = Store::new();
    store.tenure("acquire x --ttl 24h --label job").exits(0);
    let told = store.tenure("explain x").exits(0).says("looking for up to 5.0s");
    assert!(told.text().contains("and none was due"), "{told:?}");
    assert!(told.text().contains("its label does not tell"), "{told:?}");
}

#[test]
fn of_a_long_queue_the_first_are_shown_and_how_many_more() {
    let store = Store::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tenure = runtime.block_on(Tenure::connect(store.url())).unwrap();
    let lock = tenure.lock("x").ttl(Duration::from_secs(60)).strict_fifo();
    let _held = runtime.block_on(lock.acquire()).unwrap();
    let _waiting: Vec<_> = (0..200)
        .map(|_| {
            let lock = lock.clone();
            runtime.spawn(async move { lock.acquire().await })
        })
        .collect();
    eventually("all wait", || store.show("x")["waiters"].as_array().unwrap().len() == 200);
    let text = store.tenure("explain x").exits(0).text();
    assert!(text.contains("and 180 more"), "{text}");
    assert!(text.contains("waits for 201 claims to end"), "{text}");
    assert!(text.contains("the first waiter would be granted it"), "{text}");
    assert!(text.lines().count() < 50, "{text}");
    let told = explain(&store, "x");
    let away: Vec<u64> =
        told["waiters"].as_array().unwrap().iter().map(|waiter| waiter["hand_overs"].as_u64().unwrap()).collect();
    assert_eq!(away, (1..=200).collect::<Vec<u64>>());
    runtime.shutdown_background();
}

#[test]
fn readers_and_writers_are_counted_as_they_hold_together() {
    let store = Store::new();
    let _writer = store.start("x --ttl 1m --label writer", "sleep 600");
    let _readers: Vec<Running> = (0..2).map(|_| store.start_waiter("x", "--ttl 1m --shared")).collect();
    let _next = store.start_waiter("x", "--ttl 1m --label next");
    let told = explain(&store, "x");
    let away: Vec<&Value> = told["waiters"].as_array().unwrap().iter().map(|waiter| &waiter["hand_overs"]).collect();
    assert_eq!(away, [1, 1, 3]);
    assert_eq!(told["break"], json!({"ends": 1, "grants": 2, "refused": null}));
}

#[test]
fn permits_are_counted_one_by_one() {
    let store = Store::new();
    for owner in ["a", "b"] {
        store.tenure(&format!("acquire x --permits 2 --owner {owner} --ttl 1m")).exits(0);
    }
    let _next = store.start_waiter("x", "--permits 2 --ttl 1m");
    let text = store.tenure("explain x").exits(0).text();
    assert!(text.starts_with("x is held: 2 of 2 permits"), "{text}");
    assert_eq!(text.matches("HOLDER ").count(), 2, "{text}");
    assert_eq!(explain(&store, "x")["waiters"][0]["hand_overs"], 1);
}

#[test]
fn a_holder_of_another_library_is_told_as_far_as_the_store_tells() {
    let redis = Redis::start();
    for (layout, make) in [
        ("plain", &["set", "x", "of another", "NX", "PX", "600000"][..]),
        ("redisson", &["hset", "x", "b5b17f6b-0000-4000-8000-000000000000:1", "1"]),
    ] {
        redis.cli(make);
        let store = Store::on(format!("{}?layout={layout}", redis.url()));
        let text = store.tenure("explain x").exits(0).text();
        for part in
            ["HOLDER      a foreign client", "who holds it: another library's client", "refused: a foreign client"]
        {
            assert!(text.contains(part), "{part:?} is not in {text}");
        }
        assert!(text.contains("who waits, and in which order"), "{text}");
        redis.cli(&["flushall"]);
    }
}

#[test]
fn what_etcdctl_holds_is_told_and_can_be_broken() {
    let etcd = shared::etcd();
    let store = Store::on(etcd.url());
    let lock = Running::with_stdin(&mut etcd.etcdctl_command(&["lock", "explained", "--ttl=60"]), Stdio::null());
    eventually("etcdctl holds it", || store.show("explained")["holders"].as_array().unwrap().len() == 1);
    let told = explain(&store, "explained");
    let holder = &told["holders"][0];
    assert!(holder["owner"].is_null() && holder["expires_in_ms"].is_u64(), "{told}");
    assert_eq!(told["break"], json!({"ends": 1, "grants": 0, "refused": null}));
    drop(lock);
}

#[test]
fn what_curator_holds_is_told_and_can_be_broken() {
    let servers = shared::zookeeper();
    let store = Store::on(servers.url_below("/curated"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _curator = runtime.block_on(async {
        let curator = Client::connector().with_session_timeout(Duration::from_secs(30));
        let curator = curator.connect(&servers.servers()).await.unwrap();
        for parent in ["/curated", "/curated/x"] {
            // The store may have made the first one.
            let _ = curator.create(parent, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await;
        }
        let lock = "/curated/x/_c_0b7e6bd4-6f3c-4f0e-9d4f-0123456789ab-lock-";
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        curator.create(lock, b"10.0.0.1", &options).await.unwrap();
        curator
    });
    let told = explain(&store, "x");
    let holder = &told["holders"][0];
    assert!(holder["owner"].is_null() && holder["expires_in_ms"].is_null() && holder["token"].is_u64(), "{told}");
    assert_eq!((&holder["renewal"], &told["looked_ms"]), (&json!("untold"), &json!(0)));
    assert_eq!(told["break"], json!({"ends": 1, "grants": 0, "refused": null}));
    runtime.shutdown_background();
}

#[test]
fn zookeeper_does_not_tell_renewals() {
    let store = Store::on(shared::zookeeper().url_below("/explained"));
    let _run = store.start("x", "sleep 600");
    let told = explain(&store, "x");
    assert_eq!(told["holders"][0]["renewal"], "untold", "{told}");
    assert_eq!(told["looked_ms"], 0, "a second look would tell no more");
    let text = store.tenure("explain x").exits(0).text();
    assert!(text.contains("whether the holder still renews"), "{text}");
}

#[test]
fn a_name_that_nobody_may_read_is_69_as_with_show() {
    let users = "user default on >right ~* &* +@all\nuser weak on >pw ~other* &* +@all";
    let redis = Redis::builder().users(users).login("default", "right").start();
    let url = redis.url().replace("default:right@", "weak:pw@");
    assert!(url.contains("weak"), "{url}");
    let store = Store::on(url);
    let shown = store.tenure("show x").exits(69);
    let told = store.tenure("explain x").exits(69);
    assert_eq!(told.stderr, shown.stderr);
}
