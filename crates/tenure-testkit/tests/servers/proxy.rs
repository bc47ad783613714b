//! The bad network bites.

use std::time::Duration;

use tenure_testkit::servers::{Proxy, Redis, wait_until};

use crate::connection::Connection;

async fn proxied() -> (Redis, Proxy, Connection) {
    let redis = Redis::start();
    let proxy = Proxy::to(redis.address()).await;
    let mut connection = Connection::to(&proxy.address()).unwrap();
    assert_eq!(connection.ask("PING").unwrap(), "+PONG");
    (redis, proxy, connection)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_passes_while_it_is_frozen() {
    let (redis, proxy, mut connection) = proxied().await;
    proxy.freeze();
    connection.say("INCR a").unwrap();
    assert!(connection.hears_nothing());
    assert_eq!(redis.cli(&["exists", "a"]), "0");
    let mut another = Connection::to(&proxy.address()).unwrap();
    another.say("PING").unwrap();
    assert!(another.hears_nothing(), "connected, and no more");
    redis.kill();
    assert!(connection.hears_nothing(), "the end of the server is not seen either");
    redis.restart();
    proxy.thaw();
    assert_eq!(connection.hear().unwrap_or_default(), "");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_frozen_is_not_lost() {
    let (redis, proxy, mut connection) = proxied().await;
    proxy.freeze();
    connection.say("INCR a").unwrap();
    connection.say("INCR a").unwrap();
    assert!(connection.hears_nothing());
    proxy.thaw();
    assert_eq!((connection.hear().unwrap().as_str(), connection.hear().unwrap().as_str()), (":1", ":2"));
    assert_eq!(redis.cli(&["get", "a"]), "2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_vanish_and_requests_do_not() {
    let (redis, proxy, mut connection) = proxied().await;
    proxy.drop_replies(true);
    connection.say("INCR a").unwrap();
    wait_until("the request has arrived", || redis.cli(&["get", "a"]) == "1");
    assert!(connection.hears_nothing());
    proxy.drop_replies(false);
    assert_eq!(connection.ask("INCR a").unwrap(), ":2", "the first reply never comes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_cut_and_can_be_made_again() {
    let (redis, proxy, mut connection) = proxied().await;
    proxy.freeze();
    connection.say("INCR a").unwrap();
    assert!(connection.hears_nothing());
    proxy.cut();
    assert_eq!(connection.hear().unwrap_or_default(), "");
    proxy.thaw();
    assert_eq!(Connection::to(&proxy.address()).unwrap().ask("PING").unwrap(), "+PONG");
    assert_eq!(redis.cli(&["exists", "a"]), "0", "what was on its way is lost");
    assert_eq!(proxy.connections(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_are_late() {
    let (redis, proxy, mut connection) = proxied().await;
    proxy.delay(Duration::from_secs(3600));
    connection.say("INCR a").unwrap();
    assert!(connection.hears_nothing());
    assert_eq!(redis.cli(&["exists", "a"]), "0");
    proxy.delay(Duration::from_millis(20));
    assert_eq!(connection.hear().unwrap(), ":1");
    assert_eq!(connection.ask("INCR a").unwrap(), ":2");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connections_are_refused_and_old_ones_stay() {
    let (_redis, proxy, mut connection) = proxied().await;
    proxy.refuse(true).await;
    let refused = Connection::to(&proxy.address()).err().unwrap();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert_eq!(connection.ask("PING").unwrap(), "+PONG");
    proxy.refuse(false).await;
    assert_eq!(Connection::to(&proxy.address()).unwrap().ask("PING").unwrap(), "+PONG");
    assert_eq!(proxy.connections(), 2, "who was refused was not accepted");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_answers_are_held_up_and_pass_whole() {
    let (redis, _proxy, mut connection) = proxied().await;
    let (length, times) = (500_000, 64);
    redis.cli(&["setrange", "large", &(length - 1).to_string(), "x"]);
    for _ in 0..times {
        connection.say("GET large").unwrap();
    }
    // Nobody reads: what is between fills up, and holds no more than it may.
    let (mut before, mut looks_alike) = (0, 0);
    wait_until("the server has to wait", || {
        let clients = redis.cli(&["client", "list"]);
        let fields = clients.split_whitespace().filter_map(|field| field.strip_prefix("omem="));
        let waiting: usize = fields.map(|bytes| bytes.parse::<usize>().unwrap()).sum();
        looks_alike = if waiting > 0 && waiting == before { looks_alike + 1 } else { 0 };
        before = waiting;
        looks_alike == 10
    });
    for _ in 0..times {
        assert_eq!(connection.hear().unwrap(), format!("${length}"));
        assert_eq!(connection.hear().unwrap().len(), length);
    }
    connection.say("QUIT").unwrap();
    assert_eq!((connection.hear().unwrap().as_str(), connection.hear().unwrap().as_str()), ("+OK", ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_proxy_closes_everything() {
    let (redis, proxy, mut connection) = proxied().await;
    let address = proxy.address();
    proxy.freeze();
    drop(proxy);
    assert_eq!(connection.hear().unwrap_or_default(), "");
    wait_until("nobody listens", || Connection::to(&address).is_err());
    drop(redis);
}
