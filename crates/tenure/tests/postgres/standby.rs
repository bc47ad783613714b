//! Standbys: they take no locks, until one takes over.

use std::time::Duration;

use tenure::{ErrorKind, Tenure};
use tenure_testkit::servers::Postgres;

use crate::support::{LONG, connect, findings, soon, until, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_there_and_one_that_takes_no_writes_are_refused() {
    let server = Postgres::builder().config("default_transaction_read_only", "on").start();
    let error = Tenure::connect(server.url()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("standby"), "{error}");
    let url = server.url().to_owned();
    drop(server);
    assert_eq!(Tenure::connect(url).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_and_its_queue_survive_a_failover_to_a_synchronous_standby() {
    let primary = Postgres::start();
    drop(connect(primary.url()).await);
    let standby = primary.standby();
    let error = Tenure::connect(standby.url()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("standby"), "{error}");

    // The standby first: it is passed over as long as it is one.
    let url = format!("postgres://testkit@127.0.0.1:{},127.0.0.1:{}/postgres", standby.port(), primary.port());
    let (a, b) = (connect(&url).await, connect(&url).await);
    assert_eq!(findings(&a).await, ["fsync is off"], "nothing else");
    let held = a.lock("x").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    let (token, deadline) = (held.token(), held.deadline());

    primary.kill();
    standby.promote();
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    until_waiting(&a, "x", 1).await;
    soon("a release", held.release()).await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    let later = soon("another name", a.lock("y").ttl(LONG).acquire()).await.unwrap();
    assert!(later.token() > token);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_that_no_commit_waits_for_and_one_that_is_missing_are_found() {
    let primary = Postgres::builder().durable().start();
    let a = connect(primary.url()).await;
    let standby = primary.standby();
    assert_eq!(findings(&a).await, [""; 0]);
    primary.set("synchronous_standby_names", "");
    let found = findings(&a).await;
    assert!(found.len() == 1 && found[0].contains("no commit waits"), "{found:?}");
    primary.set("synchronous_standby_names", "*");
    standby.kill();
    until("it is missed", async || {
        findings(&connect(primary.url()).await)
            .await
            .iter()
            .any(|what| what.contains("none of these standbys is there"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_silent_holds_up_for_a_moment_only() {
    let (silent, server) = (Postgres::start(), Postgres::start());
    silent.pause();
    let url = format!(
        "postgres://testkit@127.0.0.1:{},127.0.0.1:{}/postgres?connect_timeout=30",
        silent.port(),
        server.port()
    );
    let a =
        tokio::time::timeout(Duration::from_secs(8), Tenure::connect(url)).await.expect("not as long as it is silent");
    a.unwrap().lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    silent.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_survives_a_primary_that_hangs_though_its_standby_takes_over_later() {
    let primary = Postgres::start();
    drop(connect(primary.url()).await);
    let standby = primary.standby();
    let url = format!("postgres://testkit@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port(), standby.port());
    let a = connect(&url).await;
    // Longer than a connection may take to be made, but for the third of it that passes before anything is amiss.
    let held = a.lock("x").ttl(Duration::from_secs(14)).acquire().await.unwrap();
    let (token, deadline) = (held.token(), held.deadline());
    primary.pause();
    // By now the standby was asked as well, and was none that takes writes.
    until("a renewal fails", async || held.renewal_failure().is_some()).await;
    standby.promote();
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    primary.resume();
}
