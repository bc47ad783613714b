//! How long a store that does not answer is waited for.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::time::Duration;

use common::{Reply, TTL, World, still_pending};
use tenure::clock::Clock as _;
use tenure::{Certainty, ErrorKind};

#[tokio::test]
async fn a_store_out_of_reach_is_not_a_busy_lock() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    for reply in [Reply::Never, Reply::NeverApplied, Reply::FailsApplied] {
        gate.set(reply);
        let lock = tenure.lock("x").ttl(TTL);
        let started = world.clock.now();
        let error = world.drive("acquire_within", lock.acquire_within(Duration::from_secs(2))).await.unwrap_err();
        let waited = world.clock.now().since(started);
        assert!(waited >= Duration::from_secs(2) && waited <= Duration::from_millis(2_100), "{waited:?}");
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{reply:?}");
        assert_eq!(error.certainty(), Certainty::Unknown);
        assert!(error.is_retryable());
    }
}

#[tokio::test]
async fn without_a_limit_a_store_that_never_answers_fails_after_ten_seconds() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    gate.set(Reply::Never);
    let lock = tenure.lock("x").ttl(TTL);
    let started = world.clock.now();
    let error = world.drive("acquire", lock.acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let waited = world.clock.now().since(started);
    assert!(waited >= Duration::from_secs(10) && waited <= Duration::from_secs(11), "{waited:?}");
}

#[tokio::test]
async fn once_it_has_answered_outages_are_ridden_out() {
    let world = World::new();
    let held = world.client("a").lock("x").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
    let (b, gate) = world.gated("b");
    let lock = b.lock("x").ttl(TTL);
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    gate.set(Reply::Never);
    for _ in 0..12 {
        world.pass(TTL / 2).await;
        still_pending(waiting.as_mut()).await;
    }
    gate.open();
    drop(held);
    assert!(world.drive("waiter", waiting).await.unwrap().is_held());
}

#[tokio::test]
async fn a_store_that_answers_others_is_slow_and_not_out_of_reach() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let _held = tenure.lock("held").ttl(TTL).acquire().await.unwrap();
    gate.set(Reply::Delayed);
    let lock = tenure.lock("x").ttl(TTL);
    let mut slow = pin!(lock.acquire());
    for _ in 0..30 {
        still_pending(slow.as_mut()).await;
        world.pass(Duration::from_secs(1)).await;
    }
    gate.open();
    assert!(world.drive("acquire", slow).await.unwrap().is_held());
}

#[tokio::test]
async fn a_claim_that_alone_is_never_answered_fails_after_a_minute() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let _held = tenure.lock("held").ttl(TTL).acquire().await.unwrap();
    gate.set(Reply::Delayed);
    let lock = tenure.lock("x").ttl(TTL);
    let mut never = pin!(lock.acquire());
    for _ in 0..59 {
        still_pending(never.as_mut()).await;
        world.pass(Duration::from_secs(1)).await;
    }
    let error = world.drive("acquire", never).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown));
}
