//! Acquires that share a claim id: the latest of a client has the claim, and those before it are told.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{Reply, TTL, World, now, settle, still_pending};
use tenure::{ErrorKind, Lock, Loss, Owner, Tenure};

fn owner() -> Owner {
    Owner::new("script").unwrap()
}

fn repeatable(tenure: &Tenure) -> Lock {
    tenure.session_as(owner()).lock("x").ttl(TTL).repeatable()
}

#[tokio::test]
async fn a_lease_that_its_client_acquires_again_is_lost_at_once() {
    let world = World::new();
    let tenure = world.client("a");
    let session = tenure.session_as(owner());
    for lock in [session.lock("x"), session.rwlock("x").read(), session.semaphore("x", 2)] {
        let lock = lock.ttl(TTL).repeatable();
        let first = lock.acquire().await.unwrap();
        let mut lost = Box::pin(first.lost());
        still_pending(lost.as_mut()).await;
        let second = lock.acquire().await.unwrap();
        assert!(!first.is_held(), "two leases by one claim");
        assert_eq!(now("lost", lost).await, Loss::TakenOver);
        assert_eq!(first.protect(std::future::ready(())).await.unwrap_err().kind(), ErrorKind::Lost);
        assert_eq!(second.token(), first.token(), "it is the same claim");
        assert_eq!(first.release().await.unwrap_err().loss(), Some(&Loss::TakenOver));
        world.pass(TTL * 2).await;
        assert!(second.is_held(), "the first ends nothing of the second");
        second.release().await.unwrap();
        assert!(world.client("b").lock("x").try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn a_waiting_acquire_that_its_client_repeats_ends() {
    let world = World::new();
    let held = world.client("h").lock("x").ttl(TTL).acquire().await.unwrap();
    let tenure = world.client("a");
    let lock = repeatable(&tenure);
    let mut older = Box::pin(lock.acquire());
    still_pending(older.as_mut()).await;
    let mut later = Box::pin(lock.acquire());
    still_pending(later.as_mut()).await;
    let error = now("the older acquire", older).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    still_pending(later.as_mut()).await;
    assert_eq!(world.client("c").inspect("x").await.unwrap().waiters.len(), 1, "its place is the later one's");
    drop(held);
    let guard = now("the later acquire", later).await.unwrap();
    world.pass(TTL * 2).await;
    assert!(guard.is_held());
}

#[tokio::test]
async fn an_answer_that_comes_after_the_acquire_was_repeated_ends_nothing() {
    // The older attempt's request arrives after the later one was granted: as another attempt, it gets another number.
    for dropped in [false, true] {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let lock = repeatable(&tenure);
        gate.set(Reply::Delayed);
        let mut older = Box::pin(lock.acquire());
        still_pending(older.as_mut()).await;
        gate.set(Reply::Comes);
        let later = now("the later acquire", lock.acquire()).await.unwrap();
        let mut older = Some(older);
        if dropped {
            drop(older.take());
        }
        gate.open();
        settle().await;
        if let Some(older) = older {
            assert_eq!(now("the older acquire", older).await.unwrap_err().kind(), ErrorKind::Conflict);
        }
        settle().await;
        let other = world.client("b").lock("x").ttl(TTL);
        let both = other.try_acquire().await.unwrap().is_some() && later.is_held();
        assert!(!both, "two leases at once (dropped: {dropped})");
    }
}

#[tokio::test]
async fn a_repeat_that_is_refused_leaves_nothing_of_the_first() {
    let world = World::new();
    let tenure = world.client("a");
    let session = tenure.session_as(owner());
    let first = session.rwlock("x").read().ttl(TTL).repeatable().acquire().await.unwrap();
    // The same claim with another shape.
    let refused = session.rwlock("x").write().ttl(TTL).repeatable().acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(!first.is_held());
    settle().await;
    assert!(world.client("b").inspect("x").await.unwrap().is_free(), "nobody would renew or release it");
}

#[tokio::test]
async fn a_lease_that_its_client_releases_by_its_owner_is_lost_at_once() {
    let world = World::new();
    let tenure = world.client("a");
    let guard = repeatable(&tenure).acquire().await.unwrap();
    assert!(tenure.release_as("x", &owner()).await.unwrap());
    assert!(!guard.is_held());
    assert_eq!(now("lost", guard.lost()).await, Loss::Gone);
    assert!(world.client("b").lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_lease_that_another_client_acquires_again_is_lost_at_its_next_renewal() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let first = repeatable(&a).acquire().await.unwrap();
    let second = repeatable(&b).acquire().await.unwrap();
    world.pass(TTL / 3 + Duration::from_millis(50)).await;
    assert_eq!(now("lost", first.lost()).await, Loss::Gone);
    assert!(second.is_held());
}
