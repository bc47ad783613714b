//! A Redis with replicas and Sentinels.

use tenure_testkit::servers::{Redis, Sentinel, shared, wait_until};

fn role(redis: &Redis) -> String {
    redis.cli(&["role"]).lines().next().unwrap().to_owned()
}

#[test]
fn a_master_has_two_replicas_that_follow_it() {
    let sentinel = shared::sentinel();
    let ports: Vec<String> = sentinel.sentinels().iter().map(|sentinel| sentinel.port().to_string()).collect();
    let expected = format!("redis+sentinel://127.0.0.1:{}/mymaster", ports.join(",127.0.0.1:"));
    assert_eq!((sentinel.url(), ports.len()), (expected, 3));
    assert_eq!(role(sentinel.master()), "master");
    assert_eq!(sentinel.replicas().len(), 2);
    sentinel.master().cli(&["set", "followed", "1", "px", "60000"]);
    for replica in sentinel.replicas() {
        assert_eq!(role(replica), "slave");
        wait_until("the replica has it", || replica.cli(&["get", "followed"]) == "1");
    }
}

#[test]
fn a_failover_makes_another_node_the_master() {
    let sentinel = Sentinel::start();
    for _ in 0..2 {
        let old = sentinel.master();
        sentinel.failover();
        let new = sentinel.master();
        assert_ne!(new.port(), old.port());
        assert_eq!(role(new), "master");
        sentinel.wait_until_whole();
        assert_eq!(role(old), "slave");
    }
}

#[test]
fn a_master_that_is_killed_is_replaced_and_comes_back_as_a_replica() {
    let sentinel = Sentinel::start();
    let old = sentinel.master();
    old.kill();
    wait_until("there is another master", || sentinel.master().port() != old.port());
    sentinel.sentinels()[0].kill();
    wait_until("the others know, too", || sentinel.master().port() != old.port());
    sentinel.sentinels()[0].restart();
    old.restart();
    sentinel.wait_until_whole();
    assert_eq!(role(old), "slave");
    assert_eq!(sentinel.node(old.port()).pid(), old.pid());
}
