//! `deadlocks`, over every store that has sessions: nested runs of separate processes that wait for each other.

use serde_json::Value;
use tenure_testkit::servers::shared;

use crate::support::{Running, Store, done, eventually, keys};

/// Runs in a ring: each holds a name, and within it runs a command that wants the next one's.
struct Ring {
    names: Vec<String>,
    runs: Vec<Running>,
}

impl Ring {
    /// Started one after the other, so that the last one's inner run comes last.
    fn start(store: &Store, length: usize) -> Self {
        let group = format!("ring-{:016x}", rand::random::<u64>());
        let names: Vec<String> = (0..length).map(|number| format!("{group}/{number}")).collect();
        let mut runs = Vec::new();
        for (number, name) in names.iter().enumerate() {
            let next = &names[(number + 1) % length];
            let script =
                format!("touch up{number}; until [ -e go{number} ]; do sleep 0.01; done; $TENURE run {next} -- true");
            runs.push(store.start_until(&format!("{name} --ttl 20s"), &script, &format!("up{number}")));
        }
        for number in 0..length {
            std::fs::write(store.file(&format!("go{number}")), "").unwrap();
            let next = &names[(number + 1) % length];
            eventually("it waits", || store.show(next)["waiters"].as_array().unwrap().len() == 1);
        }
        Self { names, runs }
    }
}

/// The deadlocks among these names: others use the store, too.
fn deadlocks(store: &Store, args: &[&str], names: &[String]) -> (i32, Vec<Value>) {
    let told = done(&mut store.command(["deadlocks", "--json"].into_iter().chain(args.iter().copied())));
    let all = told.json();
    let own = |deadlock: &&Value| names.iter().any(|name| deadlock["waits"][0]["name"] == **name);
    (told.code, all.as_array().unwrap().iter().filter(own).cloned().collect())
}

fn found_and_broken(store: &Store, length: usize) {
    let ring = Ring::start(store, length);
    let (code, found) = deadlocks(store, &[], &ring.names);
    assert_eq!((code, found.len()), (1, 1), "{found:?}");
    let waits = found[0]["waits"].as_array().unwrap();
    assert_eq!(waits.len(), length, "{found:?}");
    let fields = ["claim", "for", "label", "name", "number", "owner", "shape", "waited_ms", "within"];
    assert_eq!(keys(&waits[0]), fields);
    assert_eq!(keys(&found[0]), ["broken", "victim", "waits"]);
    for (wait, next) in waits.iter().zip(waits.iter().cycle().skip(1)) {
        assert_eq!(wait["for"]["owner"], next["within"], "each waits for the run that the next is nested in");
        assert!(!next["within"].is_null());
    }
    let explained = done(&mut store.command(["explain", &ring.names[0]])).exits(0).text();
    assert!(explained.contains("DEADLOCK: these wait for each other"), "{explained}");
    assert!(explained.contains(&format!("waits for {}, held by", ring.names[1])), "{explained}");

    let (code, broken) = deadlocks(store, &["--break"], &ring.names);
    assert_eq!((code, broken.len()), (1, 1), "{broken:?}");
    assert_eq!(broken[0]["broken"], true);
    // The victim is told and exits as not acquired, which its run passes on; all others find their locks.
    let mut ends: Vec<(i32, String)> = Vec::new();
    for run in ring.runs {
        let ended = run.wait();
        ends.push((ended.code, ended.stderr));
    }
    let refused: Vec<&(i32, String)> = ends.iter().filter(|(code, _)| *code == 75).collect();
    assert_eq!(refused.len(), 1, "{ends:?}");
    assert!(ends.iter().filter(|(code, _)| *code == 0).count() == length - 1, "{ends:?}");
    assert!(refused[0].1.contains("for it waited in a deadlock: "), "{ends:?}");
    assert_eq!(refused[0], ends.last().unwrap(), "the one that came last");
    assert!(deadlocks(store, &[], &ring.names).1.is_empty());
}

#[test]
fn nested_runs_on_the_embedded_store_that_wait_for_each_other_are_found_and_broken() {
    found_and_broken(&Store::new(), 2);
    found_and_broken(&Store::new(), 5);
}

#[test]
fn nested_runs_on_redis_that_wait_for_each_other_are_found_and_broken() {
    found_and_broken(&Store::on(shared::redis().url()), 2);
    found_and_broken(&Store::on(shared::redis().url()), 5);
}

#[test]
fn nested_runs_on_etcd_that_wait_for_each_other_are_found_and_broken() {
    found_and_broken(&Store::on(shared::etcd().url()), 2);
    found_and_broken(&Store::on(shared::etcd().url()), 5);
}

#[test]
fn nested_runs_on_zookeeper_that_wait_for_each_other_are_found_and_broken() {
    found_and_broken(&Store::on(shared::zookeeper().url()), 2);
    found_and_broken(&Store::on(shared::zookeeper().url()), 5);
}

#[test]
fn nested_runs_on_postgres_that_wait_for_each_other_are_found_and_broken() {
    found_and_broken(&Store::on(shared::postgres().url()), 2);
    found_and_broken(&Store::on(shared::postgres().url()), 5);
}

#[test]
fn without_deadlocks_it_says_so_and_exits_0() {
    let store = Store::new();
    let _held = store.start("a --ttl 20s", "sleep 60");
    let _waits = store.start_waiter("a", "");
    let told = store.tenure("deadlocks").exits(0).says("no deadlocks");
    assert_eq!(told.text(), "");
    assert_eq!(store.tenure("deadlocks --break --json").exits(0).text(), "[]");
    let explained = store.tenure("explain a --json").exits(0).json();
    assert_eq!(explained["deadlocks"], serde_json::json!([]));
}

#[test]
fn people_are_told_who_waits_for_whom_and_what_ends_it() {
    let store = Store::new();
    let ring = Ring::start(&store, 2);
    let told = store.tenure("deadlocks").exits(1).says("tenure deadlocks --break");
    let lines = told.text();
    assert!(lines.starts_with("deadlock of 2\n"), "{lines}");
    assert!(lines.contains(" true, within ") && lines.contains("; came last"), "{lines}");
    let told = store.tenure("deadlocks --break").exits(1).text();
    assert!(told.contains("; ended"), "{told}");
    drop(ring);
}

#[test]
fn a_store_without_a_queue_is_refused() {
    let store = Store::on(format!("{}?layout=plain", shared::redis().url()));
    store.tenure("deadlocks").exits(64).says("do not wait in this store");
}
