//! Go's `concurrency.Mutex` on etcd: it stands in the same queues as tenure, so all take turns in the order they came.

use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;
use tenure_testkit::servers::Etcd;

use crate::clients::Client;
use crate::command::{Done, Running, eventually, tenure};
use crate::counter::{Counter, with_driver, with_tenure_acquire, with_tenure_run};
use crate::driver::Driver;

const LONG: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;
const SHORT: Duration = Duration::from_millis(500);

/// One cluster for all tests of this file; each has names of its own.
fn etcd() -> &'static Etcd {
    static ETCD: OnceLock<Etcd> = OnceLock::new();
    ETCD.get_or_init(Etcd::start)
}

fn driver() -> Driver {
    let urls: Vec<String> = (0..etcd().size()).map(|member| format!("etcd://{}", etcd().address(member))).collect();
    Driver::start(Client::EtcdMutex, &urls.iter().map(String::as_str).collect::<Vec<_>>())
}

fn run(args: &str) -> Done {
    Running::of(&mut tenure(&etcd().url(), &args.split_whitespace().collect::<Vec<_>>())).wait()
}

fn show(name: &str) -> Value {
    run(&format!("show {name} --json")).exits(0).json()
}

fn until_waiting(name: &str, count: usize) {
    eventually("they wait", || show(name)["waiters"].as_array().is_some_and(|waiters| waiters.len() == count));
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn a_client_that_holds_keeps_tenure_out() {
    let mut driver = driver();
    assert!(driver.acquire("out", LONG, NOW));
    run("acquire out --ttl 30s --no-wait --owner a").exits(75);
    run("acquire out --ttl 30s --wait 1s --owner a").exits(75);
    run("run out --no-wait -- true").exits(75);
    let holder = &show("out")["holders"][0];
    assert!(holder["owner"].is_null() && holder["expires_in_ms"].as_u64().unwrap() <= 30_000, "{holder}");
    run("release out --owner a").exits(1);
    driver.must("held");
    driver.must("release");
    run("run out --no-wait -- true").exits(0);
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn what_tenure_holds_keeps_the_client_out_until_it_is_released() {
    let mut driver = driver();
    run("acquire in --ttl 60s --no-wait --owner a").exits(0);
    assert!(!driver.acquire("in", LONG, NOW));
    assert!(!driver.acquire("in", LONG, SHORT));
    driver.send_acquire("in", LONG, LONG);
    until_waiting("in", 1);
    run("release in --owner a").exits(0);
    assert!(driver.acquired(LONG));
    driver.must("held");
    driver.must("release");
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn what_tenure_lets_expire_the_client_acquires() {
    let mut driver = driver();
    run("acquire expires --ttl 2s --no-wait --owner a").exits(0);
    assert!(driver.acquire("expires", LONG, LONG));
    run("release expires --owner a").exits(1);
    driver.must("held");
    driver.must("release");
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn all_take_turns_in_the_order_they_came() {
    let (mut first, mut last) = (driver(), driver());
    assert!(first.acquire("turns", LONG, NOW));
    let between = Running::of(&mut tenure(&etcd().url(), &["run", "turns", "--", "sh", "-c", "sleep 0.2; echo ran"]));
    until_waiting("turns", 1);
    last.send_acquire("turns", LONG, LONG);
    until_waiting("turns", 2);
    first.must("release");
    assert!(last.acquired(LONG));
    assert_eq!(between.wait().exits(0).stdout, "ran", "before the last one");
    last.must("release");
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn no_update_is_lost() {
    const ROUNDS: u32 = 30;
    let counter = Counter::new();
    let (mut one, mut other) = (driver(), driver());
    let url = etcd().url();
    std::thread::scope(|threads| {
        threads.spawn(|| with_driver(&counter, &mut one, ROUNDS));
        threads.spawn(|| with_driver(&counter, &mut other, ROUNDS));
        threads.spawn(|| with_tenure_run(&counter, &url, ROUNDS));
        threads.spawn(|| with_tenure_acquire(&counter, &url, ROUNDS));
    });
    assert_eq!(counter.read(), 4 * ROUNDS);
}
