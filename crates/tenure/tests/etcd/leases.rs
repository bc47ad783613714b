//! Leases that end, and claims that live by them.

use std::task::{Context, Waker};
use std::time::Duration;

use tenure::{ErrorKind, Loss};
use tenure_testkit::servers::{Etcd, shared};

use crate::support::{LONG, connect, leases, soon, turn, until, until_waiting, waiting};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_etcd_revokes_is_lost_at_the_next_renewal() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let held = a.lock("x").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let other = a.lock("y").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let all = leases(&etcd);
    assert_eq!(all.len(), 1, "both live by one lease");
    etcd.etcdctl(&["lease", "revoke", &all[0]]);
    let deadline = held.deadline();
    let loss = soon("the loss", held.lost()).await;
    assert!(matches!(loss, Loss::Gone), "{loss}: long before {deadline:?}");
    soon("the other's loss", other.lost()).await;
    // And the client is none the worse for it.
    let again = soon("a grant", a.lock("x").ttl(Duration::from_secs(6)).acquire()).await.unwrap();
    assert!(again.token() > held.token());
    again.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_key_is_deleted_is_told_long_before_its_renewal() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    // By itself, and while others wait; early, and once it has been held for a while.
    let alone = a.lock("alone").ttl(LONG).acquire().await.unwrap();
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x", LONG);
    until_waiting(&b, "x", 1).await;
    etcd.etcdctl(&["del", "--prefix", "alone/"]);
    let loss = soon("the loss", alone.lost()).await;
    assert!(matches!(loss, Loss::Gone), "{loss}");
    let all = etcd.etcdctl(&["get", "--prefix", "--keys-only", "--sort-by=CREATE", "x/"]);
    etcd.etcdctl(&["del", all.split_whitespace().next().unwrap()]);
    let loss = soon("the loss", held.lost()).await;
    assert!(matches!(loss, Loss::Gone), "{loss}");
    let next = turn(next).await;
    assert!(next.token() > held.token());
    let all = leases(&etcd);
    all.iter().for_each(|lease| drop(etcd.etcdctl(&["lease", "revoke", lease])));
    soon("the next one's loss", next.lost()).await;
    // One that is released is not lost.
    let again = a.lock("x").ttl(LONG).acquire().await.unwrap();
    soon("a release", again.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_whose_own_lease_ended_is_not_granted_by_it() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let before = leases(&etcd);
    let next = waiting(&b, "x", Duration::from_secs(6));
    until_waiting(&a, "x", 1).await;
    let waiters: Vec<_> = leases(&etcd).into_iter().filter(|lease| !before.contains(lease)).collect();
    assert_eq!(waiters.len(), 1);
    etcd.etcdctl(&["lease", "revoke", &waiters[0]]);
    until("its claim is gone", async || {
        // Made anew by a waiter that has noticed; with another lease.
        leases(&etcd).iter().any(|lease| !before.contains(lease) && !waiters.contains(lease))
    })
    .await;
    held.release().await.unwrap();
    let next = turn(next).await;
    assert!(next.is_held());
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_shorter_than_etcd_keeps_leases_is_refused_with_the_shortest() {
    let etcd = Etcd::builder().members(1).arg("--election-timeout=2000").start();
    let a = connect(&etcd.url()).await;
    let refused = a.lock("x").ttl(Duration::from_secs(2)).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    assert!(refused.to_string().contains("3 s at least"), "{refused}");
    let refused = a.lock("x").ttl(Duration::from_millis(500)).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
    a.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_names_held_by_one_client_live_by_one_lease() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let mut held = Vec::new();
    for number in 0..1000 {
        held.push(a.lock(format!("n{number}")).ttl(Duration::from_secs(3)).acquire().await.unwrap());
    }
    assert_eq!(leases(&etcd).len(), 1);
    let deadline = held[999].deadline();
    until("they are renewed", async || held.iter().all(|guard| guard.deadline() > deadline)).await;
    for guard in held {
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_nobody_takes_ends_although_its_lease_lives_on() {
    let etcd = shared::etcd();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let ttl = Duration::from_secs(4);
    // Keeps the lease of this ttl alive.
    let lives = a.lock("left/lives").ttl(ttl).acquire().await.unwrap();
    let held = b.lock("left/alone").ttl(LONG).acquire().await.unwrap();
    let forgotten = a.lock("left/alone").ttl(ttl);
    let mut forgotten = Box::pin(forgotten.acquire());
    // Asked for, and never looked at again.
    until("it waits", async || {
        let _ = forgotten.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        b.inspect("left/alone").await.is_ok_and(|view| view.waiters.len() == 1)
    })
    .await;
    held.release().await.unwrap();
    let next = soon("the next one's turn", b.lock("left/alone").ttl(LONG).acquire()).await.unwrap();
    assert!(lives.is_held());
    next.release().await.unwrap();
    lives.release().await.unwrap();
    drop(forgotten);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_use_their_leases_again() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    for _ in 0..10 {
        let read = a.rwlock("x").read().ttl(LONG).acquire().await.unwrap();
        read.release().await.unwrap();
    }
    assert_eq!(leases(&etcd).len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_busy_or_refused_uses_its_lease_again() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let read = a.rwlock("x").read().ttl(LONG).acquire().await.unwrap();
    for _ in 0..10 {
        assert!(b.session().lock("x").ttl(LONG).try_acquire().await.unwrap().is_none());
        // It is appended, and taken back.
        let refused = b.semaphore("x", 3).ttl(LONG).acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    }
    let session = b.session();
    let outer = session.lock("y").ttl(LONG).acquire().await.unwrap();
    for _ in 0..10 {
        session.lock("y").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
        session.lock("y").ttl(LONG).try_acquire().await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(leases(&etcd).len(), 3, "the reader's, the session's, and one for all others");
    outer.release().await.unwrap();
    read.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_closed_leaves_no_lease_but_those_that_claims_live_by() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    // One that claims share, one of its own, and one that somebody still holds by.
    a.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    a.rwlock("y").read().ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let held = a.lock("z").ttl(LONG * 2).acquire().await.unwrap();
    assert_eq!(leases(&etcd).len(), 3);
    a.close().await.unwrap();
    assert_eq!(leases(&etcd).len(), 1);
    assert!(held.is_held());
    let busy = connect(&etcd.url()).await.lock("z").ttl(LONG).try_acquire().await.unwrap();
    assert!(busy.is_none(), "it is held");
}
