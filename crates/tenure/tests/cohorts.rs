//! Tasks of one process hand the lease to each other, in order, and do not starve other processes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Reply, TTL, World, now, settle, still_pending};
use tenure::{ErrorKind, Guard, Lock, Token};

/// Starts `count` tasks that each take the lock once, note their token, and yield while they hold it.
fn tasks(lock: &Lock, count: usize, taken: &Arc<Mutex<Vec<(usize, Token)>>>) -> Vec<tokio::task::JoinHandle<()>> {
    let task = |number| {
        let (lock, taken) = (lock.clone(), taken.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            taken.lock().unwrap().push((number, guard.token().unwrap()));
            tokio::task::yield_now().await;
            assert!(guard.is_held());
        })
    };
    (0..count).map(task).collect()
}

#[tokio::test]
async fn local_tasks_hand_over_in_order_with_growing_tokens_and_few_requests() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let taken: Arc<Mutex<Vec<(usize, Token)>>> = Arc::default();
    for task in tasks(&tenure.lock("x"), 200, &taken) {
        task.await.unwrap();
    }
    let taken = taken.lock().unwrap().clone();
    assert_eq!(taken.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..200).collect::<Vec<_>>());
    assert!(taken.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens grow from holder to holder");
    let calls = gate.calls.load(Ordering::Relaxed);
    assert!(calls <= 2 + 200_usize.div_ceil(32) + 1, "{calls} requests for 200 hand-overs");
    settle().await;
    assert_eq!(tenure.live_claims(), 0);
    assert!(world.client("b").inspect("x").await.unwrap().is_free());
}

#[tokio::test]
async fn another_process_is_passed_by_at_most_one_turn() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let first = a.lock("x").acquire().await.unwrap();
    let taken = Arc::default();
    let local = tasks(&a.lock("x"), 200, &taken);
    settle().await;
    let lock = b.lock("x");
    let mut foreign = pin!(lock.acquire());
    still_pending(foreign.as_mut()).await;
    drop(first);
    let guard = now("foreign", foreign).await.unwrap();
    let before = taken.lock().unwrap().len();
    assert!(before <= 32, "{before} local tasks went first");
    drop(guard);
    for task in local {
        task.await.unwrap();
    }
    assert_eq!(taken.lock().unwrap().len(), 200);
}

#[tokio::test]
async fn a_turn_is_also_over_after_ten_milliseconds() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let lock = a.lock("x");
    let mut guard = lock.acquire().await.unwrap();
    // The first hand-over asks for a block; the foreign waiter comes after it.
    let mut second = Box::pin(lock.acquire());
    still_pending(second.as_mut()).await;
    let mut third = Box::pin(lock.acquire());
    still_pending(third.as_mut()).await;
    drop(guard);
    guard = now("second", second).await.unwrap();
    let lock_b = b.lock("x");
    let mut foreign = pin!(lock_b.acquire());
    still_pending(foreign.as_mut()).await;
    world.clock.advance(Duration::from_millis(11));
    drop(guard);
    still_pending(third.as_mut()).await;
    drop(now("foreign", foreign).await.unwrap());
    drop(now("third", third).await.unwrap());
}

#[tokio::test]
async fn a_leader_that_gives_up_passes_its_place_in_the_store_on() {
    let world = World::new();
    let held = world.client("other").lock("x").acquire().await.unwrap();
    let a = world.client("a");
    let lock = a.lock("x");
    let mut leader = Box::pin(lock.acquire());
    still_pending(leader.as_mut()).await;
    let mut second = Box::pin(lock.acquire());
    still_pending(second.as_mut()).await;
    let place = world.client("c").inspect("x").await.unwrap().waiters[0].claim;
    drop(leader);
    still_pending(second.as_mut()).await;
    let view = world.client("c").inspect("x").await.unwrap();
    assert_eq!((view.waiters.len(), view.waiters[0].claim), (1, place));
    drop(held);
    drop(now("second", second).await.unwrap());
}

#[tokio::test]
async fn a_break_ends_the_guard_that_is_out_and_sends_the_rest_back_to_the_store() {
    let world = World::new();
    let a = world.client("a");
    let lock = a.lock("x");
    let out = lock.acquire().await.unwrap();
    let mut next = Box::pin(lock.acquire());
    still_pending(next.as_mut()).await;
    world.client("admin").break_holders("x", None, "").await.unwrap();
    // The next task does not wait for the evicted one to notice.
    let next = now("next", next).await.unwrap();
    assert!(next.token() > out.token());
    assert!(!out.is_held() && next.is_held());
    drop(out);
    settle().await;
    assert!(next.is_held(), "the evicted guard ends nothing of the next");
    assert_eq!(next.release().await.map_err(|error| error.kind()), Ok(()));
}

#[tokio::test]
async fn an_unanswered_request_for_the_next_block_is_repeated_and_ends_nothing_in_use() {
    for reply in [Reply::NeverApplied, Reply::Never, Reply::FailsApplied, Reply::FailsNotApplied, Reply::Late] {
        for foreign_waits in [false, true] {
            let world = World::new();
            let (a, gate) = world.gated("a");
            let lock = a.lock("x").ttl(TTL);
            let first = lock.acquire().await.unwrap();
            let mut second = Box::pin(lock.acquire());
            still_pending(second.as_mut()).await;
            let b = world.client("b");
            let lock_b = b.lock("x").ttl(TTL);
            let mut foreign = Box::pin(lock_b.acquire());
            if foreign_waits {
                still_pending(foreign.as_mut()).await;
            }
            gate.set(reply);
            let token = first.token();
            drop(first);
            still_pending(second.as_mut()).await;
            gate.open();
            if foreign_waits {
                let foreign = async { drop(world.drive("foreign", foreign).await.unwrap()) };
                let (second, ()) = tokio::join!(world.drive("second", second), foreign);
                let second = second.unwrap();
                check(&world, &second, token, reply).await;
                continue;
            }
            let second = world.drive("second", second).await.unwrap();
            check(&world, &second, token, reply).await;
        }
    }
}

async fn check(world: &World, second: &Guard, before: Option<Token>, reply: Reply) {
    assert!(second.token() > before, "{reply:?}");
    world.pass(TTL * 2).await;
    assert!(second.is_held(), "{reply:?}: a late copy ended the claim");
}

#[tokio::test]
async fn max_hold_is_each_guards_own() {
    let world = World::new();
    let a = world.client("a");
    let hasty = a.lock("x").max_hold(Duration::from_secs(1));
    let patient = a.lock("x");
    let first = hasty.acquire().await.unwrap();
    let mut second = Box::pin(patient.acquire());
    still_pending(second.as_mut()).await;
    drop(first);
    let second = now("second", second).await.unwrap();
    world.pass(Duration::from_secs(5)).await;
    assert!(second.is_held());
}

#[tokio::test]
async fn a_local_wait_ends_in_time() {
    let world = World::new();
    let a = world.client("a");
    let _held = a.lock("x").acquire().await.unwrap();
    let lock = a.lock("x");
    let mut waiting = pin!(lock.acquire_within(Duration::from_secs(1)));
    still_pending(waiting.as_mut()).await;
    world.pass(Duration::from_millis(1_100)).await;
    assert_eq!(now("acquire_within", waiting).await.unwrap_err().kind(), ErrorKind::Timeout);
    assert!(lock.try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn strict_locks_and_sessions_stay_out_of_the_cohort() {
    let world = World::new();
    let a = world.client("a");
    let held = a.lock("x").acquire().await.unwrap();
    let (strict, session) = (a.lock("x").strict_fifo(), a.session());
    let in_session = session.lock("x");
    let mut one = Box::pin(strict.acquire());
    still_pending(one.as_mut()).await;
    let mut two = Box::pin(in_session.acquire());
    still_pending(two.as_mut()).await;
    let view = a.inspect("x").await.unwrap();
    assert_eq!(view.waiters.len(), 2, "each waits in the store");
    drop(held);
    drop(now("strict", one).await.unwrap());
    drop(now("session", two).await.unwrap());
}

#[tokio::test]
async fn a_guard_that_is_left_leaves_the_cohort_too() {
    let world = World::new();
    let a = world.client("a");
    let lock = a.lock("x").ttl(TTL);
    let _lease = lock.acquire().await.unwrap().leave();
    assert!(lock.try_acquire().await.unwrap().is_none(), "it lives on in the store");
    let mut next = Box::pin(lock.acquire());
    still_pending(next.as_mut()).await;
    world.pass(TTL).await;
    assert!(world.drive("the next", next).await.unwrap().is_held());
}

#[tokio::test]
async fn nobody_re_enters_what_is_handed_over_in_memory() {
    let world = World::new();
    let a = world.client("a");
    let outer = a.lock("x").acquire().await.unwrap();
    let session = a.session_as(outer.owner().clone());
    assert_eq!(session.lock("x").try_acquire().await.unwrap_err().kind(), ErrorKind::Conflict);
    assert!(outer.is_held());
}

#[tokio::test]
async fn a_block_heard_too_late_is_not_reported() {
    let world = World::new();
    let (a, gate) = world.gated("a");
    let lock = a.lock("x").ttl(TTL);
    let first = lock.acquire().await.unwrap();
    let mut second = Box::pin(lock.acquire());
    still_pending(second.as_mut()).await;
    gate.set(Reply::Late);
    drop(first);
    still_pending(second.as_mut()).await;
    // The process is paused between the request and its answer.
    world.clock.advance(TTL * 2);
    gate.open();
    let second = world.drive("second", second).await.unwrap();
    assert!(second.is_held() && second.remaining() > TTL / 2);
}

#[tokio::test]
async fn a_task_with_another_ttl_gets_a_lease_of_its_own_length() {
    // Handed over, it would have the ttl of whoever asked first: one that dies blocks the name for that long.
    let (long, short) = (TTL * 6, TTL);
    for (first, second) in [(long, short), (short, long)] {
        let world = World::new();
        let (a, gate) = world.gated("a");
        let held = a.lock("x").ttl(first).acquire().await.unwrap();
        let lock = a.lock("x").ttl(second);
        let mut other = Box::pin(lock.acquire());
        still_pending(other.as_mut()).await;
        assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 1, "it waits in the store, for itself");
        drop(held);
        let guard = now("the other", other).await.unwrap();
        assert!(guard.remaining() <= second && guard.remaining() > second * 9 / 10, "{:?}", guard.remaining());
        // Its holder dies: the name is free after its own ttl, whatever the ttl of those before it.
        gate.set(Reply::Never);
        std::mem::forget(guard);
        let next = world.client("b").lock("x").ttl(TTL);
        let mut next = Box::pin(next.acquire());
        still_pending(next.as_mut()).await;
        world.pass(second - Duration::from_secs(1)).await;
        still_pending(next.as_mut()).await;
        world.pass(Duration::from_secs(2)).await;
        assert!(now("the next process", next).await.unwrap().is_held());
    }
}

#[tokio::test]
async fn a_task_that_wants_no_renewal_is_handed_no_lease_that_is_renewed() {
    for first_is_renewed in [true, false] {
        let world = World::new();
        let a = world.client("a");
        let (renewed, brief) = (a.lock("x").ttl(TTL), a.lock("x").ttl(TTL).no_renewal());
        let (first, second) = if first_is_renewed { (renewed, brief) } else { (brief, renewed) };
        let held = first.acquire().await.unwrap();
        let mut next = Box::pin(second.acquire());
        still_pending(next.as_mut()).await;
        assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 1, "it waits in the store, for itself");
        drop(held);
        let next = now("the next task", next).await.unwrap();
        world.pass(TTL).await;
        assert_eq!(next.is_held(), !first_is_renewed, "renewed after all, or not");
    }
}

#[tokio::test]
async fn two_tasks_that_want_no_renewal_hand_nothing_over() {
    let world = World::new();
    let a = world.client("a");
    let lock = a.lock("x").ttl(TTL).no_renewal();
    let held = lock.acquire().await.unwrap();
    let mut next = Box::pin(lock.acquire());
    still_pending(next.as_mut()).await;
    world.pass(TTL / 2).await;
    drop(held);
    let next = now("the next task", next).await.unwrap();
    assert!(next.remaining() > TTL * 9 / 10, "each starts with its full ttl: {:?}", next.remaining());
    world.pass(TTL).await;
    assert!(!next.is_held());
}

#[tokio::test]
async fn a_label_and_the_owners_it_runs_within_are_each_claims_own() {
    let world = World::new();
    let a = world.client("a");
    let held = a.lock("x").label("one").acquire().await.unwrap();
    let outer = tenure::Owner::new("outer").unwrap();
    let (labelled, within) = (a.lock("x").label("two"), a.lock("x").label("one").within([outer]));
    let mut second = Box::pin(labelled.acquire());
    still_pending(second.as_mut()).await;
    let mut third = Box::pin(within.acquire());
    still_pending(third.as_mut()).await;
    assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 2, "each waits in the store");
    drop(held);
    let second = now("second", second).await.unwrap();
    assert_eq!(a.inspect("x").await.unwrap().holders[0].label.as_deref(), Some("two"));
    drop(second);
    drop(now("third", third).await.unwrap());
}
