//! Notifications: what is said, who hears it, and what happens when nobody does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::{Backend as _, BreakRequest, Event, ReleaseRequest};
use tenure::backends::postgres::PostgresBackend;
use tenure::clock::SystemClock;
use tenure::{ClaimId, Loss, NAME_BYTES_MAX};
use tenure_testkit::servers::{Postgres, Proxy};

use crate::support::{LONG, connect, ears, name, request, soon, until, until_waiting, waiting};

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
    let broken = other.break_holders(&tenure::Name::new("x").unwrap(), BreakRequest::all("me", reason.as_str()));
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

/// A client, and the claims it was told are granted.
async fn ear(url: &str) -> (PostgresBackend, Arc<Mutex<Vec<ClaimId>>>) {
    let backend = soon("a connection", PostgresBackend::open(url, Arc::new(SystemClock))).await.unwrap();
    let granted = Arc::new(Mutex::new(Vec::new()));
    let told = granted.clone();
    backend.listen(Arc::new(move |event| {
        if let Event::Granted { id, .. } = event {
            told.lock().unwrap().push(id);
        }
    }));
    (backend, granted)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_joined_while_nothing_was_heard_is_told_when_it_is() {
    let server = Postgres::start();
    let slow = Proxy::to(format!("127.0.0.1:{}", server.port())).await;
    // So long that a hello is not heard in time.
    slow.delay_replies(Duration::from_millis(1_500));
    let (holder, _) = ear(server.url()).await;
    let (waiter, granted) = ear(&server.url_with(&format!("listen={}", slow.address()))).await;
    assert!(!waiter.capabilities().pushes, "it hears");
    let x = name("x");
    soon("a free name", holder.claim(&x, request(0))).await.unwrap();
    soon("a place", waiter.claim(&x, request(1))).await.unwrap();
    slow.delay_replies(Duration::ZERO);
    until("it hears", async || waiter.capabilities().pushes).await;
    soon("a release", holder.release(&x, ReleaseRequest::of(&request(0)))).await.unwrap();
    until("it is told", async || granted.lock().unwrap().contains(&request(1).id)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_gone_is_missed_by_all_who_look_for_it_at_once() {
    let server = Postgres::start();
    let ((one, _), (two, _), (gone, _), (there, granted)) =
        (ear(server.url()).await, ear(server.url()).await, ear(server.url()).await, ear(server.url()).await);
    let names = [name("a"), name("b")];
    for (which, holder) in names.iter().zip([&one, &two]) {
        soon("a free name", holder.claim(which, request(0))).await.unwrap();
    }
    for (waiter, id) in [(&gone, 10), (&there, 20)] {
        for (more, which) in names.iter().enumerate() {
            soon("a place", waiter.claim(which, request(id + more as u64))).await.unwrap();
        }
    }
    drop(gone);
    until("it is gone", async || ears(&server) == 3).await;
    // Whoever commits waits for a standby that is not there, with all that it has locked. The first shows that it is
    // so.
    server.set("synchronous_standby_names", "*");
    // Of those who tell somebody only one commits at a time; the next waits for it.
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event IN ('SyncRep', 'object')";
    let stuck = || server.psql(waits).parse::<usize>();
    let mut probes: Vec<tokio::task::JoinHandle<_>> = Vec::new();
    until("a commit waits", async || {
        if probes.last().is_none_or(tokio::task::JoinHandle::is_finished) {
            let probe = name(&format!("probe/{}", probes.len()));
            probes.push(tokio::spawn(there.claim(&probe, request(100))));
        }
        stuck() == Ok(1)
    })
    .await;
    let mut releases = Vec::new();
    for (which, holder) in names.iter().zip([&one, &two]) {
        releases.push(tokio::spawn(holder.release(which, ReleaseRequest::of(&request(0)))));
        until("it waits", async || stuck() == Ok(1 + releases.len())).await;
    }
    server.set("synchronous_standby_names", "");
    for release in releases {
        soon("a release", release).await.unwrap().unwrap();
    }
    until("both are told", async || granted.lock().unwrap().len() == 2).await;
}
