//! Connections that end, hang, or lose what they carry; and a server that stands still.

use std::sync::Arc;
use std::time::Duration;

use tenure::backends::redis::RedisBackend;
use tenure::clock::Clock as _;
use tenure::{Certainty, ErrorKind, Loss, Tenure};
use tenure_testkit::ManualClock;
use tenure_testkit::servers::Proxy;

use crate::relay::Relay;
use crate::support::{LONG, Server, granted, patiently, refusal, renewed, until, waiters, waiting};

/// Renewed often, lost late.
const TTL: Duration = Duration::from_secs(9);

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_killed_cost_nobody_a_lease_or_a_place() {
    for (commands, messages) in [(true, false), (false, true), (true, true)] {
        let server = Server::start();
        let (a, b) = (server.client().await, server.client().await);
        let held = a.lock("x").ttl(TTL).acquire().await.unwrap();
        let waits = waiting(&b.lock("x").ttl(LONG));
        let before = waiters(&a, "x", 1).await.waiters[0].claim;
        let kill = || {
            for (yes, for_messages) in [(commands, false), (messages, true)] {
                if yes {
                    assert_eq!(server.connections(for_messages).len(), 2);
                    server.kill_connections(for_messages);
                }
            }
        };
        kill();
        renewed(&held).await;
        assert_eq!(waiters(&a, "x", 1).await.waiters[0].claim, before);
        until("both listen again", async || server.connections(true).len() == 2).await;
        until("both ask again", async || {
            a.inspect("x").await.unwrap();
            b.inspect("x").await.unwrap();
            server.connections(false).len() == 2
        })
        .await;
        kill();
        held.release().await.unwrap();
        granted(waits).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hung_server_that_comes_back_in_time_costs_nothing() {
    let server = Server::start();
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let short = a.lock("short").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    let before = waiters(&a, "x", 1).await.waiters[0].claim;
    server.pause();
    // Whoever asks now is told that nobody knows what came of it; nothing may come of it later.
    let error = refusal(&a.lock("y").ttl(LONG)).await;
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown));
    assert!(error.is_retryable());
    server.resume();
    renewed(&short).await;
    assert_eq!(waiters(&a, "x", 1).await.waiters[0].claim, before);
    held.release().await.unwrap();
    granted(waits).await.release().await.unwrap();
    short.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_lost_though_the_server_hangs_and_the_next_is_granted_when_it_comes_back() {
    let server = Server::start();
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 1).await;
    server.pause();
    assert_eq!(patiently("the loss", held.lost()).await, Loss::Expired);
    assert!(!held.is_held());
    assert!(held.renewal_failure().is_none_or(|failure| !failure.is_empty()));
    server.resume();
    let next = granted(waits).await;
    assert!(next.token() > held.token());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_on_a_hung_server_is_lost_just_before_its_deadline() {
    let server = Server::start();
    let clock = Arc::new(ManualClock::new());
    let backend = RedisBackend::open(server.url(), clock.clone()).await.unwrap();
    let client = Tenure::over(Arc::new(backend), clock.clone(), "a");
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let deadline = held.deadline();
    server.pause();
    clock.advance(deadline.since(clock.now()) - Duration::from_millis(3));
    assert!(tokio::time::timeout(Duration::from_millis(300), held.lost()).await.is_err());
    assert!(held.is_held());
    clock.advance(Duration::from_millis(1));
    assert_eq!(patiently("the loss", held.lost()).await, Loss::Expired);
    assert!(clock.now() < deadline, "told before it is so");
    server.resume();
    // Its ttl is far away on the server: it is gone since the client ended it.
    until("it is ended", async || {
        clock.advance(Duration::from_millis(50));
        server.cli(&["exists", "tenure:{:x}"]) == "0"
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_a_black_hole_is_left_for_a_fresh_one() {
    let server = Server::start();
    let relay = Relay::to(&server.address());
    let a = server.client().await;
    let b = Tenure::connect(relay.url()).await.unwrap();
    let held = b.lock("b").ttl(TTL).acquire().await.unwrap();
    let other = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 1).await;
    relay.swallow_connections();
    renewed(&held).await;
    patiently("a grant", b.lock("y").ttl(LONG).acquire()).await.unwrap().release().await.unwrap();
    other.release().await.unwrap();
    granted(waits).await.release().await.unwrap();
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_network_is_waited_out() {
    let server = Server::start();
    let proxy = Proxy::to(server.address()).await;
    let client = Tenure::connect(format!("redis://{}", proxy.address())).await.unwrap();
    let held = client.lock("x").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    proxy.freeze();
    let connections = proxy.connections();
    let waits = waiting(&client.lock("y").ttl(LONG));
    // It has given the old connection up.
    until("a fresh connection", async || proxy.connections() > connections).await;
    proxy.thaw();
    granted(waits).await.release().await.unwrap();
    renewed(&held).await;
    held.release().await.unwrap();
}

/// A client whose next replies are lost, with their connection, once `applied` is so in the server.
async fn lose_replies(proxy: &Proxy, mut applied: impl FnMut() -> bool) {
    until("the request is applied", async || applied()).await;
    proxy.cut();
    proxy.drop_replies(false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_reply_is_lost_is_made_once() {
    let server = Server::start();
    let proxy = Proxy::to(server.address()).await;
    let (a, b) = (server.client().await, Tenure::connect(format!("redis://{}", proxy.address())).await.unwrap());
    // So that the server knows the script: its answer that it does not would be lost, too.
    a.lock("x").acquire().await.unwrap().release().await.unwrap();
    proxy.drop_replies(true);
    let waits = waiting(&b.lock("x").ttl(LONG));
    lose_replies(&proxy, || server.cli(&["exists", "tenure:{:x}"]) == "1").await;
    let before = a.inspect("x").await.unwrap().holders[0].claims.clone();
    let guard = granted(waits).await;
    let view = a.inspect("x").await.unwrap();
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    assert_eq!(view.holders[0].claims, before, "granted once");
    assert_eq!((before[0].0, view.holders[0].token), (guard.claim_id(), guard.token()));

    // The same for a place in the queue.
    let c = server.client().await;
    let held = c.lock("q").ttl(LONG).acquire().await.unwrap();
    proxy.drop_replies(true);
    let waits = waiting(&b.lock("q").ttl(LONG));
    lose_replies(&proxy, || server.cli(&["exists", "tenure:{:q}order"]) == "1").await;
    until("the retry was answered", async || {
        a.inspect("q").await.unwrap().waiters.len() == 1 && server.connections(false).len() == 3
    })
    .await;
    held.release().await.unwrap();
    let next = granted(waits).await;
    let view = a.inspect("q").await.unwrap();
    assert_eq!((view.holders.len(), view.waiters.len()), (1, 0), "{view:?}");
    next.release().await.unwrap();

    // A release whose reply is lost is one that was made.
    proxy.drop_replies(true);
    let releasing = tokio::spawn(guard.release());
    lose_replies(&proxy, || server.cli(&["exists", "tenure:{:x}"]) == "0").await;
    patiently("the release", releasing).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_may_be_cut_at_every_step() {
    let server = Server::start();
    let relay = Relay::to(&server.address());
    let other = server.client().await;
    let mut cut_at = 1;
    loop {
        let client = Tenure::connect(relay.url()).await.unwrap();
        let cuts = relay.cuts();
        relay.cut_after(cut_at);
        let held = patiently("a grant", client.lock("x").ttl(LONG).acquire()).await.unwrap();
        let waits = waiting(&other.lock("x").ttl(LONG));
        waiters(&other, "x", 1).await;
        held.release().await.unwrap();
        let held = granted(waits).await;
        let waits = waiting(&client.lock("x").ttl(LONG));
        waiters(&other, "x", 1).await;
        held.release().await.unwrap();
        drop(granted(waits).await);
        relay.cut_after(0);
        patiently("the end", client.close()).await.unwrap();
        if relay.cuts() == cuts {
            break;
        }
        cut_at += 1;
    }
    // A claim, a release, a claim: each asked and answered; and a message.
    assert!(cut_at > 7, "{cut_at} steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn connecting_may_be_cut_at_every_step() {
    let server = Server::start();
    let relay = Relay::to(&server.address());
    let mut cut_at = 1;
    loop {
        let cuts = relay.cuts();
        relay.cut_after(cut_at);
        let connected = patiently("an answer", Tenure::connect(relay.url())).await;
        relay.cut_after(0);
        match connected {
            Ok(client) => {
                patiently("a grant", client.lock("x").acquire()).await.unwrap().release().await.unwrap();
            }
            Err(error) => {
                assert_eq!(
                    (error.kind(), error.certainty()),
                    (ErrorKind::Unavailable, Certainty::NotApplied),
                    "{error}"
                );
                assert!(error.is_retryable());
            }
        }
        if relay.cuts() == cuts {
            break;
        }
        cut_at += 1;
    }
    // A greeting, a first command and a subscription.
    assert!(cut_at > 4, "{cut_at} steps");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_server_is_waited_for() {
    let server = Server::start();
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 1).await;
    assert_eq!(server.cli(&["client", "pause", "600000", "write"]), "OK");
    let asking = waiting(&a.lock("y").ttl(LONG));
    let error = refusal(&b.lock("z").ttl(LONG)).await;
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown));
    assert_eq!(server.cli(&["client", "unpause"]), "OK");
    granted(asking).await.release().await.unwrap();
    renewed(&held).await;
    held.release().await.unwrap();
    granted(waits).await.release().await.unwrap();
}
