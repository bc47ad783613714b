//! A pooler that gives each transaction another connection.

use tenure::{ErrorKind, Tenure};
use tenure_testkit::servers::{PgBouncer, Postgres};

use crate::support::{LONG, connect, contend, ears, findings, soon, until, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_behind_a_pooler_look_and_keep_their_order() {
    let server = Postgres::start();
    let pooler = PgBouncer::before(&server, 3);
    let (a, b) = (connect(pooler.url()).await, connect(pooler.url()).await);
    let direct = connect(server.url()).await;
    assert_eq!(ears(&server), 1, "one hears, two know that they do not");
    let found = findings(&a).await;
    assert!(found.iter().any(|what| what.contains("nothing is heard")), "{found:?}");
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    // It is told at once, and so might be let past one that has to look.
    let last = waiting(&direct, "x");
    until_waiting(&a, "x", 2).await;
    let token = held.token();
    held.release().await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert!(next.token() > token && !last.is_finished());
    next.release().await.unwrap();
    soon("the last one's turn", last).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_that_has_one_client_is_known_for_what_it_is() {
    let server = Postgres::start();
    // The only client would be given the same connection again and again, and hear itself.
    let pooler = PgBouncer::before(&server, 1);
    let a = connect(pooler.url()).await;
    let facts = a.doctor().await.unwrap().facts;
    assert!(facts.iter().any(|(what, told)| what == "statements" && told == "not prepared"), "{facts:?}");
    assert!(facts.iter().any(|(what, told)| what.contains("hear") && told.contains("when they look")), "{facts:?}");
    assert_eq!(ears(&server), 0);
    let listening = server.psql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'");
    assert_eq!(listening, "0", "it asked for nothing that would stay behind");
    a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_direct_connection_for_listening_is_told() {
    let server = Postgres::start();
    let pooler = PgBouncer::before(&server, 2);
    let url = format!("{}?listen=127.0.0.1:{}", pooler.url(), server.port());
    let (a, b) = (connect(&url).await, connect(&url).await);
    assert_eq!(ears(&server), 2);
    assert_eq!(findings(&a).await, ["fsync is off"]);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    held.release().await.unwrap();
    soon("the waiter's turn", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listening_to_another_server_is_found() {
    let (server, other) = (Postgres::start(), Postgres::start());
    let a = connect(server.url_with(&format!("listen=127.0.0.1:{}", other.port()))).await;
    let found = findings(&a).await;
    assert!(found.iter().any(|what| what.contains("listen= names")), "{found:?}");
    a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_share_few_connections_of_a_pooler() {
    let server = Postgres::start();
    let pooler = PgBouncer::before(&server, 2);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(pooler.url()).await);
    }
    contend(&clients, 5).await;
}

/// A way to a server that can be closed to those who come, and not to those who are there.
async fn door(to: u16) -> (u16, tokio::task::JoinHandle<()>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let open = tokio::spawn(async move {
        while let Ok((mut inside, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut outside = tokio::net::TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                drop(tokio::io::copy_bidirectional(&mut inside, &mut outside).await);
            });
        }
    });
    (port, open)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_is_direct_says_nothing_of_one_that_is_a_pooler() {
    let server = Postgres::builder().config("log_min_duration_statement", "0").start();
    let pooler = PgBouncer::before(&server, 1);
    let (port, open) = door(server.port()).await;
    let direct = format!("127.0.0.1:{}", pooler.port());
    let a = connect(pooler.url().replace(&direct, &format!("127.0.0.1:{port},{direct}"))).await;
    let prepared = |log: &str| log.lines().any(|line| line.contains("execute s") && line.contains("WITH "));
    let pair = async || a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    pair().await;
    until("it prepares", async || prepared(&server.log())).await;
    // The one that listens stays where it is; those that work come back through the pooler.
    open.abort();
    until("the door is closed", async || tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err()).await;
    server.psql(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tenure' \
         AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')",
    );
    let before = server.log().len();
    for _ in 0..3 {
        soon("a turn", async { until("a pair", async || a.lock("x").ttl(LONG).try_acquire().await.is_ok()).await })
            .await;
        pair().await;
    }
    assert_eq!(ears(&server), 1, "it listens all the same");
    let log = server.log();
    let since = &log[before..];
    assert!(since.contains("execute <unnamed>") && !prepared(since), "{since}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pooler_of_statements_is_refused_before_anybody_relies_on_it() {
    let server = Postgres::start();
    drop(connect(server.url()).await);
    let pooler = PgBouncer::sharing(&server, 3, "statement");
    let refused = soon("an answer", Tenure::connect(pooler.url())).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Store && refused.to_string().contains("pool_mode"), "{refused}");
}
