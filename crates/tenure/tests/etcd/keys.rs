//! Keys: many waiters, names within names, what a session adds.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure_testkit::servers::{Etcd, shared};

use crate::support::{LONG, connect, soon, turn, until, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_is_told_by_the_release() {
    let etcd = shared::etcd();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("told").ttl(LONG).acquire().await.unwrap();
    let token = held.token();
    let next = waiting(&b, "told", LONG);
    until_waiting(&a, "told", 1).await;
    held.release().await.unwrap();
    let next = turn(next).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_changes_hands_often_is_watched_once() {
    const TURNS: usize = 50;
    let etcd = Etcd::builder().members(1).start();
    let watches = || etcd.counts(0, "grpc_server_msg_received_total", &[r#"grpc_method="Watch""#]);
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(connect(&etcd.url()).await);
    }
    let before = watches();
    let takers = clients.iter().map(|client| {
        let lock = client.lock("x").ttl(LONG);
        tokio::spawn(async move {
            for _ in 0..TURNS {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        })
    });
    for taker in takers.collect::<Vec<_>>() {
        soon("all turns", taker).await.unwrap();
    }
    // A watch that is made while others write is served late: each begins with one on notes, one on the name, and
    // that is all.
    let asked = watches() - before;
    assert!(asked < TURNS as f64, "{asked} requests for {} waits", 3 * TURNS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_waiters_than_are_read_at_once_all_get_their_turn_in_order() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let tokens = Arc::new(Mutex::new(vec![held.token()]));
    let mut waits = Vec::new();
    for number in 0..300 {
        // In strict order, so that each has a claim of its own in etcd.
        let (lock, tokens) = (a.lock("x").ttl(LONG).strict_fifo(), tokens.clone());
        waits.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            tokens.lock().unwrap().push(guard.token());
            guard.release().await.unwrap();
        }));
        if number % 50 == 49 {
            until_waiting(&a, "x", number + 1).await;
        }
    }
    held.release().await.unwrap();
    for wait in waits {
        soon("its turn", wait).await.unwrap();
    }
    let tokens = tokens.lock().unwrap().clone();
    assert!(tokens.len() == 301 && tokens.is_sorted(), "{tokens:?}");
    assert!(a.inspect("x").await.unwrap().is_free());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_within_a_name_is_another_lock() {
    let etcd = shared::etcd();
    let a = connect(&etcd.url()).await;
    let outer = a.lock("orders").ttl(LONG).acquire().await.unwrap();
    let inner = soon("a grant", a.lock("orders/42").ttl(LONG).acquire()).await.unwrap();
    outer.release().await.unwrap();
    let again = soon("a grant", a.lock("orders").ttl(LONG).try_acquire()).await.unwrap().unwrap();
    assert!(inner.is_held());
    again.release().await.unwrap();
    inner.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_with_more_names_below_it_than_are_read_at_once_is_acquired() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let mut below = Vec::new();
    for number in 0..300 {
        below.push(a.lock(format!("orders/{number}")).ttl(LONG).acquire().await.unwrap());
    }
    let held = soon("a grant", a.lock("orders").ttl(LONG).acquire()).await.unwrap();
    let next = waiting(&a, "orders", LONG);
    until_waiting(&a, "orders", 1).await;
    held.release().await.unwrap();
    turn(next).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_holds_until_its_last_process_has_released() {
    let etcd = shared::etcd();
    let (a, b, c) = (connect(&etcd.url()).await, connect(&etcd.url()).await, connect(&etcd.url()).await);
    let session = a.session();
    let outer = session.lock("session").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let next = waiting(&c, "session", LONG);
    until_waiting(&c, "session", 1).await;
    let inner =
        b.session_as(session.owner().clone()).lock("session").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    assert_eq!(inner.token(), outer.token());
    outer.release().await.unwrap();
    // Kept alive by the other process alone, beyond the ttl.
    let deadline = inner.deadline();
    until("it is renewed", async || inner.deadline() > deadline + Duration::from_secs(7)).await;
    assert_eq!(c.inspect("session").await.unwrap().waiters.len(), 1);
    inner.release().await.unwrap();
    turn(next).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_clients_count_right() {
    let etcd = Etcd::start();
    let inside: Arc<[AtomicU32; 4]> = Arc::default();
    let mut tasks = Vec::new();
    for client in 0..4 {
        let tenure = connect(&etcd.url()).await;
        for task in 0..4_usize {
            let (tenure, inside) = (tenure.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                for turn in 0..15 {
                    let which = (client * 5 + task * 7 + turn * 11) % 4;
                    let held = soon("a turn", tenure.lock(format!("n{which}")).ttl(LONG).acquire()).await.unwrap();
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
    assert_eq!(etcd.etcdctl(&["get", "--prefix", "--keys-only", "n"]), "", "nothing is left");
}
