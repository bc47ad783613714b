//! An operation that may have taken effect is never reported as one that surely did not, however its last try failed.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::time::Duration;

use common::{Reply, TTL, World, settle, still_pending};
use tenure::{Certainty, ErrorKind};

/// Tries that took effect, or may have.
const UNKNOWN: [Reply; 4] = [Reply::FailsApplied, Reply::NeverApplied, Reply::Late, Reply::Never];

#[tokio::test]
async fn an_acquire_is_as_sure_as_the_least_sure_of_its_tries() {
    for first in UNKNOWN {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        for lock in [tenure.lock("x").ttl(TTL), tenure.lock("y").ttl(TTL).strict_fifo()] {
            gate.set(first);
            let mut acquiring = pin!(lock.acquire_within(Duration::from_secs(8)));
            still_pending(acquiring.as_mut()).await;
            gate.set(Reply::FailsNotApplied);
            let error = world.drive("acquire_within", acquiring).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{first:?}");
            assert_eq!(error.certainty(), Certainty::Unknown, "{first:?}: {error}");
        }
    }
}

#[tokio::test]
async fn what_was_refused_each_time_was_surely_not_done() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let lock = tenure.lock("x").ttl(Duration::from_secs(2));
    let guard = lock.acquire().await.unwrap();
    gate.set(Reply::FailsNotApplied);
    let acquiring = tenure.lock("y").ttl(TTL);
    let error = world.drive("acquire_within", acquiring.acquire_within(Duration::from_secs(5))).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotApplied));
    gate.open();
    drop(guard);
    let guard = world.drive("acquire", lock.acquire()).await.unwrap();
    gate.set(Reply::FailsNotApplied);
    let error = world.drive("release", guard.release()).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::NotApplied));
}

#[tokio::test]
async fn the_doubt_about_a_try_passes_to_the_task_that_goes_on_with_it() {
    let ttl = Duration::from_secs(60);
    for first in [Reply::FailsApplied, Reply::NeverApplied] {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let lock = tenure.lock("x").ttl(ttl);
        gate.set(first);
        let mut brief = Box::pin(lock.acquire_within(Duration::from_secs(1)));
        still_pending(brief.as_mut()).await;
        let mut next = Box::pin(lock.acquire_within(Duration::from_secs(5)));
        still_pending(next.as_mut()).await;
        gate.set(Reply::FailsNotApplied);
        assert!(world.drive("the first task", brief).await.is_err());
        let error = world.drive("the next task", next).await.unwrap_err();
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown), "{first:?}");
        // What the first try left is ended as soon as the store can be reached, long before its ttl.
        gate.open();
        world.pass(Duration::from_secs(5)).await;
        assert!(world.client("b").inspect("x").await.unwrap().is_free(), "{first:?}");
    }
}

#[tokio::test]
async fn a_release_is_as_sure_as_the_least_sure_of_its_tries() {
    for first in UNKNOWN {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let guard = tenure.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
        settle().await;
        gate.set(first);
        let mut releasing = pin!(guard.release());
        still_pending(releasing.as_mut()).await;
        gate.set(Reply::FailsNotApplied);
        let error = world.drive("release", releasing).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.certainty()),
            (ErrorKind::Unavailable, Certainty::Unknown),
            "{first:?}: {error}"
        );
    }
}

#[tokio::test]
async fn a_request_for_the_next_block_is_as_sure_as_the_least_sure_of_its_tries() {
    for first in UNKNOWN {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let lock = tenure.lock("x").ttl(TTL);
        let guard = lock.acquire().await.unwrap();
        let mut next = Box::pin(lock.acquire_within(Duration::from_secs(8)));
        still_pending(next.as_mut()).await;
        gate.set(first);
        drop(guard);
        still_pending(next.as_mut()).await;
        gate.set(Reply::FailsNotApplied);
        let error = world.drive("the next task", next).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.certainty()),
            (ErrorKind::Unavailable, Certainty::Unknown),
            "{first:?}: {error}"
        );
    }
}

#[tokio::test]
async fn a_place_whose_end_nobody_confirmed_may_still_be_granted() {
    for (reply, certainty) in [(Reply::Comes, Certainty::NotApplied), (Reply::FailsNotApplied, Certainty::Unknown)] {
        let world = World::new();
        let _held = world.client("h").lock("x").ttl(Duration::from_secs(60)).acquire().await.unwrap();
        let (tenure, gate) = world.gated("a");
        let lock = tenure.lock("x").ttl(TTL);
        let mut waiting = pin!(lock.acquire_within(Duration::from_secs(5)));
        still_pending(waiting.as_mut()).await;
        gate.set(reply);
        let error = world.drive("acquire_within", waiting).await.unwrap_err();
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Timeout, certainty), "{reply:?}");
    }
}
