//! A value is computed once, however many ask for it, and whatever becomes of who computes.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::future::{Future, pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::{Gated, Reply, World, now, poll_once, settle, still_pending};
use tenure::clock::Clock as _;
use tenure::{CachedError, ErrorKind, MEMO_BYTES_MAX, Tenure};

const KEEP: Duration = Duration::from_secs(60);

type Outcome = Result<Arc<[u8]>, CachedError<io::Error>>;

/// Asks for the value, which takes a second to compute, and counts the computations.
fn price<'a>(world: &'a World, tenure: &'a Tenure, computed: &'a AtomicUsize) -> impl Future<Output = Outcome> + 'a {
    tenure.cached("price", KEEP, move || async move {
        computed.fetch_add(1, Ordering::Relaxed);
        let (done_at, mut timer) = (world.clock.now() + Duration::from_secs(1), world.clock.timer());
        poll_fn(|cx| timer.poll_until(done_at, cx)).await;
        Ok("1299")
    })
}

#[tokio::test]
async fn a_store_without_memos_or_without_a_queue_is_refused() {
    let world = World::new();
    let client = || Gated::new(Arc::new(world.store.client()));
    for store in [client().without_memos(), client().without_queue()] {
        let tenure = Tenure::over(Arc::new(store), world.clock.clone(), "a");
        let error = tenure.cached("x", KEEP, || async { Ok::<_, io::Error>("1") }).await.unwrap_err();
        assert_eq!(error.kind(), Some(ErrorKind::Invalid), "{error}");
        assert!(error.to_string().contains("keeps no memos"), "{error}");
    }
}

#[tokio::test]
async fn a_fleet_computes_once_and_again_when_the_value_is_old() {
    let (world, computed) = (World::new(), AtomicUsize::new(0));
    let (a, b, c) = (world.client("a"), world.client("b"), world.client("c"));
    let callers = [&a, &a, &b, &b, &c, &c].map(|tenure| price(&world, tenure, &computed));
    let values = world.drive("the value", futures_util::future::join_all(callers)).await;
    assert!(values.into_iter().all(|value| &*value.unwrap() == b"1299"));
    assert_eq!(computed.load(Ordering::Relaxed), 1);
    world.pass(Duration::from_secs(50)).await;
    now("the value at hand", price(&world, &a, &computed)).await.unwrap();
    assert_eq!(computed.load(Ordering::Relaxed), 1);
    world.pass(Duration::from_secs(20)).await;
    world.drive("another value", price(&world, &b, &computed)).await.unwrap();
    now("the value in the store", price(&world, &c, &computed)).await.unwrap();
    assert_eq!(computed.load(Ordering::Relaxed), 2);
    settle().await;
    assert!(a.inspect("price").await.unwrap().is_free());
}

#[tokio::test]
async fn after_a_client_that_died_half_way_one_other_computes() {
    let (world, computed) = (World::new(), AtomicUsize::new(0));
    let ((dead, gate), b, c) = (world.gated("dead"), world.client("b"), world.client("c"));
    let mut dies = pin!(dead.cached("price", KEEP, pending::<Result<&str, io::Error>>));
    still_pending(dies.as_mut()).await;
    gate.set(Reply::Never);
    let callers = [&b, &b, &c, &c].map(|tenure| price(&world, tenure, &computed));
    let values = world.drive("the value", futures_util::future::join_all(callers)).await;
    assert!(values.into_iter().all(|value| &*value.unwrap() == b"1299"));
    assert_eq!(computed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn after_a_caller_that_was_dropped_another_of_its_client_goes_on() {
    let (world, computed) = (World::new(), AtomicUsize::new(0));
    let tenure = world.client("a");
    let mut first = Box::pin(tenure.cached("price", KEEP, pending::<Result<&str, io::Error>>));
    still_pending(first.as_mut()).await;
    let mut second = pin!(price(&world, &tenure, &computed));
    still_pending(second.as_mut()).await;
    drop(first);
    world.drive("the value", second).await.unwrap();
    assert_eq!(computed.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_failure_is_told_to_all_of_its_client_and_others_compute_once_each() {
    let (world, computed) = (World::new(), AtomicUsize::new(0));
    let (a, b) = (world.client("a"), world.client("b"));
    let callers = [&a, &a, &a, &b, &b, &b].map(|tenure| {
        tenure.cached("price", KEEP, || async {
            computed.fetch_add(1, Ordering::Relaxed);
            settle().await;
            Err::<&str, _>(io::Error::other("no price"))
        })
    });
    for outcome in world.drive("the failure", futures_util::future::join_all(callers)).await {
        assert!(matches!(outcome, Err(CachedError::Compute(error)) if error.to_string() == "no price"));
    }
    assert_eq!(computed.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_value_that_is_too_large_is_shared_within_a_client_only() {
    let (world, computed) = (World::new(), AtomicUsize::new(0));
    let (a, b) = (world.client("a"), world.client("b"));
    for tenure in [&a, &a, &b, &b] {
        let large = tenure.cached("x", KEEP, || async {
            computed.fetch_add(1, Ordering::Relaxed);
            Ok::<_, io::Error>(vec![0; MEMO_BYTES_MAX + 1])
        });
        assert_eq!(now("the value", large).await.unwrap().len(), MEMO_BYTES_MAX + 1);
        settle().await;
    }
    assert_eq!(computed.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_name_with_another_memo_and_a_keep_of_zero_are_refused() {
    let world = World::new();
    let tenure = world.client("a");
    tenure.lock("x").acquire().await.unwrap().write_memo("mine").await.unwrap();
    settle().await;
    for (keep, kind) in [(KEEP, ErrorKind::Conflict), (Duration::ZERO, ErrorKind::Invalid)] {
        let refused = tenure.cached("x", keep, || async { Ok::<_, io::Error>("1") });
        assert_eq!(now("the refusal", refused).await.unwrap_err().kind(), Some(kind));
    }
}

#[tokio::test]
async fn callers_dropped_after_any_number_of_polls_leave_nothing_behind() {
    for polls in 0..12 {
        let (world, computed) = (World::new(), AtomicUsize::new(0));
        let (a, b) = (world.client("a"), world.client("b"));
        let mut holds = Some(Box::pin(a.cached("price", KEEP, pending::<Result<&str, io::Error>>)));
        still_pending(holds.as_mut().unwrap().as_mut()).await;
        let mut waits = Box::pin(price(&world, &b, &computed));
        for poll in 0..polls {
            if poll == 6 {
                // From here on it computes.
                holds = None;
            }
            if poll_once(waits.as_mut()).is_ready() {
                break;
            }
            world.pass(Duration::from_millis(100)).await;
        }
        drop((waits, holds));
        settle().await;
        assert_eq!((a.live_claims(), b.live_claims()), (0, 0), "after {polls} polls");
        assert!(a.inspect("price").await.unwrap().is_free(), "after {polls} polls");
    }
}
