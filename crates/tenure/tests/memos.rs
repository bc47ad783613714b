//! What a guard writes with its name: in order, once, and never after its lease.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::time::Duration;

use common::{Reply, TTL, World, now, settle, still_pending};
use tenure::{Certainty, ErrorKind, MEMO_BYTES_MAX, MemoKind};

#[tokio::test]
async fn a_memo_outlives_its_guard_and_is_read_by_anyone() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    assert!(b.memo("x").await.unwrap().is_none());
    let guard = a.lock("x").acquire().await.unwrap();
    let (token, version) = (guard.token().unwrap(), guard.write_memo("one").await.unwrap());
    world.pass(Duration::from_secs(3)).await;
    let memo = b.memo("x").await.unwrap().unwrap();
    assert_eq!((memo.token, memo.version, memo.kind, &*memo.bytes), (token, version, MemoKind::User, &b"one"[..]));
    assert!(memo.age >= Duration::from_secs(3) && memo.age < Duration::from_secs(4), "{memo:?}");
    guard.release().await.unwrap();

    // The next holder does not know the version, and finds it out.
    let guard = b.lock("x").acquire().await.unwrap();
    guard.write_memo("two").await.unwrap();
    guard.write_memo("three").await.unwrap();
    assert_eq!(&*a.memo("x").await.unwrap().unwrap().bytes, b"three");
}

#[tokio::test]
async fn a_memo_is_kept_for_as_long_as_it_is_to_be() {
    let world = World::new();
    let tenure = world.client("a");
    let guard = tenure.lock("x").acquire().await.unwrap();
    guard.write_memo_for("short", Duration::from_secs(60)).await.unwrap();
    world.pass(Duration::from_secs(59)).await;
    assert!(tenure.memo("x").await.unwrap().is_some());
    world.pass(Duration::from_secs(2)).await;
    assert!(tenure.memo("x").await.unwrap().is_none());
    guard.write_memo("again").await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_written_is_refused_before_it_is_sent() {
    let world = World::new();
    let tenure = world.client("a");
    let guard = tenure.lock("x").acquire().await.unwrap();
    guard.write_memo(vec![0; MEMO_BYTES_MAX]).await.unwrap();
    let error = guard.write_memo(vec![0; MEMO_BYTES_MAX + 1]).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Invalid, Certainty::NotApplied), "{error}");
    assert!(error.to_string().contains("at most 65536 bytes, this one 65537"), "{error}");
    let reader = tenure.rwlock("y").read().acquire().await.unwrap();
    let error = reader.write_memo("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let permit = tenure.semaphore("z", 3).acquire().await.unwrap();
    assert_eq!(permit.write_memo("x").await.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn a_holder_that_slept_through_its_deadline_writes_nothing() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let guard = a.lock("x").ttl(TTL).acquire().await.unwrap();
    // Nothing runs meanwhile: neither the watchdog nor the store.
    world.clock.advance(TTL * 2);
    let next = now("the next", b.lock("x").acquire()).await.unwrap();
    next.write_memo("mine").await.unwrap();
    let error = guard.write_memo("late").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(&*b.memo("x").await.unwrap().unwrap().bytes, b"mine");
}

#[tokio::test]
async fn a_broken_holder_learns_it_from_its_write() {
    let world = World::new();
    let ((a, gate), b) = (world.gated("a"), world.client("b"));
    gate.deafen();
    let guard = a.lock("x").acquire().await.unwrap();
    b.break_holders("x", None, "test").await.unwrap();
    assert!(guard.is_held(), "it has not heard of it");
    assert_eq!(guard.write_memo("late").await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(!guard.is_held());
    assert!(b.memo("x").await.unwrap().is_none());
}

#[tokio::test]
async fn an_unanswered_write_is_repeated_and_is_one_write() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").acquire().await.unwrap();
    let first = guard.write_memo("one").await.unwrap();
    gate.set(Reply::FailsApplied);
    let mut write = pin!(guard.write_memo("two"));
    still_pending(write.as_mut()).await;
    gate.open();
    let second = world.drive("the write", write).await.unwrap();
    let memo = tenure.memo("x").await.unwrap().unwrap();
    assert_eq!((memo.version, &*memo.bytes), (second, &b"two"[..]));
    assert_ne!(first, second);
}

#[tokio::test]
async fn a_write_that_is_never_answered_is_unknown() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    gate.set(Reply::NeverApplied);
    let error = world.drive("the write", guard.write_memo("one")).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Lost), "{error}");
    assert_eq!(error.certainty(), Certainty::Unknown, "{error}");
}

#[tokio::test]
async fn two_writes_of_a_guard_never_change_places() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").acquire().await.unwrap();
    gate.set(Reply::Delayed);
    {
        let mut given_up = pin!(guard.write_memo("one"));
        still_pending(given_up.as_mut()).await;
    }
    gate.set(Reply::Comes);
    guard.write_memo("two").await.unwrap();
    // The first one arrives now.
    gate.open();
    settle().await;
    assert_eq!(&*tenure.memo("x").await.unwrap().unwrap().bytes, b"two");
}

/// Three tasks: two wait while the first holds, so that the second is granted a block and hands over within it.
#[tokio::test]
async fn a_late_write_of_an_earlier_task_does_not_reach_into_a_later_ones_turn() {
    for answered in [true, false] {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let lock = tenure.lock("x");
        let first = lock.acquire().await.unwrap();
        let mut second = Box::pin(lock.acquire());
        still_pending(second.as_mut()).await;
        let mut third = Box::pin(lock.acquire());
        still_pending(third.as_mut()).await;
        drop(first);
        let second = now("the second", second).await.unwrap();
        let token = second.token().unwrap();
        if answered {
            second.write_memo("of the second").await.unwrap();
        } else {
            gate.set(Reply::Delayed);
            let mut given_up = Box::pin(second.write_memo("of the second"));
            still_pending(given_up.as_mut()).await;
            drop(given_up);
            gate.set(Reply::Comes);
        }
        drop(second);
        let third = now("the third", third).await.unwrap();
        let in_the_block = third.token().unwrap().get() == token.get() + 1;
        assert_eq!(in_the_block, answered, "it goes on within the block only if nothing is on its way");
        gate.open();
        settle().await;
        let memo = tenure.memo("x").await.unwrap();
        assert_eq!(memo.is_some(), answered, "a late write of the second changes nothing in the third's turn");
        third.write_memo("of the third").await.unwrap();
        assert_eq!(&*tenure.memo("x").await.unwrap().unwrap().bytes, b"of the third");
    }
}
