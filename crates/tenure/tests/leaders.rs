//! The task that drives a cohort's claim may never be polled again: the others go on without it.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::{TTL, World, now, settle, still_pending};
use tenure::Name;
use tenure::backend::{Backend as _, ReleaseRequest};

/// The store forgets the first claim that waits, as after a failover.
async fn forget_waiter(world: &World) {
    let first = world.client("looks").inspect("x").await.unwrap().waiters.remove(0);
    let ended = ReleaseRequest::new(first.owner.unwrap(), first.claim.0).with_number(first.claim.1);
    world.store.client().release(&Name::new("x").unwrap(), ended).await.unwrap();
}

#[tokio::test]
async fn local_tasks_do_not_wait_for_a_leader_that_nobody_polls_and_whose_place_the_store_has_lost() {
    for dropped in [false, true] {
        let world = World::new();
        let held = world.client("h").lock("x").ttl(TTL).acquire().await.unwrap();
        let a = world.client("a");
        let lock = a.lock("x").ttl(TTL);
        let mut tasks: Vec<_> = (0..3).map(|_| Box::pin(lock.acquire())).collect();
        for task in &mut tasks {
            still_pending(task.as_mut()).await;
        }
        forget_waiter(&world).await;
        world.pass(TTL).await;
        drop(held);
        let mut leader = Some(tasks.remove(0));
        if dropped {
            // It passes its claim, which is lost, to a task that nobody polls either.
            drop(leader.take());
        }
        let parked = tasks.remove(0);
        let last = world.drive("the last task", tasks.remove(0)).await.unwrap();
        assert!(last.is_held());
        drop(last);
        for task in leader.into_iter().chain([parked]) {
            drop(world.drive("a task that is polled at last", task).await.unwrap());
        }
        settle().await;
        assert!(world.client("o").inspect("x").await.unwrap().is_free());
    }
}

#[tokio::test]
async fn a_leader_that_goes_on_after_its_place_was_lost_stays_the_leader() {
    let world = World::new();
    let held = world.client("h").lock("x").ttl(TTL * 60).acquire().await.unwrap();
    let a = world.client("a");
    let lock = a.lock("x").ttl(TTL);
    let mut leader = Box::pin(lock.acquire());
    still_pending(leader.as_mut()).await;
    let mut second = Box::pin(lock.acquire());
    still_pending(second.as_mut()).await;
    for _ in 0..3 {
        forget_waiter(&world).await;
        world.pass(TTL / 2).await;
        still_pending(leader.as_mut()).await;
    }
    for _ in 0..4 {
        world.pass(TTL).await;
        still_pending(leader.as_mut()).await;
        still_pending(second.as_mut()).await;
    }
    assert_eq!(world.client("c").inspect("x").await.unwrap().waiters.len(), 1, "one claim stands for both");
    drop(held);
    drop(now("the leader", leader).await.unwrap());
    drop(now("the second task", second).await.unwrap());
}

#[tokio::test]
async fn local_tasks_do_not_wait_for_a_leader_that_nobody_polls_and_whose_grant_was_broken() {
    for handed_over in [false, true] {
        let world = World::new();
        let a = world.client("a");
        let lock = a.lock("x").ttl(TTL);
        // Granted by the store, or called to ask for the next block; broken before anybody could miss it.
        let holder = if handed_over { a.clone() } else { world.client("h") };
        let held = holder.lock("x").ttl(TTL).acquire().await.unwrap();
        let mut leader = Box::pin(lock.acquire());
        still_pending(leader.as_mut()).await;
        let mut second = Box::pin(lock.acquire());
        still_pending(second.as_mut()).await;
        drop(held);
        settle().await;
        world.pass(Duration::from_millis(100)).await;
        assert_eq!(world.client("admin").break_holders("x", None, "").await.unwrap(), 1);
        let second = world.drive("the second task", second).await.unwrap();
        assert!(second.is_held(), "handed over: {handed_over}");
        drop(second);
        drop(world.drive("the leader, polled at last", leader).await.unwrap());
    }
}
