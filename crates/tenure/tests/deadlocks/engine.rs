//! Breaking a deadlock, as the engine sees it.

use std::time::Duration;

use tenure::{ErrorKind, Shape};

use crate::common::{World, now, poll_once, still_pending};

#[tokio::test]
async fn the_victim_is_told_at_once_and_keeps_no_place() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let (one, other) = (a.session(), b.session());
    let _x = one.lock("x").acquire().await.unwrap();
    let y = other.lock("y").acquire().await.unwrap();
    let (first, second) = (one.lock("y"), other.lock("x"));
    let mut first = Box::pin(first.acquire());
    still_pending(first.as_mut()).await;
    world.pass(Duration::from_millis(10)).await;
    let mut second = Box::pin(second.acquire());
    still_pending(second.as_mut()).await;

    let found = a.deadlocks().await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].to_string(), "b waits for x, held by a; a waits for y, held by b");
    assert!(a.break_deadlock(&found[0]).await.unwrap());
    let told = now("the victim", second).await.unwrap_err();
    assert_eq!((told.kind(), told.is_retryable()), (ErrorKind::Deadlock, false));
    assert!(told.to_string().contains("refused by a, for it waited in a deadlock: b waits for x"), "{told}");
    assert!(a.inspect("x").await.unwrap().waiters.is_empty(), "it was not made anew");
    assert_eq!(b.live_claims(), 1);
    still_pending(first.as_mut()).await;
    drop(y);
    drop(now("the other", first).await.unwrap());
}

#[tokio::test]
async fn a_claim_that_was_granted_meanwhile_is_not_ended() {
    let world = World::new();
    let tenure = world.client("a");
    let (one, other) = (tenure.session(), tenure.session());
    let x = one.lock("x").acquire().await.unwrap();
    let _y = other.lock("y").acquire().await.unwrap();
    let (first, second) = (one.lock("y"), other.lock("x"));
    let mut first = Box::pin(first.acquire());
    still_pending(first.as_mut()).await;
    world.pass(Duration::from_millis(10)).await;
    let mut second = Box::pin(second.acquire());
    still_pending(second.as_mut()).await;
    let found = tenure.deadlocks().await.unwrap();
    // One of the tasks gives up by itself.
    drop(first);
    drop(x);
    assert!(!tenure.break_deadlock(&found[0]).await.unwrap());
    drop(now("it was its turn", second).await.unwrap());
}

/// A cohort's leader is refused; the others of it ask for themselves.
#[tokio::test]
async fn a_victim_with_local_tasks_behind_it_is_refused_alone() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let (one, other) = (a.session(), b.session());
    let _x = one.lock("x").acquire().await.unwrap();
    let y = other.lock("y").acquire().await.unwrap();
    let waits = one.lock("y");
    let mut waits = Box::pin(waits.acquire());
    still_pending(waits.as_mut()).await;
    world.pass(Duration::from_millis(10)).await;
    // As a nested run claims: an owner of its own, within the other.
    let nested = b.lock("x").within([other.owner().clone()]);
    let (mut leader, mut follower) = (Box::pin(nested.acquire()), Box::pin(nested.acquire()));
    still_pending(leader.as_mut()).await;
    still_pending(follower.as_mut()).await;
    let found = a.deadlocks().await.unwrap();
    assert_eq!(found[0].waits[0].within.as_ref(), Some(other.owner()));
    assert!(a.break_deadlock(&found[0]).await.unwrap());
    assert_eq!(now("the leader", leader).await.unwrap_err().kind(), ErrorKind::Deadlock);
    still_pending(follower.as_mut()).await;
    assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 1, "it waits by a claim of its own");
    drop(y);
    drop(now("the other", waits).await.unwrap());
}

#[tokio::test]
async fn permits_and_readers_are_seen_for_what_they_are() {
    let world = World::new();
    let tenure = world.client("a");
    let (one, other, free) = (tenure.session(), tenure.session(), tenure.session());
    let _permit = one.semaphore("s", 2).acquire().await.unwrap();
    let another = free.semaphore("s", 2).acquire().await.unwrap();
    let _read = other.rwlock("t").read().acquire().await.unwrap();
    let (write, permit) = (one.rwlock("t").write(), other.semaphore("s", 2));
    let (mut write, mut permit) = (Box::pin(write.acquire()), Box::pin(permit.acquire()));
    assert!(poll_once(write.as_mut()).is_pending() && poll_once(permit.as_mut()).is_pending());
    assert!(tenure.deadlocks().await.unwrap().is_empty(), "another holder's permit comes free");
    let waits = free.rwlock("t").write();
    let mut waits = Box::pin(waits.acquire());
    assert!(poll_once(waits.as_mut()).is_pending());
    let found = tenure.deadlocks().await.unwrap();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|deadlock| deadlock.waits[0].shape == Shape::Permits { units: 1, of: 2 }));
    drop(another);
}
