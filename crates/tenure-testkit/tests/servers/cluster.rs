//! A Redis Cluster.

use tenure_testkit::servers::{Cluster, Redis, shared, wait_until};

/// What a node says of a key, seen from a client that follows no redirection.
fn get(node: &Redis, key: &str) -> String {
    node.cli(&["get", key])
}

fn another_master<'a>(cluster: &'a Cluster, than: &Redis) -> &'a Redis {
    let is_master = |node: &&Redis| node.cli(&["role"]).starts_with("master");
    cluster.nodes().iter().filter(is_master).find(|node| node.port() != than.port()).unwrap()
}

#[test]
fn every_key_has_a_master_and_every_master_a_replica() {
    let cluster = shared::cluster();
    let ports: Vec<String> = cluster.nodes().iter().take(3).map(|node| node.port().to_string()).collect();
    assert_eq!(cluster.url(), format!("redis+cluster://127.0.0.1:{}", ports.join(",127.0.0.1:")));
    assert_eq!((cluster.nodes().len(), cluster.slot_of("foo")), (6, 12182));
    for key in ["a", "b", "c", "{x}y", "{x}z"] {
        let master = cluster.master_of(key);
        assert_eq!(master.cli(&["set", key, "1", "px", "60000"]), "OK");
        let replica = cluster.replica_of(master);
        assert_eq!(get(replica, key), format!("MOVED {} {}", cluster.slot_of(key), master.address()));
        assert_eq!(master.cli(&["wait", "1", "60000"]), "1");
    }
}

#[test]
fn a_slot_migrates_key_by_key() {
    let cluster = Cluster::start();
    let slot = cluster.slot_of("{x}");
    let from = cluster.master_of("{x}");
    let to = another_master(&cluster, from);
    // More than go at once.
    for number in 0..150 {
        assert_eq!(from.cli(&["set", &format!("{{x}}{number}"), "1"]), "OK");
    }

    cluster.begin_migration(slot, from, to);
    assert_eq!(get(from, "{x}7"), "1", "still here");
    assert_eq!(get(from, "{x}absent"), format!("ASK {slot} {}", to.address()));
    assert_eq!(cluster.master_of("{x}").port(), from.port());

    assert_eq!(cluster.move_keys(slot, from, to), 150);
    assert_eq!(get(from, "{x}7"), format!("ASK {slot} {}", to.address()));
    assert_eq!(get(to, "{x}7"), format!("MOVED {slot} {}", from.address()));

    cluster.end_migration(slot, from, to);
    assert_eq!(get(to, "{x}7"), "1");
    assert_eq!(get(from, "{x}7"), format!("MOVED {slot} {}", to.address()));
    assert_eq!(cluster.master_of("{x}").port(), to.port());

    cluster.migrate_slot(slot, to, from);
    assert_eq!(get(from, "{x}149"), "1");
    cluster.wait_until_whole();
}

#[test]
fn a_master_that_is_killed_is_replaced_by_its_replica() {
    let cluster = Cluster::hasty();
    let old = cluster.master_of("a");
    let replica = cluster.replica_of(old);
    assert_eq!(old.cli(&["set", "a", "1"]), "OK");
    assert_eq!(old.cli(&["wait", "1", "60000"]), "1");
    old.kill();
    wait_until("the replica is the master", || replica.cli(&["role"]).starts_with("master"));
    wait_until("it serves", || get(replica, "a") == "1");
    assert_eq!(cluster.master_of("a").port(), replica.port());
    old.restart();
    cluster.wait_until_whole();
    assert_eq!(cluster.replica_of(replica).port(), old.port());
    assert_eq!(cluster.master_of("a").port(), replica.port());
}
