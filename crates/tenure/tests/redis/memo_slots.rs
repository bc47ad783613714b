//! Memos of names whose slots move from master to master.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tenure_testkit::servers::Cluster;

use crate::cluster::masters;
use crate::failover::{LONG, acquire, connect, end, granted, soon, until, until_waiting};
use crate::memos::{read, reads};
use crate::slots::Move;

/// A holder writes while its name's slot is half way, after some of the name's keys have moved.
async fn half_way(with_waiter: bool, first: Option<&str>, moved: &[usize]) {
    let cluster = Cluster::start();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let held = Arc::new(a.lock("x").ttl(LONG).acquire().await.unwrap());
    let mut last = 0;
    if let Some(first) = first {
        last = held.write_memo(first).await.unwrap();
    }
    let waiting = with_waiter.then(|| acquire(&b, "x", LONG));
    until_waiting(&a, "x", usize::from(with_waiter)).await;
    let moving = Move::of(&cluster, "x");
    moving.begin();
    for key in moved {
        moving.key(*key);
    }
    let writer = held.clone();
    let writing = tokio::spawn(async move { writer.write_memo("two").await });
    let seen = read(&b, "x").await.map(|memo| String::from_utf8_lossy(&memo.bytes).into_owned());
    assert!(seen.as_deref() == first || seen.as_deref() == Some("two"), "{seen:?}");
    assert!(held.is_held());
    moving.finish();
    let version = soon("a memo is written", writing).await.unwrap().unwrap();
    assert!(version > last, "{version} after {last}");
    assert_eq!(reads(&b, "x", "two").await.version, version);
    assert_eq!(moving.from.cli(&["dbsize"]), "0", "nothing is left where it was");
    assert!(held.is_held());
    let third = soon("a memo is written", held.write_memo("three")).await.unwrap();
    assert!(third > version, "{third} after {version}");
    Arc::into_inner(held).unwrap().release().await.unwrap();
    if let Some(waiting) = waiting {
        granted("the waiter's turn", waiting).await.release().await.unwrap();
    }
    reads(&a, "x", "three").await;
    end([a, b], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_is_not_lost_when_its_slot_begins_to_move() {
    half_way(false, Some("one"), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_memo_is_not_lost_when_its_slot_begins_to_move() {
    half_way(false, None, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_is_not_lost_when_it_has_moved_alone() {
    half_way(false, Some("one"), &[4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_is_not_lost_when_only_its_record_has_moved() {
    half_way(false, Some("one"), &[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_memo_is_not_lost_when_its_record_has_moved() {
    half_way(false, None, &[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_not_taken_for_a_stranger_when_its_claims_have_yet_to_move() {
    half_way(true, Some("one"), &[0, 4]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_is_not_taken_for_a_stranger_when_its_claims_have_moved_ahead() {
    half_way(true, Some("one"), &[1, 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_in_a_memo_counts_right_while_its_slot_moves() {
    const CLIENTS: usize = 3;
    let cluster = Cluster::start();
    let (stop, done) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let tenure = connect(cluster.url()).await;
        let (stop, done) = (stop.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            while !stop.load(Ordering::Acquire) {
                let guard = soon("a turn", tenure.lock("x").ttl(LONG).acquire()).await.expect("a grant");
                let count = read(&tenure, "x").await.map_or(0, |memo| {
                    std::str::from_utf8(&memo.bytes).expect("text").parse::<u64>().expect("a number")
                });
                soon("a memo", guard.write_memo((count + 1).to_string())).await.expect("a memo");
                done.fetch_add(1, Ordering::AcqRel);
                soon("a release", guard.release()).await.expect("a release");
            }
            tenure
        }));
    }
    let pass = async |count: u64| {
        let before = done.load(Ordering::Acquire);
        until("turns are taken", async || {
            assert!(tasks.iter().all(|task| !task.is_finished()), "a client has failed");
            done.load(Ordering::Acquire) > before + count
        })
        .await;
    };
    for _ in 0..4 {
        pass(15).await;
        let moving = Move::of(&cluster, "x");
        moving.begin();
        tokio::task::yield_now().await;
        moving.finish();
    }
    pass(15).await;
    stop.store(true, Ordering::Release);
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(soon("a client ends", task).await.unwrap());
    }
    reads(&clients[0], "x", &done.load(Ordering::Acquire).to_string()).await;
    end(clients, &masters(&cluster)).await;
}
