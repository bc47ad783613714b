//! Dropping any future at any await point leaves nothing behind beyond one ttl, whatever the replies do.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use common::{Gated, Reply, TTL, World, poll_once, settle};
use tenure::{Guard, Owner, Tenure};

type Work = Pin<Box<dyn Future<Output = ()>>>;

const REPLIES: [Reply; 7] = [
    Reply::Comes,
    Reply::ComesLater,
    Reply::FailsApplied,
    Reply::FailsNotApplied,
    Reply::Late,
    Reply::NeverApplied,
    Reply::Never,
];
/// No future here is ready later than this, or it waits for ever.
const POLLS_MAX: usize = 12;

/// What a case may use: the gated client, and a guard of it that was acquired with the gate open.
struct Given {
    tenure: Tenure,
    guard: Option<Guard>,
}

/// Runs one future in every way: each reply, dropped after each number of polls.
async fn matrix(what: &str, needs_guard: bool, contended: bool, work: impl Fn(Given) -> Work) {
    for reply in REPLIES {
        for polls in 0..=POLLS_MAX {
            let world = World::new();
            let other = world.client("other");
            let (tenure, gate) = world.gated("gated");
            let guard = if needs_guard { Some(tenure.lock("x").ttl(TTL).acquire().await.unwrap()) } else { None };
            let in_the_way = if contended { Some(other.lock("x").ttl(TTL).acquire().await.unwrap()) } else { None };
            settle().await;

            gate.set(reply);
            let mut future = work(Given { tenure: tenure.clone(), guard });
            let mut finished = false;
            for _ in 0..polls {
                if poll_once(future.as_mut()).is_ready() {
                    finished = true;
                    break;
                }
                // Time for the tasks in the background, and for repeated tries.
                settle().await;
                world.clock.advance(Duration::from_millis(100));
                settle().await;
            }
            drop(future);
            drop(in_the_way);
            check_nothing_left(&format!("{what}, {reply:?}, dropped after {polls} polls"), &world, &tenure, &gate)
                .await;
            if finished {
                break;
            }
        }
    }
}

async fn check_nothing_left(case: &str, world: &World, tenure: &Tenure, gate: &Arc<Gated>) {
    // The store answers again; one ttl later nothing may be left, and nobody renews any more.
    settle().await;
    gate.open();
    world.pass(TTL).await;
    assert_eq!(tenure.live_claims(), 0, "{case}: a claim is still being kept alive");
    let fresh = world.client("fresh");
    let free = fresh.lock("x").try_acquire().await.unwrap();
    assert!(free.is_some(), "{case}: the name is not free: {:?}", fresh.inspect("x").await.unwrap());
    drop(free);
    assert!(fresh.inspect("x").await.unwrap().is_free(), "{case}: something waits");
    let mut closing = Box::pin(tenure.close());
    for _ in 0..50 {
        if poll_once(closing.as_mut()).is_ready() {
            return;
        }
        settle().await;
    }
    panic!("{case}: background work is left");
}

#[tokio::test]
async fn acquire() {
    for contended in [false, true] {
        matrix("acquire", false, contended, |given| {
            Box::pin(async move { drop(given.tenure.lock("x").ttl(TTL).acquire().await) })
        })
        .await;
    }
}

#[tokio::test]
async fn acquire_without_cohort() {
    for contended in [false, true] {
        matrix("strict acquire", false, contended, |given| {
            Box::pin(async move { drop(given.tenure.lock("x").ttl(TTL).strict_fifo().acquire().await) })
        })
        .await;
    }
}

#[tokio::test]
async fn acquire_within() {
    for contended in [false, true] {
        matrix("acquire_within", false, contended, |given| {
            let limit = Duration::from_millis(500);
            Box::pin(async move { drop(given.tenure.lock("x").ttl(TTL).acquire_within(limit).await) })
        })
        .await;
    }
}

#[tokio::test]
async fn try_acquire() {
    for contended in [false, true] {
        matrix("try_acquire", false, contended, |given| {
            Box::pin(async move { drop(given.tenure.lock("x").ttl(TTL).try_acquire().await) })
        })
        .await;
    }
}

#[tokio::test]
async fn acquire_without_renewal() {
    for contended in [false, true] {
        matrix("no_renewal", false, contended, |given| {
            Box::pin(async move { drop(given.tenure.lock("x").ttl(TTL).no_renewal().acquire().await) })
        })
        .await;
    }
}

#[tokio::test]
async fn acquire_behind_a_local_task() {
    matrix("acquire behind a local task", true, false, |given| {
        Box::pin(async move {
            let Given { tenure, guard } = given;
            let lock = tenure.lock("x").ttl(TTL);
            let waits = lock.acquire();
            let holds = async {
                tokio::task::yield_now().await;
                drop(guard);
            };
            let (guard, ()) = tokio::join!(waits, holds);
            drop(guard);
        })
    })
    .await;
}

#[tokio::test]
async fn many_local_tasks_that_come_and_go() {
    matrix("three local tasks", true, false, |given| {
        Box::pin(async move {
            let Given { tenure, guard } = given;
            let lock = tenure.lock("x").ttl(TTL);
            let brief = lock.acquire_within(Duration::from_millis(150));
            let one = async { drop(lock.acquire().await) };
            let two = async { drop(lock.acquire().await) };
            let holds = async {
                tokio::task::yield_now().await;
                drop(guard);
            };
            let (brief, (), (), ()) = tokio::join!(brief, one, two, holds);
            drop(brief);
        })
    })
    .await;
}

#[tokio::test]
async fn release() {
    matrix("release", true, false, |given| Box::pin(async move { drop(given.guard.unwrap().release().await) })).await;
}

#[tokio::test]
async fn protect_and_lost() {
    matrix("protect", true, false, |given| {
        Box::pin(async move {
            let guard = given.guard.unwrap();
            drop(guard.protect(std::future::pending::<()>()).await);
        })
    })
    .await;
    matrix("lost", true, false, |given| Box::pin(async move { drop(given.guard.unwrap().lost().await) })).await;
}

#[tokio::test]
async fn a_nested_claim_of_a_session() {
    matrix("session", false, false, |given| {
        Box::pin(async move {
            let session = given.tenure.session();
            let Ok(outer) = session.lock("x").ttl(TTL).acquire().await else { return };
            let inner = session.rwlock("x").read().ttl(TTL).acquire().await;
            drop((outer, inner));
        })
    })
    .await;
}

#[tokio::test]
async fn a_claim_left_to_its_owner() {
    // Left on purpose, it lives for one ttl and no longer; its renewal is not repeated by anybody.
    matrix("leave, renew_as, release_as", false, false, |given| {
        Box::pin(async move {
            let owner = Owner::new("script").unwrap();
            let lock = given.tenure.session_as(owner.clone()).lock("x").ttl(TTL).no_renewal().repeatable();
            let Ok(guard) = lock.acquire().await else { return };
            let _left = guard.leave();
            drop(given.tenure.renew_as("x", &owner, None).await);
            drop(given.tenure.release_as("x", &owner).await);
        })
    })
    .await;
}

#[tokio::test]
async fn looking_and_breaking() {
    matrix("inspect, list, break", true, false, |given| {
        Box::pin(async move {
            drop(given.tenure.inspect("x").await);
            drop(given.tenure.list("").await);
            drop(given.tenure.break_holders("x", None, "test").await);
        })
    })
    .await;
}

/// The matrix can fail: a claim that nobody ends is seen.
#[tokio::test]
async fn the_check_sees_what_is_left() {
    let world = World::new();
    let (tenure, gate) = world.gated("gated");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    std::mem::forget(guard);
    let mut check = Box::pin(check_nothing_left("forgotten", &world, &tenure, &gate));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for _ in 0..1_000_000 {
            if let Poll::Ready(()) = poll_once(check.as_mut()) {
                return;
            }
        }
    }));
    assert!(caught.is_err());
}
