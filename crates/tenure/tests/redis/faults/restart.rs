//! A server that ends and begins again, forgets, or is still reading its data.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure::backend::Backend as _;
use tenure::{Certainty, ErrorKind, Guard, Loss, Tenure};
use tenure_testkit::servers::Proxy;

use crate::support::{
    LONG, Server, builder, granted, patiently, refusal, renewed, renewed_since, until, waiters, waiting,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_hears_at_once_that_a_restarted_server_has_forgotten_it() {
    let server = Server::start();
    let client = server.client().await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    server.restart();
    // Its next renewal is due in 200 s.
    assert_eq!(patiently("the loss", guard.lost()).await, Loss::Gone);
    assert!(!guard.is_held());
    let error = guard.release().await.unwrap_err();
    assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Gone)));
}

/// A holder and two waiters; then the server forgets everything.
async fn forgets(server: &Server, forget: impl FnOnce()) {
    let ttl = Duration::from_secs(6);
    let (a, b, c) = (server.client().await, server.client().await, server.client().await);
    let held = a.lock("x").ttl(ttl).acquire().await.unwrap();
    let trusted_until = held.deadline();
    let mut b_waits = waiting(&b.lock("x").ttl(ttl));
    waiters(&a, "x", 1).await;
    let mut c_waits = waiting(&c.lock("x").ttl(ttl));
    waiters(&a, "x", 2).await;

    forget();
    assert_eq!(patiently("the loss", held.lost()).await, Loss::Gone);
    let (first, other) = patiently("the first grant", async {
        tokio::select! {
            first = &mut b_waits => (first, c_waits),
            first = &mut c_waits => (first, b_waits),
        }
    })
    .await;
    let first = first.unwrap().unwrap();
    // The old holder might not have heard yet: nobody is let in before its lease is over.
    assert!(a.clock().now() >= trusted_until, "{:?} early", trusted_until.since(a.clock().now()));
    assert!(first.token() > held.token());
    let token = first.token();
    first.release().await.unwrap();
    let second = granted(other).await;
    assert!(second.token() > token);
    second.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_restarted_server_wait_until_the_forgotten_lease_is_over() {
    let server = Server::start();
    forgets(&server, || server.restart()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_a_flushed_server_wait_until_the_forgotten_lease_is_over() {
    let server = Server::start();
    forgets(&server, || assert_eq!(server.cli(&["flushall"]), "OK")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_waits_for_a_forgotten_lease_that_was_renewed_since_it_looked() {
    let server = Server::start();
    let proxy = Proxy::to(server.address()).await;
    let (a, b) = (Tenure::connect(format!("redis://{}", proxy.address())).await.unwrap(), server.client().await);
    let held = a.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    // Looks again when it sees the holder's lease end, or after five seconds.
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&b, "x", 1).await;
    renewed(&held).await;
    renewed(&held).await;
    // The holder does not hear that its claim is gone.
    proxy.freeze();
    assert_eq!(server.cli(&["flushall"]), "OK");
    let trusted_until = held.deadline();
    let next = granted(waits).await;
    let now = b.clock().now();
    assert!(now >= trusted_until, "two leases at once for {:?}", trusted_until.since(now));
    assert!(next.token() > held.token());
    next.release().await.unwrap();
    // Nothing of it is there to be released.
    proxy.thaw();
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_though_the_server_forgot_them() {
    let server = Server::start();
    let mut last = None;
    for round in 0..6 {
        // A new one: a client remembers what it has seen.
        let client = server.client().await;
        let guard = patiently("the grant", client.lock("x").acquire()).await.unwrap();
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await.unwrap();
        if round % 2 == 0 { server.restart() } else { assert_eq!(server.cli(&["flushall"]), "OK") }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_keeps_their_place_over_a_restart_with_an_append_only_file() {
    let server = Server::of(builder().config("appendonly", "yes").config("appendfsync", "always"));
    let (a, b, c) = (server.client().await, server.client_as("b").await, server.client_as("c").await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let b_waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 1).await;
    let c_waits = waiting(&c.lock("x").ttl(LONG));
    let claims = |view: tenure::machine::NameView| view.waiters.into_iter().map(|one| one.claim).collect::<Vec<_>>();
    let before = claims(waiters(&a, "x", 2).await);
    let deadline = held.deadline();
    server.kill();
    server.restart();
    // Long before a renewal is due by itself.
    renewed_since(&held, deadline).await;
    assert_eq!(claims(waiters(&a, "x", 2).await), before, "the same claims in the same order");
    let mut last = held.token();
    held.release().await.unwrap();
    for waits in [b_waits, c_waits] {
        let guard = granted(waits).await;
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgot_its_scripts_is_told_them_again() {
    let server = Server::start();
    let client = server.client().await;
    let flush = || assert_eq!(server.cli(&["script", "flush"]), "OK");
    flush();
    let guard = client.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    flush();
    assert_eq!(client.inspect("x").await.unwrap().holders.len(), 1);
    flush();
    renewed(&guard).await;
    flush();
    assert_eq!(client.list("").await.unwrap().len(), 1);
    flush();
    guard.release().await.unwrap();
}

/// Ends what goes on beside a test, also if that fails: else its runtime would wait for it.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Pairs of eight clients on one name, and of each on its own, while something is done to the server again and again,
/// each time when some more pairs are made: on a busy machine nothing would get done between disturbances on a
/// clock's beat.
async fn pairs_while(server: &Server, mut disturb: impl FnMut() + Send + 'static) -> usize {
    const PAIRS: usize = 150;
    const BETWEEN: usize = 20;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(server.client().await);
    }
    let stop = Stop(Arc::new(AtomicBool::new(false)));
    let made = Arc::new(AtomicUsize::new(0));
    let (stopped, seen) = (stop.0.clone(), made.clone());
    let disturbing = tokio::task::spawn_blocking(move || {
        let mut rounds = 0;
        while !stopped.load(Ordering::SeqCst) {
            if seen.load(Ordering::SeqCst) >= rounds * BETWEEN {
                disturb();
                rounds += 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        rounds
    });
    let pairs = |client: Tenure, name: String| {
        let made = made.clone();
        async move {
            let mut last = None;
            for _ in 0..PAIRS {
                let guard: Guard = client.lock(&name).ttl(LONG).acquire().await.unwrap();
                assert!(guard.token() > last && guard.is_held());
                last = guard.token();
                guard.release().await.unwrap();
                made.fetch_add(1, Ordering::SeqCst);
            }
        }
    };
    let mut tasks = Vec::new();
    for (number, client) in clients.into_iter().enumerate() {
        tasks.push(tokio::spawn(pairs(client.clone(), "shared".to_owned())));
        tasks.push(tokio::spawn(pairs(client, format!("own/{number}"))));
    }
    for task in tasks {
        patiently("all pairs", task).await.unwrap();
    }
    drop(stop);
    disturbing.await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_may_be_flushed_under_load() {
    let server = Server::start();
    let (address, port) = (server.address(), server.port().to_string());
    let rounds = pairs_while(&server, move || {
        let done = std::process::Command::new("redis-cli").args(["-p", &port, "script", "flush"]).output().unwrap();
        assert!(done.status.success(), "{address}");
    })
    .await;
    assert!(rounds > 1, "{rounds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_may_be_killed_under_load() {
    let server = Server::start();
    let port = server.port().to_string();
    let rounds = pairs_while(&server, move || {
        for kind in ["normal", "pubsub"] {
            let kill = ["-p", &port, "client", "kill", "type", kind];
            // Its own connection may be among them.
            std::process::Command::new("redis-cli").args(kill).output().unwrap();
        }
    })
    .await;
    assert!(rounds > 1, "{rounds}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_loading_is_out_of_reach_and_waited_for() {
    const KEYS: usize = 3000;
    let server =
        Server::of(builder().config("key-load-delay", "1000").config("loading-process-events-interval-bytes", "1024"));
    let client = server.client().await;
    let lock = client.lock("x").ttl(LONG);
    lock.acquire().await.unwrap().release().await.unwrap();
    let fill = format!("for i = 1, {KEYS} do redis.call('set', 'key' .. i, i) end");
    server.cli(&["eval", &fill, "0"]);
    assert_eq!(server.cli(&["save"]), "OK");
    server.start_again_without_waiting();
    until("it loads", async || {
        std::net::TcpStream::connect(server.address()).is_ok() && server.cli(&["ping"]).starts_with("LOADING")
    })
    .await;
    let waits = waiting(&lock);
    let error = Tenure::connect(server.url()).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotApplied));
    assert!(error.is_retryable() && error.to_string().contains("loading"), "{error}");
    // Refused by the server, or by a connection that broke at its end: then the outcome is unknown.
    let error = refusal(&client.lock("y")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
    assert!(server.cli(&["ping"]).starts_with("LOADING"), "too fast to see");
    server.wait();
    granted(waits).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_outlives_its_store_and_says_so() {
    let server = Server::start();
    let client = server.client().await;
    let backend =
        tenure::backends::redis::RedisBackend::open(server.url(), Arc::new(tenure::clock::SystemClock)).await.unwrap();
    server.kill();
    let error = refusal(&client.lock("x").ttl(LONG)).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.is_retryable());
    assert_eq!(error.store(), Some(server.url()));
    let error = patiently("an answer", client.inspect("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = patiently("an answer", backend.scan("", None, 10)).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotApplied));
    server.restart();
    patiently("a grant", client.lock("x").acquire()).await.unwrap().release().await.unwrap();
}
