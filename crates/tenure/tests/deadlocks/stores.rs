//! Cycles of sessions of several clients over every store that has sessions: found, broken, and the victim is told.

use tenure::{Ended, ErrorKind, Tenure};
use tenure_testkit::servers::shared;

use crate::ring::{Ring, deadlocks, eventually};

/// Clients of a store with a cycle among their sessions, which is broken.
async fn found_and_broken(url: &str, owners: usize) {
    let mut clients = Vec::new();
    for number in 0..owners {
        clients.push(Tenure::builder(url).label(format!("owner {number}")).connect().await.unwrap());
    }
    let looker = Tenure::builder(url).label("looker").connect().await.unwrap();
    let group = format!("ring-{:016x}", rand::random::<u64>());
    let mut ring = Ring::of(&clients, &group).await;
    // Somebody waits behind them, and is in no deadlock.
    let outsider = looker.session();
    let hangs_on = crate::ring::wait_for(&outsider, &ring.names[0]);
    eventually("it waits, too", async || looker.inspect(&ring.names[0]).await.unwrap().waiters.len() == 2).await;

    let found = deadlocks(&looker, &group).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let mut members: Vec<&str> = found[0].waits.iter().map(|wait| wait.label.as_deref().unwrap()).collect();
    members.sort_unstable();
    let expected: Vec<String> = (0..owners).map(|number| format!("owner {number}")).collect();
    assert_eq!(members, expected);
    let explained = looker.explain(&ring.names[0]).await.unwrap();
    assert_eq!(explained.deadlocks.len(), 1, "{explained:?}");

    // The one that came last is told, and does not wait any more.
    assert!(looker.break_deadlock(&found[0]).await.unwrap());
    let told = ring.waiting.pop().unwrap().await.unwrap().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Deadlock, "{told}");
    for part in ["looker", "owner 0 waits for", "held by owner 1"] {
        assert!(told.to_string().contains(part), "{part:?} is not in: {told}");
    }
    let last = clients.last().unwrap();
    assert_eq!(last.recent()[0].ended, Ended::Deadlock);
    assert!(!looker.break_deadlock(&found[0]).await.unwrap(), "it waits no more");
    assert!(deadlocks(&looker, &group).await.is_empty());
    // It gives back what it holds, and the others go on one by one.
    ring.held.pop();
    while let (Some(waiting), Some(held)) = (ring.waiting.pop(), ring.held.pop()) {
        drop(waiting.await.unwrap().unwrap());
        drop(held);
    }
    drop(hangs_on.await.unwrap().unwrap());
    for client in clients.iter().chain([&looker]) {
        client.close().await.unwrap();
    }
}

macro_rules! over {
    ($($store:ident: $url:expr),* $(,)?) => {$(
        mod $store {
            use super::*;

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_cycle_of_two_is_found_and_broken() {
                let (url, _kept) = $url;
                found_and_broken(&url, 2).await;
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn a_cycle_of_five_is_found_and_broken() {
                let (url, _kept) = $url;
                found_and_broken(&url, 5).await;
            }
        }
    )*};
}

fn file() -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (format!("sqlite:{}", directory.path().join("tenure.db").display()), directory)
}

over! {
    memory: (format!("memory:deadlocks-{:016x}", rand::random::<u64>()), ()),
    sqlite: file(),
    redis: (shared::redis().url().to_owned(), ()),
    redis_cluster: (shared::cluster().url().to_owned(), ()),
    etcd: (shared::etcd().url(), ()),
    zookeeper: (shared::zookeeper().url(), ()),
    postgres: (shared::postgres().url().to_owned(), ()),
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_waits_in_the_store_deadlocks_are_not_seen_and_that_is_said() {
    let tenure = Tenure::connect(shared::fleet().url_with("node_timeout=500ms")).await.unwrap();
    let error = tenure.deadlocks().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("do not wait in this store"), "{error}");
}
