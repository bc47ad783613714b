//! A fleet: servers that share nothing, each with a bad network of its own.

use std::io::ErrorKind;
use std::time::Duration;

use tenure_testkit::servers::{Fleet, ProxiedFleet, Redis, shared, wait_until};

use crate::connection::Connection;

fn values(nodes: &[Redis], key: &str) -> Vec<String> {
    nodes.iter().map(|node| node.cli(&["get", key])).collect()
}

/// A connection to each node through its proxy, which has answered.
fn connections(fleet: &ProxiedFleet) -> Vec<Connection> {
    let all = fleet.proxies().iter().map(|proxy| Connection::to(&proxy.address()).unwrap());
    let mut all: Vec<Connection> = all.collect();
    for connection in &mut all {
        assert_eq!(connection.ask("PING").unwrap(), "+PONG");
    }
    all
}

#[test]
fn nodes_share_nothing_and_forget_on_restart() {
    let fleet = Fleet::start(3);
    let [a, b, c] = fleet.nodes() else { panic!("three nodes") };
    assert_eq!(fleet.url(), format!("redlock://{},{},{}", a.address(), b.address(), c.address()));
    assert_eq!(fleet.url_with("layout=plain"), format!("{}?layout=plain", fleet.url()));
    a.cli(&["set", "tenure:x", "h"]);
    assert_eq!(values(fleet.nodes(), "tenure:x"), ["h", "", ""]);
    let left = fleet.leftovers();
    assert_eq!(left, [format!("{}: tenure:x (string in database 0, never expires)", a.address())]);
    a.restart();
    assert_eq!(fleet.leftovers(), [""; 0]);
}

#[test]
fn a_durable_fleet_remembers_what_it_has_answered() {
    let fleet = Fleet::durable(2);
    for node in fleet.nodes() {
        let mut connection = Connection::to(&node.address()).unwrap();
        assert_eq!(connection.ask("SET x 1").unwrap(), "+OK");
        node.restart();
    }
    assert_eq!(values(fleet.nodes(), "x"), ["1", "1"]);
}

#[test]
fn each_node_can_be_different() {
    let fleet = Fleet::builder(3)
        .each(|node| node.config("maxmemory", "64mb"))
        .node(1, |node| node.shifted_clock().config("maxmemory", "32mb"))
        .start();
    let memory = |node: &Redis| node.cli(&["config", "get", "maxmemory"]).lines().nth(1).unwrap().to_owned();
    assert_eq!(fleet.nodes().iter().map(memory).collect::<Vec<_>>(), ["67108864", "33554432", "67108864"]);
    fleet.nodes()[1].shift_clock(60);
    let ahead: Vec<i64> = fleet.nodes().iter().map(Redis::clock_ahead).collect();
    assert!(ahead[1] > 57 && ahead[0].abs() <= 2 && ahead[2].abs() <= 2, "{ahead:?}");
}

#[test]
fn a_fleet_with_tls_and_users_says_so_in_its_url() {
    let users = "user default off\nuser me on >p@ss ~* &* +@all";
    let fleet = Fleet::builder(2).each(|node| node.tls().users(users).login("me", "p@ss").database(3)).start();
    let url = fleet.url_with("node_timeout=1s");
    let addresses = [fleet.nodes()[0].address(), fleet.nodes()[1].address()].join(",");
    let rest = url.strip_prefix(&format!("redlock://me:p%40ss@{addresses}/3?tls=true&ca=")).unwrap();
    let ca = rest.strip_suffix("&node_timeout=1s").unwrap();
    for node in fleet.nodes() {
        // The last of an option counts: all nodes are known by this one file.
        assert_eq!(node.cli(&["--cacert", ca, "ping"]), "PONG");
    }
}

#[test]
fn the_shared_fleet_is_one() {
    assert_eq!(shared::fleet().nodes().len(), 5);
    assert!(std::ptr::eq(shared::fleet(), shared::fleet()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_node_has_its_own_fault() {
    let fleet = Fleet::proxied(5).await;
    let addresses: Vec<String> = fleet.proxies().iter().map(|proxy| proxy.address()).collect();
    assert_eq!(fleet.url_with("layout=plain"), format!("redlock://{}?layout=plain", addresses.join(",")));
    let mut connections = connections(&fleet);
    let [refusing, hung, one_way, slow, _well] = fleet.proxies() else { panic!("five proxies") };
    refusing.refuse(true).await;
    refusing.cut();
    hung.freeze();
    one_way.drop_replies(true);
    slow.delay_replies(Duration::from_secs(3600));

    assert_eq!(Connection::to(&refusing.address()).err().unwrap().kind(), ErrorKind::ConnectionRefused);
    for connection in &mut connections[1..4] {
        connection.say("INCR x").unwrap();
    }
    assert_eq!(connections[4].ask("INCR x").unwrap(), ":1");
    wait_until("requests have arrived where they pass", || values(fleet.nodes(), "x") == ["", "", "1", "1", "1"]);
    assert!(connections[1..4].iter_mut().all(Connection::hears_nothing));

    fleet.heal().await;
    assert_eq!(Connection::to(&refusing.address()).unwrap().ask("INCR x").unwrap(), ":1");
    assert_eq!(connections[1].hear().unwrap(), ":1", "held up, not lost");
    assert_eq!(connections[2].ask("INCR x").unwrap(), ":2", "its first reply is lost");
    assert_eq!(connections[3].hear().unwrap(), ":1", "late, not lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_request_takes_effect_late() {
    let fleet = Fleet::proxied(1).await;
    let mut connection = connections(&fleet).remove(0);
    fleet.proxies()[0].delay_requests(Duration::from_secs(3600));
    connection.say("INCR x").unwrap();
    assert!(connection.hears_nothing());
    assert_eq!(values(fleet.nodes(), "x"), [""]);
    fleet.proxies()[0].delay(Duration::ZERO);
    assert_eq!(connection.hear().unwrap(), ":1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hung_node_hangs_also_if_it_is_down() {
    let fleet = Fleet::proxied(1).await;
    let proxy = &fleet.proxies()[0];
    proxy.freeze();
    fleet.nodes()[0].kill();
    let mut connection = Connection::to(&proxy.address()).unwrap();
    assert!(connection.hears_nothing());
    proxy.thaw();
    assert_eq!(connection.hear().unwrap_or_default(), "");
}
