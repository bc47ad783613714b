//! What was left behind is found.

use tenure_testkit::servers::{Redis, leftovers, shared, without_expiry};

use crate::connection::Connection;

#[test]
fn keys_of_all_databases_and_channels_are_found() {
    let redis = Redis::start();
    for (database, command) in [
        ("0", "set tenure:last 9"),
        ("0", "set tenure:free f1 px 60000"),
        ("0", "set tenure:held h1 px 60000"),
        ("0", "set other:key 1"),
        ("3", "set tenure:free f1"),
        ("15", "hset tenure:queue f f"),
        ("15", "set tenure:last:x 1"),
        ("0", "set tenure:{:x}memo m"),
    ] {
        let command: Vec<&str> = ["-n", database].into_iter().chain(command.split(' ')).collect();
        redis.cli(&command);
    }
    redis.cli(&["set", "tenure:two\nlines and spaces", "h"]);
    let mut listener = Connection::to(&redis.address()).unwrap();
    assert_eq!(listener.ask("SUBSCRIBE tenure:news other:news").unwrap(), "*3");

    let mut found = leftovers(&redis);
    found.sort();
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(found[0], "channel tenure:news");
    assert!(found[1].starts_with("tenure:held (string in database 0, expires in "), "{found:?}");
    assert_eq!(found[2], "tenure:last:x (string in database 15, never expires)");
    assert_eq!(found[3], "tenure:queue (hash in database 15, never expires)");
    assert_eq!(found[4], r"tenure:two\x0alines and spaces (string in database 0, never expires)");

    let mut found = without_expiry(&redis);
    found.sort();
    assert_eq!(found.len(), 5, "{found:?}");
    assert_eq!(found[0], "tenure:free (string in database 3, never expires)");
    assert_eq!(found[1], "tenure:last (string in database 0, never expires)");
}

#[test]
fn servers_with_users_and_nodes_of_a_cluster_can_be_asked() {
    let redis = shared::tls();
    redis.cli(&["-n", "3", "set", "tenure:left", "h", "px", "60000"]);
    assert!(leftovers(redis).iter().any(|left| left.starts_with("tenure:left (string in database 3, expires")));
    let cluster = shared::cluster();
    let master = cluster.master_of("tenure:left");
    master.cli(&["set", "tenure:left", "h", "px", "60000"]);
    assert_eq!(leftovers(master).len(), 1);
    assert_eq!(without_expiry(master), [""; 0]);
}
