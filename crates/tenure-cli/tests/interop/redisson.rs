//! Redisson's `RLock`, and `layout=redisson`.

use std::time::Duration;

use serde_json::json;

use crate::cases::{LONG, NOW, every_case, is_foreign_in};
use crate::clients::Client;
use crate::command::eventually;
use crate::scene::{Scene, with};

every_case!(Client::Redisson);

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn its_lock_is_foreign_to_the_plain_layout() {
    is_foreign_in(Client::Redisson, "plain");
}

/// It looks again on its own only when the lease that it was told of is over, a minute later.
#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn a_waiter_in_lock_is_woken_by_tenures_release() {
    with(Client::Redisson, |scene: &Scene| {
        let mut driver = scene.driver();
        scene.tenure("acquire x --ttl 60s --no-wait --owner a").exits(0);
        driver.send(&json!({"op": "acquire", "key": "x", "ttl_ms": 30_000}));
        listens(scene);
        scene.tenure("release x --owner a").exits(0);
        assert!(driver.acquired(Duration::from_secs(10)));
        driver.must("held");
    });
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn a_waiter_in_lock_is_woken_by_the_end_of_a_run() {
    with(Client::Redisson, |scene: &Scene| {
        let mut driver = scene.driver();
        let run = scene.holding_run("60s");
        driver.send(&json!({"op": "acquire", "key": "x", "ttl_ms": 30_000}));
        listens(scene);
        run.finish();
        assert!(driver.acquired(Duration::from_secs(10)));
    });
}

/// Waits until somebody listens on the lock's channel.
fn listens(scene: &Scene) {
    const CHANNEL: &str = "redisson_lock__channel:{x}";
    eventually("it listens", || {
        let counted = scene.redis().cli(&["pubsub", "numsub", CHANNEL]);
        counted.lines().last().is_some_and(|listeners| listeners != "0")
    });
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn one_unlock_of_two_keeps_tenure_out() {
    with(Client::Redisson, |scene: &Scene| {
        let mut driver = scene.driver();
        assert!(driver.acquire("x", LONG, NOW));
        driver.must("lock_again");
        scene.tenure("acquire x --no-wait --owner a").exits(75);
        driver.must("unlock_once");
        scene.tenure("acquire x --no-wait --owner a").exits(75);
        scene.foreign_holder("redisson", "x");
        driver.must("unlock_once");
        scene.tenure("acquire x --no-wait --owner a").exits(0);
    });
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn what_its_watchdog_keeps_keeps_tenure_out() {
    with(Client::Redisson, |scene: &Scene| {
        let mut driver = scene.driver();
        driver.send(&json!({"op": "acquire", "key": "x"}));
        assert!(driver.acquired(LONG));
        scene.tenure("acquire x --wait 2s --owner a").exits(75);
        driver.must("release");
        scene.tenure("acquire x --no-wait --owner a").exits(0);
    });
}
