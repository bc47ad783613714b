//! What goes wrong: servers that crash, hang and cut connections, rows that are damaged, clocks that step.

use std::sync::Arc;
use std::time::Duration;

use tenure::ErrorKind;
use tenure::backend::{Backend as _, Claimed, ReleaseRequest, Standing};
use tenure::backends::postgres::PostgresBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::{Postgres, shared};

use crate::support::{LONG, connect, contend, name, request, soon, until, until_waiting, waiting};

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
    assert!(count().parse::<u32>().unwrap() <= 2 * 13, "{}", count());
    // All are held and waited for, and stay so with no more than the ears and the few that renew.
    until("the others are closed", async || count().parse::<u32>().unwrap() <= 2 * 3).await;
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
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(connect(server.url()).await);
    }
    contend(&clients, 30).await;
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_new_to_some_and_known_to_others_do_not_deadlock() {
    let server = Postgres::start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    for turn in 0..40 {
        // Each pair of rows is made anew by two clients at once, one of them in a transaction with a name that is
        // there.
        let all = ["a", "b", "c", "d"].map(|name| format!("{name}{turn}"));
        let mut tasks = Vec::new();
        for client in [&a, &b] {
            for name in &all {
                let lock = client.lock(name).ttl(LONG).strict_fifo();
                tasks.push(tokio::spawn(async move { soon("a turn", lock.acquire()).await?.release().await }));
            }
        }
        for task in tasks {
            task.await.unwrap().unwrap();
        }
    }
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_caller_has_left_does_not_come_after_its_release() {
    let server = Postgres::start();
    let backend = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    backend.listen(Arc::new(|_| {}));
    server.pause();
    // These keep all connections busy.
    let busy: Vec<_> =
        (0..16).map(|number| tokio::spawn(backend.claim(&name(&format!("busy{number}")), request(number)))).collect();
    tokio::task::yield_now().await;
    let left = request(100);
    let end = ReleaseRequest::of(&left);
    drop(backend.claim(&name("left"), left));
    let released = tokio::spawn(backend.release(&name("left"), end));
    server.resume();
    for busy in busy {
        soon("a claim", busy).await.unwrap().unwrap();
    }
    soon("a release", released).await.unwrap().unwrap();
    let also = soon("another claim", backend.claim(&name("left"), request(101))).await.unwrap().value;
    assert!(matches!(also, Claimed::Stands(Standing { state: Ok(_), .. })), "{also:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_somebody_changes_or_drops_are_an_error_and_not_the_end() {
    let server = Postgres::start();
    let a = connect(server.url()).await;
    let fails = async |what: &str| {
        let error = a.lock("x").ttl(LONG).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{what}: {error}");
    };
    a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    server.psql("ALTER TABLE tenure.names ALTER token TYPE text");
    // More often than there are connections.
    for _ in 0..8 {
        fails("another type").await;
    }
    server.psql("DROP SCHEMA tenure CASCADE");
    fails("no table").await;
    connect(server.url()).await.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    soon("a turn", a.lock("x").ttl(LONG).acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_costs_no_token() {
    let server = Postgres::builder().shifted_clock().start();
    let a = connect(server.url()).await;
    let mut last = None;
    for shift in [0, -3_600, 7_200, -60, 0] {
        server.shift_clock(shift);
        let held = soon("a turn", a.lock("x").ttl(LONG).acquire()).await.unwrap();
        assert!(held.token() > last, "{shift}: {:?} after {last:?}", held.token());
        last = held.token();
        held.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_that_steps_back_keeps_what_is_held() {
    let server = Postgres::builder().shifted_clock().start();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let held = a.lock("x").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    server.shift_clock(-3_600);
    let deadline = held.deadline();
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && b.lock("x").ttl(LONG).try_acquire().await.unwrap().is_none());
    let token = held.token();
    held.release().await.unwrap();
    assert!(b.lock("x").ttl(LONG).acquire().await.unwrap().token() > token);
}

// One thread: what is asked for without a pause in between is pending together.
#[tokio::test]
async fn one_id_for_several_names_at_once_is_told_the_token_of_each() {
    let server = shared::postgres();
    let backend = PostgresBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    let wishes: Vec<_> =
        (0..64).map(|number| (name(&format!("same/{}", 63 - number)), request(7_000 + number / 2))).collect();
    let calls: Vec<_> = wishes.iter().map(|(name, wish)| backend.claim(name, wish.clone())).collect();
    for ((name, wish), call) in wishes.iter().zip(calls) {
        let Claimed::Stands(Standing { state: Ok(grant), number, .. }) = soon("an answer", call).await.unwrap().value
        else {
            panic!("{name} is free");
        };
        let view = backend.inspect(name).await.unwrap();
        assert_eq!(view.holders[0].token, Some(grant.token), "{name}");
        assert_eq!(view.holders[0].claims, [(wish.id, number)], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_cannot_do_at_the_moment_is_tried_again() {
    let server = Postgres::start();
    let a = connect(server.url()).await;
    a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    server.psql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
           RAISE EXCEPTION 'no' USING ERRCODE = current_setting('refuse.code'); END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON tenure.names FOR EACH ROW EXECUTE FUNCTION refuse()",
    );
    // Out of memory, of locks; ended for being idle, for lasting too long; and one that nobody foresaw.
    for (code, kind) in [
        ("53200", ErrorKind::Unavailable),
        ("53400", ErrorKind::Unavailable),
        ("57P05", ErrorKind::Unavailable),
        ("22012", ErrorKind::Store),
    ] {
        server.psql(&format!("ALTER DATABASE postgres SET refuse.code = '{code}'"));
        let b = connect(server.url()).await;
        let refused = soon("an answer", b.lock("x").ttl(LONG).try_acquire()).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{code}: {refused}");
    }
}
