//! Rows that somebody else has written: each costs its own name, and no other.

use std::sync::Arc;
use std::time::Duration;

use tenure::ErrorKind;
use tenure::backend::{Backend as _, Claimed, RenewRequest, Renewed};
use tenure::backends::postgres::PostgresBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::Postgres;

use crate::support::{LONG, connect, name, request, soon, until, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_is_damaged_costs_its_own_name_and_no_other() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let held = a.lock("good").ttl(LONG).acquire().await.unwrap();
    drop(b.lock("bad").ttl(LONG).acquire().await.unwrap().release().await);
    server.psql("UPDATE tenure.names SET queue = 'garbage' WHERE name = 'bad'");
    let mut tasks = Vec::new();
    for number in 0..40 {
        let which = if number % 4 == 0 { "bad".to_owned() } else { format!("free{number}") };
        let lock = b.lock(&which).ttl(LONG).strict_fifo();
        tasks.push(tokio::spawn(async move { (which, lock.acquire_within(Duration::from_secs(20)).await) }));
    }
    let next = waiting(&b, "good");
    until("it waits", async || a.inspect("good").await.unwrap().waiters.len() == 1).await;
    for task in tasks {
        match soon("an answer", task).await.unwrap() {
            (which, Err(error)) => assert!(which == "bad" && error.to_string().contains("damaged"), "{which}: {error}"),
            (which, Ok(_)) => assert_ne!(which, "bad"),
        }
    }
    held.release().await.unwrap();
    soon("the waiter's turn", next).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_nobody_can_read_is_named_and_left_out_of_lists() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let _held = a.lock("good").ttl(LONG).acquire().await.unwrap();
    let _parts = a.lock("parts").ttl(LONG).acquire().await.unwrap();
    server.psql("INSERT INTO tenure.names (name, queue, last) VALUES ('bad', '{\"from\": \"the future\"}', 1), (E'\\x01', '{}', 1)");
    server.psql("UPDATE tenure.names SET client = NULL WHERE name = 'parts'");
    let listed: Vec<_> = a.list("").await.unwrap().into_iter().map(|view| view.name.to_string()).collect();
    assert_eq!(listed, ["good"]);
    for which in ["bad", "parts"] {
        let error = a.inspect(which).await.unwrap_err();
        assert!(error.kind() == ErrorKind::Store && error.to_string().contains(which), "{error}");
        let error = b.lock(which).ttl(LONG).try_acquire().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Store && error.to_string().contains(which), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_cannot_be_read_costs_those_with_it_nothing() {
    let server = Postgres::start();
    let backend = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    backend.listen(Arc::new(|_| {}));
    let names = ["one", "bad", "other"].map(name);
    let mut renewals = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let claim = request(number as u64);
        renewals.push(RenewRequest { ttl: LONG, ..RenewRequest::of(name, &claim) });
        let claimed = soon("a claim", backend.claim(name, claim)).await.unwrap().value;
        assert!(matches!(claimed, Claimed::Stands(_)), "{claimed:?}");
    }
    server.psql("UPDATE tenure.names SET queue = 'garbage' WHERE name = 'bad'");
    let answers = soon("an answer", backend.renew(renewals, false)).await.unwrap().value;
    assert!(
        matches!(&answers[..], [Renewed::Stands(_), Renewed::Unknown(why), Renewed::Stands(_)] if why.contains("bad")),
        "{answers:?}"
    );
}
