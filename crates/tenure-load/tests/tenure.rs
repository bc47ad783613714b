//! tenure as what is measured, in memory.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::future::pending;

use tenure_load::order::{Hot, Leases, One, Pairs, Target};
use tenure_load::{Locker as _, TenureLocker, epoch_micros, hot, leases, pairs, take};

fn target() -> Target {
    Target { peer: "tenure".to_owned(), store: "memory".to_owned(), urls: vec!["memory:".to_owned()], ttl_ms: 10_000 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_leave_nothing() {
    let locker = TenureLocker::connect(&target()).await.unwrap();
    let order = Pairs { target: target(), tasks: 4, names: 3, prefix: "p".to_owned(), warmup_s: 0.01, seconds: 0.05 };
    pairs::run(&locker, &order, pending()).await.unwrap().unwrap();
    assert_eq!(locker.tenure().list("").await.unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_name_is_free_once_its_crowd_has_ended() {
    let locker = TenureLocker::connect(&target()).await.unwrap();
    let (name, prefix) = ("hot".to_owned(), "h".to_owned());
    let order = Hot { target: target(), tasks: 8, name, prefix, warmup_pairs: 20, seconds: 0.05 };
    hot::warm_up(&locker, &order).await.unwrap();
    let (result, crowd) = hot::run(&locker, &order, epoch_micros(), pending()).await.unwrap().unwrap();
    crowd.end().await;
    locker.tenure().close().await.unwrap();
    assert!(locker.tenure().inspect("hot").await.unwrap().is_free());
    let mut got: Vec<u64> = result.turns.iter().map(|(got, _, _)| *got).collect();
    got.sort_unstable();
    assert!(got.iter().all(|got| *got <= 50_000), "none after the end");
}

#[tokio::test]
async fn leases_are_held_and_given_back() {
    let locker = TenureLocker::connect(&target()).await.unwrap();
    let order = Leases { target: target(), leases: 600, prefix: "l".to_owned(), seconds: 0.0 };
    let mut held = Vec::new();
    let result = leases::run(&locker, &order, &mut held, || {}, pending()).await.unwrap().unwrap();
    assert_eq!((result.leases, result.held, locker.tenure().live_claims()), (600, 600, 600));
    leases::release(&locker, held).await.unwrap();
    assert_eq!(locker.tenure().live_claims(), 0);
}

#[tokio::test]
async fn what_is_taken_is_told_and_released() {
    let locker = TenureLocker::connect(&target()).await.unwrap();
    let before = epoch_micros();
    let mut got = None;
    let order = One { target: target(), name: "x".to_owned() };
    take::run(&locker, &order, |result| got = Some(result.got_us)).await.unwrap();
    assert!((before..=epoch_micros()).contains(&got.unwrap()));
    let held = locker.acquire("x").await.unwrap();
    assert!(locker.is_held(&held));
}

#[tokio::test]
async fn a_store_has_one_url_unless_it_is_a_fleet() {
    let two = Target { urls: vec!["memory:".to_owned(); 2], ..target() };
    assert_eq!(TenureLocker::connect(&two).await.unwrap_err().to_string(), "memory has one URL, not 2");
}
