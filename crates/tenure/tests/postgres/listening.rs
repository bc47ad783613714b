//! Notifications: what is said, who hears it, and what happens when nobody does.

use std::sync::{Arc, Mutex};

use tenure::backend::{Backend as _, Event};
use tenure::backends::postgres::PostgresBackend;
use tenure::clock::SystemClock;
use tenure::{Loss, NAME_BYTES_MAX};
use tenure_testkit::servers::Postgres;

use crate::support::{LONG, connect, ears, soon, until, until_waiting, waiting};

/// Ends the connections that listen.
const CUT: &str = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_is_cut_listens_again_and_says_so() {
    let server = Postgres::start();
    let backend = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    let events = Arc::new(Mutex::new(Vec::new()));
    let heard = events.clone();
    backend.listen(Arc::new(move |event| heard.lock().unwrap().push(event)));
    for times in 1..=3 {
        until("it listens", async || ears(&server) == 1).await;
        server.psql(CUT);
        let again = || events.lock().unwrap().iter().filter(|event| **event == Event::Resubscribed).count();
        until("it listens again", async || again() == times).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_said_while_nobody_listened_is_asked_for() {
    let server = Postgres::start();
    server.psql("CREATE USER locker; GRANT CREATE ON DATABASE postgres TO locker");
    let url = server.url().replace("testkit@", "locker@");
    let (a, b) = (connect(&url).await, connect(&url).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    // They keep the connections they have, and get no other.
    server.psql("ALTER ROLE locker CONNECTION LIMIT 0");
    server.psql(CUT);
    until("nobody listens", async || ears(&server) == 0).await;
    held.release().await.unwrap();
    soon("the waiter's turn", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_longest_names_are_handed_over() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    for name in ["n".repeat(NAME_BYTES_MAX), "\u{1F512}".repeat(NAME_BYTES_MAX / 4), "a\"b'c\\d,{e}".to_owned()] {
        let held = a.lock(&name).ttl(LONG).acquire().await.unwrap();
        let next = waiting(&b, &name);
        until_waiting(&a, &name, 1).await;
        held.release().await.unwrap();
        soon("the waiter's turn", next).await.unwrap().unwrap().release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_long_to_be_sent_is_told_by_the_renewal() {
    let server = Postgres::start();
    let a = connect(server.url()).await;
    let held = a.lock("x").ttl(std::time::Duration::from_secs(3)).acquire().await.unwrap();
    let other = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    let reason = "because ".repeat(2_000);
    let broken = other.break_holders(&tenure::Name::new("x").unwrap(), None, "me".into(), reason.as_str().into());
    assert_eq!(broken.await.unwrap(), 1);
    let loss = soon("the loss", held.lost()).await;
    assert!(matches!(&loss, Loss::Broken { reason: told, .. } if *told == reason), "{loss:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_of_notifications_that_is_full_keeps_nobody_from_releasing() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x");
    until_waiting(&a, "x", 1).await;
    // What PostgreSQL answers to the commit then, once.
    server.psql(
        "CREATE SEQUENCE commits; \
         CREATE FUNCTION full_queue() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
           IF OLD.queue IS NOT NULL AND NEW.queue IS NULL AND nextval('commits') = 1 THEN \
             RAISE EXCEPTION 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; \
           END IF; RETURN NULL; END $$; \
         CREATE CONSTRAINT TRIGGER full_queue AFTER UPDATE ON tenure.names DEFERRABLE INITIALLY DEFERRED \
           FOR EACH ROW EXECUTE FUNCTION full_queue()",
    );
    held.release().await.unwrap();
    soon("the waiter's turn", next).await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(server.psql("SELECT last_value FROM commits"), "2");
}
