//! Redis is killed under many leases: every holder is told, and none holds on.
//!
//! That nobody is told after its deadline is held by tenure's own tests on a driven clock. On a real clock it is a figure of the report, and a
//! test of the night: a machine that stands still for some milliseconds makes anybody late.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tenure_load::order::{Outage, OutageResult, Target};
use tenure_load::{TenureLocker, outage};
use tenure_testkit::servers::Redis;

/// Kills a server under so many leases, all of which are waited for.
async fn kill_under(leases: usize, ttl: Duration) -> OutageResult {
    let server = Redis::start();
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap();
    let target = Target { peer: "tenure".into(), store: "redis".into(), urls: vec![server.url().to_owned()], ttl_ms };
    let locker = TenureLocker::connect(&target).await.unwrap();
    let order = Outage { target, leases, watched: leases, prefix: "outage".into() };
    let dead = async {
        tokio::time::sleep(ttl / 2).await;
        server.kill();
    };
    outage::run(&locker, &order, || {}, dead).await.unwrap()
}

fn all_told(result: &OutageResult, leases: usize) {
    assert_eq!((result.leases, result.watched, result.held), (leases, leases, 0), "{result:?}");
}

#[tokio::test]
async fn each_holder_of_two_thousand_is_told() {
    let result = kill_under(2_000, Duration::from_secs(3)).await;
    all_told(&result, 2_000);
}

#[tokio::test]
#[ignore = "night: 100,000 leases take half a minute"]
async fn no_holder_of_a_hundred_thousand_is_told_after_its_deadline() {
    let result = kill_under(100_000, Duration::from_secs(10)).await;
    all_told(&result, 100_000);
    // What the machine's other work took from us is not ours to answer for.
    assert!(result.late_max_ms <= result.cpu_wait_ms, "{result:?}");
    println!("{result:?}");
}
