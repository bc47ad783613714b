//! Locks of several stores: all of them or none.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::time::Duration;

use common::{World, now, poll_once, settle, still_pending};
use tenure::{ErrorKind, MultiLock, Tenure};
use tenure_testkit::servers::shared;

const MOMENT: Duration = Duration::from_millis(20);
const BOUND: Duration = Duration::from_secs(60);

/// Clients of three stores, and of the same three once more.
async fn stores(test: &str, folder: &tempfile::TempDir) -> [[Tenure; 3]; 2] {
    let file = format!("sqlite:{}", folder.path().join("locks.db").display());
    let urls = [format!("memory:{test}"), file, shared::redis().url().to_owned()];
    let connect = async |url: &str| {
        Tenure::builder(url).prefix(format!("{test}/")).ttl(Duration::from_secs(600)).connect().await.unwrap()
    };
    let clients = async || [connect(&urls[0]).await, connect(&urls[1]).await, connect(&urls[2]).await];
    [clients().await, clients().await]
}

fn all(clients: &[Tenure]) -> MultiLock {
    MultiLock::of(clients.iter().map(|tenure| tenure.lock("x")))
}

/// What was taken is given back in the background: soon, and long before its ttl.
async fn are_free<'t>(clients: impl IntoIterator<Item = &'t Tenure>) {
    for tenure in clients {
        let free = tenure.lock("x").acquire_within(BOUND).await;
        assert!(free.is_ok(), "{}: {}", tenure.url(), free.unwrap_err());
    }
}

#[tokio::test]
async fn all_stores_or_none() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = stores("all", &folder).await;
    let held = all(&ours).acquire().await.unwrap();
    for tenure in &theirs {
        assert!(tenure.lock("x").try_acquire().await.unwrap().is_none(), "{}", tenure.url());
    }
    assert_eq!(held.protect(async { 7 }).await.unwrap(), 7);
    held.release().await.unwrap();

    // Whichever of them is busy, the others are given back.
    for busy in 0..theirs.len() {
        let in_the_way = theirs[busy].lock("x").acquire_within(BOUND).await.unwrap();
        assert!(all(&ours).try_acquire().await.unwrap().is_none());
        let error = all(&ours).acquire_within(MOMENT).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        let others = theirs.iter().enumerate().filter(|(index, _)| *index != busy);
        are_free(others.map(|(_, tenure)| tenure)).await;
        drop(in_the_way);
        are_free(&theirs).await;
    }
}

#[tokio::test]
async fn a_store_that_fails_leaves_nothing_behind_in_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = stores("fails", &folder).await;
    for failing in 0..ours.len() {
        let locks = ours.iter().enumerate().map(|(index, tenure)| {
            // No store is asked for a name that is none.
            tenure.lock(if index == failing { "" } else { "x" })
        });
        let error = MultiLock::of(locks).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        are_free(&theirs).await;
    }
}

#[tokio::test]
async fn whoever_names_them_in_another_order_blocks_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let [ours, theirs] = stores("order", &folder).await;
    let (forth, back) = (all(&ours), MultiLock::of(theirs.iter().rev().map(|tenure| tenure.lock("x"))));
    let tasks = [forth, back].map(|locks| {
        tokio::spawn(async move {
            for _ in 0..20 {
                let held = locks.acquire().await.unwrap();
                tokio::task::yield_now().await;
                assert!(held.is_held());
                held.release().await.unwrap();
            }
        })
    });
    for task in tasks {
        tokio::time::timeout(BOUND, task).await.unwrap_or_else(|_| panic!("they block each other")).unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_is_lost_while_another_is_waited_for_undoes_all() {
    let (one, two) = (World::new(), World::new());
    let (here, there) = (one.client("here"), two.client("there"));
    let in_the_way = there.lock("x").acquire().await.unwrap();
    // One store's URL does for both: the order is that in which they were given.
    let locks = MultiLock::of([here.lock("x"), there.lock("x")]);
    let mut acquire = Box::pin(locks.acquire());
    still_pending(acquire.as_mut()).await;
    assert_eq!(here.break_holders("x", None, "meanwhile").await.unwrap(), 1);
    let next = here.lock("x").try_acquire().await.unwrap().unwrap();
    in_the_way.release().await.unwrap();
    let error = two.drive("the loss", acquire).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert!(next.is_held() && there.lock("x").try_acquire().await.unwrap().is_some());
}

/// Dropped after every number of polls, with the second store free or busy.
#[tokio::test]
async fn cancelling_gives_back_what_was_taken() {
    for busy in [false, true] {
        for polls in 0..12 {
            let (one, two) = (World::new(), World::new());
            let (here, there, other) = (one.client("here"), two.client("there"), two.client("other"));
            let in_the_way = if busy { Some(other.lock("x").acquire().await.unwrap()) } else { None };
            {
                let locks = MultiLock::of([here.lock("x"), there.lock("x")]);
                let mut acquire = pin!(locks.acquire());
                for _ in 0..polls {
                    if poll_once(acquire.as_mut()).is_ready() {
                        assert!(!busy, "it was busy");
                        break;
                    }
                    settle().await;
                }
            }
            settle().await;
            let context = format!("busy: {busy}, after {polls} polls");
            assert!(here.inspect("x").await.unwrap().is_free(), "{context}");
            assert!(there.inspect("x").await.unwrap().waiters.is_empty(), "{context}");
            drop(in_the_way);
            drop(now(&context, other.lock("x").acquire()).await.unwrap());
            assert_eq!((here.live_claims(), there.live_claims()), (0, 0), "{context}");
        }
    }
}

#[tokio::test]
async fn a_name_that_a_client_locks_twice_is_taken_once() {
    let world = World::new();
    let (tenure, same_store) = (world.client("a"), world.client("b"));
    let table = tenure.rwlock("x");
    let locks = [table.read(), tenure.lock("x"), table.read(), tenure.semaphore("y", 3), tenure.semaphore("y", 3)];
    let held = now("all", MultiLock::of(locks).acquire()).await.unwrap();
    let shapes: Vec<String> = held.guards().iter().map(|guard| format!("{} {}", guard.name(), guard.shape())).collect();
    assert_eq!(shapes.len(), 3, "permits add up: {shapes:?}");
    assert_eq!(held.guards()[0].shape(), tenure::Shape::Exclusive);
    drop(held);
    // Another client is another holder, also of the same store.
    let both = MultiLock::of([tenure.lock("x"), same_store.lock("x")]);
    assert!(now("one of them", both.try_acquire()).await.unwrap().is_none());
}
