//! `bench`: its figures have the promised shape, and it leaves nothing behind, however it ends.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_testkit::servers::{Redis, leftovers, shared};

use crate::support::{Running, Store, done, eventually, is_alive, keys, state};

/// One way to be in the midst of each thing that is measured.
const PHASES: [&str; 3] = [
    "bench --seconds 60 --tasks 8 --processes 0 --leases 0",
    "bench --seconds 60 --tasks 0 --processes 3 --leases 0",
    "bench --seconds 60 --tasks 0 --processes 0 --leases 300",
];

/// Starts a run, and waits until locks of it are seen in the store.
fn start(store: &Store, args: &str) -> (Running, Vec<Pid>) {
    let run = Running::of(&mut store.command(args.split_whitespace()));
    let ended = || state(run.pid) == Some('Z');
    eventually("it is at work", || ended() || !in_use(store).is_empty());
    assert!(!ended(), "{args}: {:?}", run.wait());
    let workers = workers(&run);
    assert!(!workers.is_empty());
    (run, workers)
}

fn in_use(store: &Store) -> Vec<Value> {
    store.tenure("ls tenure-bench- --json").exits(0).json().as_array().unwrap().clone()
}

fn workers(run: &Running) -> Vec<Pid> {
    let pid = run.pid.as_raw_nonzero();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let children = threads.flat_map(|thread| fs::read_to_string(thread.unwrap().path().join("children")));
    children
        .collect::<String>()
        .split_whitespace()
        .map(|child| Pid::from_raw(child.parse().unwrap()).unwrap())
        .collect()
}

fn assert_gone(workers: &[Pid]) {
    let left: Vec<&Pid> = workers.iter().filter(|worker| is_alive(**worker)).collect();
    assert!(left.is_empty(), "{left:?} are left of {workers:?}");
}

/// Checks the one object that is printed, and that it has a row for each number.
fn assert_shape(report: &Value, store: &str) {
    assert_eq!(keys(report), ["held", "hot", "store", "uncontended"]);
    assert_eq!(report["store"], store);
    let row = |list: &str, fields: &[&str]| {
        for row in report[list].as_array().unwrap() {
            assert_eq!(keys(row), fields, "{list}");
            assert!(row.as_object().unwrap().values().all(Value::is_number), "{row}");
        }
    };
    row("uncontended", &["p50_us", "p99_us", "pairs_per_s", "tasks"]);
    let hot = ["acquisitions_per_s", "jain", "processes", "transfers_per_s", "wait_p50_us", "wait_p99_us"];
    row("hot", &hot);
    row("held", &["bytes_per_lease", "cpu_percent", "leases"]);
    let column = |list: &str, field: &str| {
        report[list].as_array().unwrap().iter().map(|row| row[field].clone()).collect::<Vec<_>>()
    };
    assert_eq!(column("uncontended", "tasks"), [1, 16]);
    assert_eq!(column("hot", "processes"), [2, 3]);
    assert_eq!(column("held", "leases"), [50]);
    for hot in report["hot"].as_array().unwrap() {
        let jain = hot["jain"].as_f64().unwrap();
        let least = 1.0 / hot["processes"].as_f64().unwrap();
        assert!((least - 0.001..=1.0).contains(&jain), "{hot}");
        assert!(hot["transfers_per_s"].as_f64() < hot["acquisitions_per_s"].as_f64(), "{hot}");
    }
}

const SHORT: &str = "bench --json --tasks 1,16 --processes 2,3 --leases 50 --seconds 0.5";

#[test]
fn one_object_is_printed_and_nothing_stays_in_a_redis() {
    let users = format!("user default off\nuser {} on >{} {}", shared::USER, shared::PASSWORD, shared::ACL_RULES);
    let server = Redis::builder().users(&users).login(shared::USER, shared::PASSWORD).start();
    let store = Store::on(server.url());
    let report = store.tenure(SHORT).exits(0);
    assert_eq!(report.stderr, "");
    assert_eq!(report.text().lines().count(), 1);
    assert_shape(&report.json(), &tenure::redacted(server.url()));
    assert!(!report.text().contains(shared::PASSWORD) && report.text().contains(shared::USER));
    eventually("nobody listens", || leftovers(&server).iter().all(|left| !left.starts_with("channel")));
    assert_eq!(leftovers(&server), Vec::<String>::new());
}

#[test]
fn a_password_is_not_seen_in_the_process_list() {
    let server = Redis::builder().users("user default on >s3same ~* &* +@all").login("default", "s3same").start();
    for phase in PHASES {
        let (run, workers) = start(&Store::on(server.url()), phase);
        for pid in workers.iter().chain([&run.pid]) {
            let list = fs::read_to_string(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap();
            assert!(list.contains("bench") && !list.contains("s3same"), "{list}");
        }
        run.signal(Signal::INT);
        run.wait().exits(130);
    }
}

#[test]
fn the_same_number_twice_is_measured_twice() {
    let report = Store::new().tenure("bench --json --tasks 0 --processes 2,2 --leases 0 --seconds 0.2").exits(0).json();
    assert_eq!(report["hot"].as_array().unwrap().len(), 2, "{report}");
}

#[test]
fn nothing_stays_in_a_file() {
    let store = Store::new();
    assert_shape(&store.tenure(SHORT).exits(0).json(), &store.url());
    assert_eq!(store.tenure("ls --json").exits(0).json(), json!([]));
}

#[test]
fn people_get_tables_and_what_is_left_out_has_none() {
    let store = Store::new();
    let text = store.tenure("bench --tasks 2 --processes 0 --leases 0 --seconds 0.5").exits(0).text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], [store.url().as_str(), ""], "{text}");
    assert!(lines[2].starts_with("UNCONTENDED") && lines[3].starts_with("2 tasks"), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
}

#[test]
fn a_store_in_one_process_has_no_hot_name() {
    let store = Store::on("memory:");
    let done = store.tenure("bench --json --tasks 1 --leases 0 --seconds 0.5").exits(0).says("no other processes");
    assert_eq!(done.json()["hot"], json!([]));
    assert!(serde_json::from_str::<Value>(&done.stderr).unwrap()["warning"].is_string());
    // Who did not ask for it is not told.
    let done = store.tenure("bench --json --tasks 1 --processes 0 --leases 0 --seconds 0.5").exits(0);
    assert_eq!(done.stderr, "");
}

#[test]
fn a_store_that_is_not_there_is_69() {
    let server = Redis::start();
    let store = Store::on(server.url());
    drop(server);
    store.tenure("bench --quick").exits(69);
}

#[test]
fn a_signal_ends_it_with_every_lock_and_every_process() {
    for phase in PHASES {
        for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
            let store = Store::new();
            let (run, workers) = start(&store, phase);
            run.signal(signal);
            let done = run.wait().exits(code).says("every lock was released");
            assert!(done.stdout.is_empty(), "{done:?}");
            assert_gone(&workers);
            assert_eq!(in_use(&store), Vec::<Value>::new(), "{phase}");
        }
    }
}

#[test]
fn a_signal_leaves_nothing_in_a_redis() {
    for phase in PHASES {
        let server = Redis::start();
        let (run, workers) = start(&Store::on(server.url()), phase);
        run.signal(Signal::INT);
        run.wait().exits(130).says("every lock was released");
        assert_gone(&workers);
        eventually("nobody listens", || leftovers(&server).iter().all(|left| !left.starts_with("channel")));
        assert_eq!(leftovers(&server), Vec::<String>::new(), "{phase}");
    }
}

#[test]
fn a_worker_that_dies_is_named_and_the_others_end() {
    let server = Redis::start();
    for store in [Store::new(), Store::on(server.url())] {
        let (run, _) = start(&store, PHASES[1]);
        eventually("all are there", || workers(&run).len() == 3);
        let workers = workers(&run);
        kill_process(workers[1], Signal::KILL).unwrap();
        run.wait().exits(69).says("worker 2 of 3: ended before its time: signal: 9").says("every lock was released");
        assert_gone(&workers);
        assert_eq!(in_use(&store), Vec::<Value>::new());
    }
}

#[test]
fn workers_end_with_whoever_started_them() {
    for phase in PHASES {
        let store = Store::new();
        let (run, workers) = start(&store, phase);
        run.signal(Signal::KILL);
        run.wait().exits(-9);
        eventually("no worker is left", || !workers.iter().any(|worker| is_alive(*worker)));
        assert_eq!(in_use(&store), Vec::<Value>::new(), "{phase}");
    }
}

#[test]
fn the_help_says_what_it_does_to_a_store() {
    let help = done(&mut crate::support::bare(&["bench", "--help"])).exits(0).text();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["do not run it at the peak", "about a minute", "--json: {\"store\"", "Examples:", "Exit codes:"] {
        assert!(help.contains(part), "{part:?} is not in {help}");
    }
}
