//! PostgreSQL: what is special about rows, transactions and notifications.
#![cfg(feature = "postgres")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{ErrorKind, Guard, Tenure};
use tenure_testkit::servers::{Postgres, shared};

const LONG: Duration = Duration::from_secs(600);

async fn connect(url: &str) -> Tenure {
    Tenure::connect(url).await.unwrap()
}

/// Waits for what a server or another task does, for at most half a minute.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

fn waiting(tenure: &Tenure, name: &str) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    let lock = tenure.lock(name).ttl(LONG);
    tokio::spawn(async move { lock.acquire().await })
}

async fn until_waiting(tenure: &Tenure, name: &str, count: usize) {
    until("they wait", async || tenure.inspect(name).await.unwrap().waiters.len() == count).await;
}

fn rows(server: &Postgres) -> usize {
    server.psql("SELECT count(*) FROM tenure.names").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_told_by_the_release() {
    let server = shared::postgres();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let held = a.lock("told").ttl(LONG).acquire().await.unwrap();
    let token = held.token();
    let next = waiting(&b, "told");
    until_waiting(&a, "told", 1).await;
    held.release().await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_crashes_and_comes_back_costs_nobody_a_lock_or_a_place() {
    let server = Postgres::builder().durable().start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let held = a.lock("x").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let (token, deadline) = (held.token(), held.deadline());
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    server.restart();
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    held.release().await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_hangs_costs_a_lease_at_its_deadline_and_is_used_again_later() {
    let server = Postgres::start();
    let a = connect(server.url()).await;
    let held = a.lock("x").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    server.pause();
    soon("the loss", held.lost()).await;
    assert!(!held.is_held());
    server.resume();
    let again = soon("a grant", a.lock("x").ttl(LONG).acquire()).await.unwrap();
    assert!(again.token() > held.token());
    soon("a release", again.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_are_opened_again() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    for turn in 0..3 {
        let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
        let next = waiting(&b, "x");
        until_waiting(&a, "x", 1).await;
        server.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure'");
        soon("a release", held.release()).await.unwrap();
        let next = soon(&format!("the waiter's turn {turn}"), next).await.unwrap().unwrap();
        soon("a release", next.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_connection_is_held_for_a_lock_or_a_wait() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let mut held = Vec::new();
    let mut waits = Vec::new();
    for number in 0..50 {
        held.push(a.lock(format!("x{number}")).ttl(LONG).acquire().await.unwrap());
        waits.push(waiting(&b, &format!("x{number}")));
    }
    until_waiting(&a, "x49", 1).await;
    let count = || server.psql("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tenure'");
    assert!(count().parse::<u32>().unwrap() <= 2 * 5, "{}", count());
    for held in held {
        held.release().await.unwrap();
    }
    for wait in waits {
        soon("a turn", wait).await.unwrap().unwrap().release().await.unwrap();
    }
    // In the end, nothing but the ears.
    until("idle ones are closed", async || count() == "2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_want_the_same_names_in_other_orders_do_not_deadlock() {
    let server = Postgres::start();
    let inside: Arc<[AtomicU32; 6]> = Arc::default();
    let mut tasks = Vec::new();
    for client in 0..4 {
        let tenure = connect(server.url()).await;
        for task in 0..6_usize {
            let (tenure, inside) = (tenure.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                for turn in 0..30 {
                    let which = (client * 5 + task * 7 + turn * 11) % 6;
                    let lock = tenure.lock(format!("n{which}")).ttl(LONG).strict_fifo();
                    let held = soon("a turn", lock.acquire()).await.unwrap();
                    assert_eq!(inside[which].fetch_add(1, Ordering::AcqRel), 0, "two at once");
                    tokio::task::yield_now().await;
                    assert_eq!(inside[which].fetch_sub(1, Ordering::AcqRel), 1);
                    soon("a release", held.release()).await.unwrap();
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_names_are_forgotten_and_their_tokens_are_not() {
    let server = Postgres::start();
    let a = connect(server.url()).await;
    for number in 0..300 {
        a.lock(format!("idle{number}")).ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(rows(&server) >= 300);
    // As if a while had passed; one of them was given tokens by a clock that was ahead.
    server.psql("UPDATE tenure.names SET last = last - 120000000");
    until("they are swept", async || {
        for _ in 0..50 {
            a.lock("busy").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
        }
        rows(&server) < 10
    })
    .await;
    let forgotten: u64 = server.psql("SELECT forgotten FROM tenure.meta").parse().unwrap();
    assert!(forgotten > 0);
    let again = a.lock("idle7").ttl(LONG).acquire().await.unwrap();
    assert!(again.token().unwrap().0 > forgotten);
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_needs_tls_a_password_and_a_schema_and_nothing_else() {
    let server = Postgres::builder().tls().login("locker", "s3cret/with@chars").start();
    server.psql("ALTER USER locker SET search_path = nowhere");
    let a = connect(server.url()).await;
    let b = connect(&server.url_with("schema=of%20\"ours")).await;
    let one = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let other = b.lock("x").ttl(LONG).try_acquire().await.unwrap().expect("another schema is another store");
    one.release().await.unwrap();
    other.release().await.unwrap();
    let plain = format!("postgres://locker:s3cret%2Fwith%40chars@127.0.0.1:{}/postgres", server.port());
    assert_eq!(Tenure::connect(&plain).await.unwrap_err().kind(), ErrorKind::Denied, "without TLS");
    let wrong = server.url().replace("s3cret", "wr0ng");
    let error = Tenure::connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"));
    server.psql("REVOKE CREATE ON DATABASE postgres FROM locker");
    let error = Tenure::connect(server.url_with("schema=another")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("right"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_may_be_the_first_to_make_the_tables() {
    let server = Postgres::start();
    let all = (0..16).map(|_| {
        let url = server.url().to_owned();
        tokio::spawn(async move { Tenure::connect(url).await })
    });
    for opened in futures_util::future::join_all(all.collect::<Vec<_>>()).await {
        opened.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_of_a_newer_tenure_are_refused_and_left_alone() {
    let server = Postgres::start();
    drop(connect(server.url()).await);
    server.psql("UPDATE tenure.meta SET version = 99");
    let error = Tenure::connect(server.url()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.to_string().contains("newer tenure"), "{error}");
    assert_eq!(server.psql("SELECT version FROM tenure.meta"), "99");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_and_one_that_takes_no_writes_are_refused() {
    let server = Postgres::builder().config("default_transaction_read_only", "on").start();
    let error = Tenure::connect(server.url()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("standby"), "{error}");
    let url = server.url().to_owned();
    drop(server);
    assert_eq!(Tenure::connect(url).await.unwrap_err().kind(), ErrorKind::Unavailable);
}
