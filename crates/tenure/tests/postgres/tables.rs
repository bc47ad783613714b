//! The tables: who makes them, who may use them, and what is swept from them.

use tenure::{ErrorKind, Tenure};
use tenure_testkit::servers::Postgres;

use crate::support::{LONG, connect, contend, findings, rows, soon, until, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_names_are_forgotten_and_their_tokens_are_not() {
    let server = Postgres::start();
    let a = connect(server.url()).await;
    for number in 0..300 {
        a.lock(format!("idle{number}")).ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(rows(&server) >= 300);
    // As if a while had passed; for every other one not long enough.
    server.psql("UPDATE tenure.names SET last = last - 7200000000 WHERE right(name, 1)::int % 2 = 1");
    server.psql("UPDATE tenure.names SET last = last - 1800000000 WHERE right(name, 1)::int % 2 = 0");
    let b = connect(server.url()).await;
    until("they are swept", async || {
        b.lock("busy").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
        rows(&server) < 160
    })
    .await;
    assert_eq!(server.psql("SELECT count(*) FROM tenure.names WHERE name LIKE 'idle%'"), "150");
    let forgotten: u64 = server.psql("SELECT forgotten FROM tenure.meta").parse().unwrap();
    assert!(forgotten > 0);
    let again = a.lock("idle7").ttl(LONG).acquire().await.unwrap();
    assert!(again.token().unwrap().0 > forgotten);
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn however_many_names_are_idle_they_are_forgotten() {
    let server = Postgres::start();
    drop(connect(server.url()).await);
    server.psql(
        "INSERT INTO tenure.names (name, last) SELECT 'idle' || n, (extract(epoch FROM now()) * 1000000)::bigint - 7200000000 \
         FROM generate_series(1, 30000) n",
    );
    let a = connect(server.url()).await;
    a.lock("busy").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    until("they are swept", async || rows(&server) < 10).await;
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
    let refused = Tenure::connect(format!("{plain}?sslmode=disable")).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "without TLS: {refused}");
    let wrong = server.url().replace("s3cret", "wr0ng");
    let error = Tenure::connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!format!("{error:?}").contains("wr0ng"));
    server.psql("REVOKE CREATE ON DATABASE postgres FROM locker");
    let error = Tenure::connect(server.url_with("schema=another")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("right"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_may_be_bound_to_the_encrypted_connection() {
    let server = Postgres::builder().tls().login("locker", "s3cret").start();
    let tenure = connect(&server.url_with("channel_binding=require")).await;
    tenure.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
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
async fn tables_of_an_older_tenure_and_tables_without_a_version_are_refused_and_left_alone() {
    let server = Postgres::start();
    drop(connect(server.url()).await);
    server.psql("UPDATE tenure.meta SET version = 0");
    let error = Tenure::connect(server.url()).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Store && error.to_string().contains("older tenure"), "{error}");
    assert_eq!(server.psql("SELECT version FROM tenure.meta"), "0");
}

/// The rights that the page of this store names.
fn documented_rights() -> &'static str {
    let page = include_str!("../../../../docs/backends/postgres.md");
    page.split("```")
        .map(|block| block.trim_start_matches("sql"))
        .find(|block| block.trim().starts_with("GRANT"))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_somebody_else_made_take_these_rights_and_no_others() {
    let server = Postgres::start();
    drop(connect(server.url()).await);
    server.psql("CREATE USER locker");
    let url = server.url().replace("testkit@", "locker@");
    let error = Tenure::connect(&url).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("right"), "{error}");
    server.psql(documented_rights());
    let (a, b) = (connect(&url).await, connect(&url).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    assert_eq!(a.list("").await.unwrap().len(), 1);
    held.release().await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert_eq!(a.break_holders("x", None, "a test").await.unwrap(), 1);
    soon("the loss", next.lost()).await;
    let before = findings(&a).await;
    server.psql("REVOKE DELETE ON tenure.names FROM locker");
    let after = findings(&a).await;
    assert!(!before.iter().any(|what| what.contains("lacks rights")), "{before:?}");
    assert!(after.iter().any(|what| what.contains("lacks rights")), "{after:?}");
    // It only sweeps with it.
    a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_that_is_there_needs_no_right_to_make_one() {
    let server = Postgres::start();
    server.psql("CREATE USER locker; CREATE SCHEMA ours AUTHORIZATION locker");
    let url = server.url().replace("testkit@", "locker@");
    connect(format!("{url}?schema=ours")).await.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let error = Tenure::connect(format!("{url}?schema=theirs")).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Denied && error.to_string().contains("right"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_any_name_is_one_schema() {
    let server = Postgres::start();
    let odd = "a\"; DROP TABLE tenure.names; --";
    let url = server.url_with("schema=a%22%3B%20DROP%20TABLE%20tenure.names%3B%20--");
    drop(connect(server.url()).await);
    connect(url).await.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(rows(&server), 0, "its own are there");
    let made = server.psql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'a%'");
    assert_eq!(made, odd);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_isolates_by_default_costs_retries_and_nothing_else() {
    for isolation in ["serializable", "repeatable read"] {
        let server = Postgres::builder().config("default_transaction_isolation", isolation).start();
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(connect(server.url()).await);
        }
        contend(&clients, 15).await;
        assert!(findings(&clients[0]).await.iter().any(|what| what.contains(isolation)));
    }
}
