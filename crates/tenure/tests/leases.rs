//! A lease says when it is lost, in time, and why; the watchdog keeps it alive otherwise.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Reply, TTL, World, now, settle, still_pending};
use tenure::clock::Clock as _;
use tenure::{ErrorKind, Loss, Owner, Tenure};

/// 1 % of the ttl and 2 ms.
const MARGIN: Duration = Duration::from_millis(102);

#[tokio::test]
async fn a_held_lease_is_renewed_for_as_long_as_it_is_held() {
    let world = World::new();
    let guard = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    for _ in 0..10 {
        world.pass(TTL / 2).await;
        assert!(guard.is_held());
        assert!(guard.remaining() > TTL / 2, "renewed at a third of the ttl: {:?}", guard.remaining());
    }
    let other = world.client("b");
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_before_its_deadline() {
    for reply in [Reply::Never, Reply::NeverApplied, Reply::FailsNotApplied, Reply::FailsApplied, Reply::Late] {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
        let granted = world.clock.now();
        gate.set(reply);
        let mut lost = Box::pin(guard.lost());
        // The deadline counts from before the request, which was now; lost() fires a little earlier.
        world.pass(TTL - MARGIN - Duration::from_millis(50)).await;
        still_pending(lost.as_mut()).await;
        assert!(guard.is_held());
        world.clock.advance(Duration::from_millis(49));
        settle().await;
        assert!(world.clock.now() < granted + TTL - MARGIN, "before the deadline");
        assert_eq!(now("lost", lost).await, Loss::Expired, "{reply:?}");
        assert!(!guard.is_held() && guard.remaining().is_zero());
        let error = guard.release().await.unwrap_err();
        assert_eq!((error.kind(), error.loss()), (ErrorKind::Lost, Some(&Loss::Expired)));
    }
}

#[tokio::test]
async fn a_renewal_that_hangs_is_repeated_within_a_ninth_of_the_ttl() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    gate.set(Reply::Never);
    world.pass(TTL / 3).await;
    let before = gate.calls.load(Ordering::Relaxed);
    gate.set(Reply::Comes);
    world.pass(TTL / 9 + Duration::from_millis(50)).await;
    assert!(gate.calls.load(Ordering::Relaxed) > before, "the hanging renewal was not repeated");
    assert!(guard.remaining() > TTL - TTL / 9 - MARGIN, "{:?}", guard.remaining());
}

#[tokio::test]
async fn a_pause_past_the_deadline_is_noticed_at_once() {
    let world = World::new();
    let guard = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    settle().await;
    world.clock.advance(TTL);
    assert!(!guard.is_held(), "the guard compares clocks itself, before any task runs");
    assert_eq!(now("lost", guard.lost()).await, Loss::Expired);
}

#[tokio::test]
async fn a_broken_holder_is_told_who_and_why() {
    let world = World::new();
    let guard = world.client("holder").lock("x").ttl(TTL).acquire().await.unwrap();
    let admin = world.client("admin");
    assert_eq!(admin.break_holders("x", None, "stuck since noon").await.unwrap(), 1);
    let loss = now("lost", guard.lost()).await;
    assert_eq!(loss, Loss::Broken { by: "admin".into(), reason: "stuck since noon".into() });
    let next = admin.lock("x").try_acquire().await.unwrap().unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test]
async fn a_break_whose_news_is_lost_is_learnt_at_the_next_renewal() {
    let world = World::new();
    let (tenure, gate) = world.gated("holder");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    gate.deafen();
    world.client("admin").break_holders("x", None, "why").await.unwrap();
    world.pass(TTL / 3 + Duration::from_millis(50)).await;
    assert_eq!(now("lost", guard.lost()).await, Loss::Broken { by: "admin".into(), reason: "why".into() });
}

#[tokio::test]
async fn max_hold_ends_a_lease_whatever_its_holder_does() {
    let world = World::new();
    let limit = Duration::from_secs(25);
    let guard = world.client("a").lock("x").ttl(TTL).max_hold(limit).acquire().await.unwrap();
    world.pass(limit - Duration::from_millis(50)).await;
    assert!(guard.is_held());
    world.pass(Duration::from_millis(100)).await;
    assert_eq!(now("lost", guard.lost()).await, Loss::MaxHold);
    assert!(world.client("b").lock("x").try_acquire().await.unwrap().is_some(), "and frees the name");
}

#[tokio::test]
async fn warn_after_reports_long_work_and_ends_nothing() {
    let world = World::new();
    let tenure = world.client("a");
    let guard = tenure.lock("x").ttl(TTL).warn_after(Duration::from_secs(1)).acquire().await.unwrap();
    let warned = common::count_warnings(async {
        world.pass(Duration::from_secs(2)).await;
    })
    .await;
    assert_eq!(warned, 1);
    assert!(guard.is_held());
}

#[tokio::test]
async fn a_lease_without_renewal_ends_after_one_ttl() {
    let world = World::new();
    let guard = world.client("a").lock("x").ttl(TTL).no_renewal().acquire().await.unwrap();
    world.pass(TTL).await;
    assert_eq!(now("lost", guard.lost()).await, Loss::Expired);
    assert!(world.client("b").lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_lease_without_renewal_that_was_waited_for_starts_with_its_full_ttl() {
    let world = World::new();
    let holder = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    let waits = world.client("b");
    let lock = waits.lock("x").ttl(TTL).no_renewal();
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    world.pass(TTL / 4).await;
    drop(holder);
    let guard = now("acquire", waiting).await.unwrap();
    assert_eq!(guard.remaining(), TTL - MARGIN);
}

#[tokio::test]
async fn protect_drops_the_work_the_moment_the_lease_is_lost() {
    struct Stopped<'a>(&'a AtomicBool);
    impl Drop for Stopped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let world = World::new();
    let guard = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    let stopped = AtomicBool::new(false);
    let work = async {
        let _stopped = Stopped(&stopped);
        std::future::pending::<()>().await;
    };
    let mut protected = pin!(guard.protect(work));
    still_pending(protected.as_mut()).await;
    world.client("admin").break_holders("x", None, "").await.unwrap();
    let error = now("protect", protected).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(stopped.load(Ordering::Relaxed), "the work is gone, not just forgotten");
}

#[tokio::test]
async fn protect_does_not_pass_off_work_that_slept_through_the_deadline() {
    let world = World::new();
    let guard = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    // A process that is stopped in the middle of its work, and goes on long after.
    let work = async { world.clock.advance(TTL * 2) };
    let error = guard.protect(work).await.unwrap_err();
    assert_eq!(error.loss(), Some(&Loss::Expired));
}

#[tokio::test]
async fn a_guard_dropped_by_a_panic_frees_the_name() {
    let world = World::new();
    let tenure = world.client("a");
    let lock = tenure.lock("x");
    let task = tokio::spawn(async move {
        let _guard = lock.acquire().await.unwrap();
        panic!("in the middle of the work");
    });
    assert!(task.await.is_err());
    assert!(tenure.lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn close_flushes_what_is_pending_and_refuses_what_is_new() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    gate.set(Reply::FailsNotApplied);
    drop(guard);
    let mut closing = pin!(tenure.close());
    still_pending(closing.as_mut()).await;
    gate.set(Reply::Comes);
    world.pass(Duration::from_secs(1)).await;
    now("close", closing).await.unwrap();
    assert!(world.client("b").lock("x").try_acquire().await.unwrap().is_some());
    assert_eq!(tenure.lock("x").acquire().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn a_lost_lease_is_never_put_back() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    gate.set(Reply::Late);
    world.pass(TTL).await;
    let lock = world.client("b").lock("x").ttl(TTL);
    let next = now("the next holder", lock.acquire()).await.unwrap();
    // The renewals that were under way all this time are answered only now.
    gate.open();
    world.pass(TTL).await;
    assert!(!guard.is_held() && next.is_held());
    let view = world.client("c").inspect("x").await.unwrap();
    assert_eq!(view.holders.len(), 1);
    assert_eq!(view.holders[0].token, next.token());
}

#[tokio::test]
async fn a_loss_carries_what_kept_the_lease_from_being_renewed() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    let both = tenure.lock_all(["y", "z"]).each(|lock| lock.ttl(TTL)).acquire().await.unwrap();
    gate.set(Reply::FailsNotApplied);
    let errors = {
        let mut protected = Box::pin(guard.protect(std::future::pending::<()>()));
        let mut protected_both = Box::pin(both.protect(std::future::pending::<()>()));
        still_pending(protected.as_mut()).await;
        still_pending(protected_both.as_mut()).await;
        world.pass(TTL).await;
        [now("protect", protected).await.unwrap_err(), now("protect", protected_both).await.unwrap_err()]
    };
    let failure = guard.renewal_failure().expect("a failed renewal");
    for error in errors.into_iter().chain([guard.release().await.unwrap_err()]) {
        assert_eq!(error.loss(), Some(&Loss::Expired));
        assert!(error.to_string().ends_with(&failure), "{failure:?} is not in {error}");
    }
}

#[tokio::test]
async fn a_renewal_for_longer_than_the_store_keeps_is_refused() {
    let world = World::new();
    let (tenure, owner) = (world.client("a"), Owner::new("script").unwrap());
    let lock = tenure.session_as(owner.clone()).lock("x").ttl(TTL).repeatable();
    let _left = lock.acquire().await.unwrap().leave();
    let long = Duration::from_secs(24 * 3_600 + 1);
    let refused = now("an answer", tenure.renew_as("x", &owner, Some(long))).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("out of range"), "{refused}");
    let lease = now("an answer", tenure.renew_as("x", &owner, Some(Duration::from_millis(99)))).await.unwrap();
    assert!(lease.expires_in > TTL / 2, "a shorter one keeps the longer: {lease:?}");
    let lease = now("an answer", tenure.renew_as("x", &owner, Some(TTL * 2))).await.unwrap();
    assert!(lease.expires_in > TTL, "{lease:?}");
}

#[tokio::test]
async fn a_release_after_the_deadline_is_lost_also_if_a_local_task_waits() {
    for waits in [false, true] {
        let world = World::new();
        let tenure = world.client("a");
        let lock = tenure.lock("x").ttl(TTL);
        let guard = lock.acquire().await.unwrap();
        let mut next = Box::pin(lock.acquire());
        if waits {
            still_pending(next.as_mut()).await;
        }
        settle().await;
        // The whole process stands still for two ttls; another one holds the lock by then.
        world.clock.advance(TTL * 2);
        let other = world.client("b").lock("x").ttl(TTL);
        let held = now("another process", other.try_acquire()).await.unwrap().unwrap();
        let error = now("release", guard.release()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Lost, "waits: {waits}");
        assert!(held.is_held());
        drop(held);
        assert!(world.drive("the next task", next).await.unwrap().is_held());
    }
}

#[tokio::test]
async fn a_release_after_the_deadline_that_finds_nothing_is_lost_however_often_it_was_tried() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).acquire().await.unwrap();
    settle().await;
    world.clock.advance(TTL * 2);
    let other = world.client("b").lock("x").ttl(TTL);
    let _held = now("another process", other.try_acquire()).await.unwrap().unwrap();
    // The first try is not answered, and was of no use: whoever has the lock had it before.
    gate.set(Reply::Never);
    let mut releasing = pin!(guard.release());
    assert!(common::poll_once(releasing.as_mut()).is_pending());
    gate.open();
    let error = world.drive("release", releasing).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
}

#[tokio::test]
async fn a_lease_is_renewed_when_its_holder_asks() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guard = tenure.lock("x").ttl(TTL).no_renewal().acquire().await.unwrap();
    for _ in 0..3 {
        world.pass(TTL * 2 / 3).await;
        assert!(guard.renew().await.unwrap() > TTL * 9 / 10);
    }
    gate.set(Reply::FailsApplied);
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(guard.is_held(), "what was promised before is kept");
    gate.set(Reply::Comes);
    assert_eq!(world.client("b").break_holders("x", None, "because").await.unwrap(), 1);
    let error = guard.renew().await.unwrap_err();
    assert!(matches!(error.loss(), Some(Loss::Broken { reason, .. }) if reason == "because"), "{error}");
    assert!(!guard.is_held());
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test]
async fn a_lease_that_ran_out_is_not_renewed() {
    let world = World::new();
    let guard = world.client("a").lock("x").ttl(TTL).no_renewal().acquire().await.unwrap();
    // Before anybody could tell it.
    world.clock.advance(TTL);
    assert_eq!(guard.renew().await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(world.client("b").lock("x").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_client_has_a_prefix_and_a_ttl_for_all_its_names() {
    let store = format!("memory:{}", rand::random::<u64>());
    let shop = Tenure::builder(&store).prefix("shop/").ttl(Duration::from_secs(60)).connect().await.unwrap();
    let bare = Tenure::connect(&store).await.unwrap();
    let guard = shop.lock("orders/42").acquire().await.unwrap();
    assert_eq!(guard.name().as_str(), "shop/orders/42");
    assert!(guard.remaining() > Duration::from_secs(50));
    assert!(bare.lock("shop/orders/42").try_acquire().await.unwrap().is_none());
    assert!(bare.lock("orders/42").try_acquire().await.unwrap().is_some());
    assert_eq!(shop.inspect("orders/42").await.unwrap().holders.len(), 1);
    assert_eq!(shop.list("ord").await.unwrap().len(), 1);
    assert_eq!(shop.lock("").try_acquire().await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(shop.break_holders("orders/42", None, "").await.unwrap(), 1);
    let session = shop.session();
    let all = session.lock_all(["a", "b"]).acquire().await.unwrap();
    let again = session.lock_all(["b", "c"]).acquire().await.unwrap();
    assert_eq!(all.guards()[1].token(), again.guards()[0].token(), "entered once more");
}
