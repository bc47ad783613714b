//! Claims that come and go all the time, in an order that has no deadlocks: none is told of.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tenure::Tenure;
use tenure_testkit::servers::shared;

/// How many sessions, and how many names they meet on.
const SESSIONS: usize = 24;
const NAMES: u64 = 8;

/// Sessions of several clients that take two or three names each, in their order, until it is over.
async fn churn(url: &str, time: Duration, at_least: u64) {
    let group = format!("churn-{:016x}", rand::random::<u64>());
    let (over, claims) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut tasks = Vec::new();
    let mut client = Tenure::connect(url).await.unwrap();
    for number in 0..SESSIONS {
        if number % 6 == 0 {
            client = Tenure::connect(url).await.unwrap();
        }
        let (tenure, group, over, claims) = (client.clone(), group.clone(), over.clone(), claims.clone());
        tasks.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                let session = tenure.session();
                let mut names: Vec<u64> = (0..3).map(|_| rand::random_range(0..NAMES)).collect();
                names.sort_unstable();
                names.dedup();
                let mut held = Vec::new();
                for name in names {
                    held.push(session.lock(format!("{group}/{name}")).acquire().await.unwrap());
                    claims.fetch_add(1, Ordering::Relaxed);
                }
                for guard in held {
                    guard.release().await.unwrap();
                }
            }
        }));
    }
    let looker = Tenure::connect(url).await.unwrap();
    let (began, mut looks) = (Instant::now(), 0_u32);
    while began.elapsed() < time || looks < 3 {
        let found = looker.deadlocks().await.unwrap();
        assert!(found.iter().all(|deadlock| !deadlock.waits[0].name.as_str().starts_with(&group)), "{found:?}");
        looks += 1;
    }
    over.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    let claims = claims.load(Ordering::Relaxed);
    assert!(claims >= at_least, "only {claims} claims while it looked {looks} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_deadlock_is_told_of_while_claims_come_and_go() {
    churn("memory:churn", Duration::from_secs(1), 100).await;
    churn(shared::redis().url(), Duration::from_secs(1), 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "night: a minute for each store, at 1,000 claims a second"]
async fn no_deadlock_is_told_of_in_a_minute_of_a_thousand_claims_a_second() {
    churn("memory:churn-long", Duration::from_secs(60), 60_000).await;
    churn(shared::redis().url(), Duration::from_secs(60), 60_000).await;
}
