//! Waiting: in order, for as long as asked, and told apart when it fails.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::{Gated, Reply, TTL, World, now, settle, still_pending};
use tenure::{ErrorKind, Tenure, WaitStrategy};

#[tokio::test]
async fn a_timeout_says_who_holds_and_leaves_the_queue() {
    let world = World::new();
    let _held = world.client("web-1:77").lock("x").acquire().await.unwrap();
    let tenure = world.client("b");
    let lock = tenure.lock("x");
    let mut waiting = pin!(lock.acquire_within(Duration::from_secs(5)));
    still_pending(waiting.as_mut()).await;
    world.pass(Duration::from_millis(4_900)).await;
    still_pending(waiting.as_mut()).await;
    world.pass(Duration::from_millis(200)).await;
    let error = now("acquire_within", waiting).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert_eq!(error.holder().unwrap().label, "web-1:77");
    assert!(error.to_string().contains("(held by web-1:77, place 1)"), "{error}");
    assert!(world.client("c").inspect("x").await.unwrap().waiters.is_empty());
    assert_eq!(tenure.live_claims(), 0);
}

#[tokio::test]
async fn a_release_is_handed_to_the_first_waiter_at_once() {
    let world = World::new();
    let held = world.client("a").lock("x").acquire().await.unwrap();
    let (b, c) = (world.client("b"), world.client("c"));
    let (lock_b, lock_c) = (b.lock("x"), c.lock("x"));
    let (mut first, mut second) = (pin!(lock_b.acquire()), pin!(lock_c.acquire()));
    still_pending(first.as_mut()).await;
    still_pending(second.as_mut()).await;
    let token = held.token();
    held.release().await.unwrap();
    let first = now("first", first).await.unwrap();
    assert!(first.token() > token);
    still_pending(second.as_mut()).await;
    drop(first);
    drop(now("second", second).await.unwrap());
}

#[tokio::test]
async fn waiters_stay_alive_for_as_long_as_they_wait() {
    let world = World::new();
    let held = world.client("a").lock("x").ttl(Duration::from_secs(3600)).acquire().await.unwrap();
    let b = world.client("b");
    let lock = b.lock("x").ttl(Duration::from_secs(1));
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    let number = world.client("c").inspect("x").await.unwrap().waiters[0].claim;
    world.pass(Duration::from_secs(20)).await;
    assert_eq!(world.client("c").inspect("x").await.unwrap().waiters[0].claim, number, "the same claim, renewed");
    drop(held);
    drop(now("waiter", waiting).await.unwrap());
}

#[tokio::test]
async fn a_dead_holder_is_succeeded_the_moment_its_claim_dies() {
    let world = World::new();
    let (dying, gate) = world.gated("dying");
    let held = dying.lock("x").ttl(TTL).acquire().await.unwrap();
    let b = world.client("b");
    let lock = b.lock("x").ttl(TTL);
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    // Nothing of it reaches the store any more, not even a release.
    gate.set(Reply::Never);
    world.pass(TTL - Duration::from_millis(50)).await;
    still_pending(waiting.as_mut()).await;
    world.pass(Duration::from_millis(100)).await;
    drop(now("successor", waiting).await.unwrap());
    drop(held);
}

#[tokio::test]
async fn lost_news_of_a_grant_is_healed_by_the_renewal() {
    let world = World::new();
    let held = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    let (b, gate) = world.gated("b");
    let lock = b.lock("x").ttl(TTL);
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    gate.deafen();
    drop(held);
    still_pending(waiting.as_mut()).await;
    world.pass(TTL / 3 + Duration::from_millis(50)).await;
    drop(now("waiter", waiting).await.unwrap());
}

#[tokio::test]
async fn a_grant_heard_too_late_is_not_reported_but_made_anew() {
    let world = World::new();
    let held = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    let (b, gate) = world.gated("b");
    let lock = b.lock("x").ttl(TTL);
    let mut waiting = pin!(lock.acquire());
    still_pending(waiting.as_mut()).await;
    let first = world.client("c").inspect("x").await.unwrap().waiters[0].claim;
    // Granted and told; but the process is paused before it can look, for longer than its ttl.
    gate.set(Reply::Never);
    drop(held);
    world.clock.advance(TTL);
    gate.open();
    let guard = world.drive("waiter", waiting).await.unwrap();
    assert!(guard.is_held() && guard.remaining() > TTL / 2);
    let view = world.client("c").inspect("x").await.unwrap();
    assert_ne!(view.holders[0].claims[0], first, "a new claim, with a deadline of its own");
}

#[tokio::test]
async fn a_store_whose_grants_always_come_too_late_is_not_asked_for_ever() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    world.clock.advance(TTL * 2);
    gate.outdate();
    let lock = tenure.lock("x").ttl(TTL);
    let refused = now("an answer", lock.try_acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("longer than the ttl"), "{refused}");
    gate.calls.store(0, Ordering::Relaxed);
    let error = world.drive("acquire_within", lock.acquire_within(Duration::from_secs(20))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let calls = gate.calls.load(Ordering::Relaxed);
    // With pauses that grow to a second, a claim and its release each time.
    assert!((20..150).contains(&calls), "{calls}");
    world.pass(Duration::from_secs(1)).await;
    assert!(world.client("b").inspect("x").await.unwrap().is_free());
}

#[tokio::test]
async fn where_the_store_keeps_no_queue_the_engine_asks_again() {
    for strategy in [WaitStrategy::Backoff, WaitStrategy::Spin] {
        let world = World::new();
        let held = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
        let gate = Arc::new(Gated::new(Arc::new(world.store.client())).without_queue());
        let tenure = Tenure::over(gate, world.clock.clone(), "b");
        let lock = tenure.lock("x").ttl(TTL).wait_strategy(strategy);
        assert!(lock.try_acquire().await.unwrap().is_none());
        let mut waiting = pin!(lock.acquire());
        still_pending(waiting.as_mut()).await;
        world.pass(Duration::from_secs(3)).await;
        still_pending(waiting.as_mut()).await;
        assert!(world.client("c").inspect("x").await.unwrap().waiters.is_empty(), "nothing waits in the store");
        drop(held);
        world.pass(Duration::from_secs(2)).await;
        drop(now("waiter", waiting).await.unwrap());

        let _held = world.client("a").lock("x").ttl(TTL).acquire().await;
        let mut brief = pin!(lock.acquire_within(Duration::from_secs(1)));
        still_pending(brief.as_mut()).await;
        world.pass(Duration::from_secs(2)).await;
        let error = now("timeout", brief).await.unwrap_err();
        assert_eq!((error.kind(), error.holder().unwrap().ahead), (ErrorKind::Timeout, 0));
        assert!(error.to_string().contains("(held by a)"), "no place where there is no order: {error}");
    }
}

#[tokio::test]
async fn bad_options_are_refused_before_anything_is_sent() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let hour = Duration::from_secs(3600);
    let locks = [
        (tenure.lock(""), "1 to 512 bytes"),
        (tenure.lock("a\tb"), "control character"),
        (tenure.lock("x").ttl(Duration::ZERO), "100ms to 24h"),
        (tenure.lock("x").ttl(Duration::from_millis(99)), "99ms is out of range"),
        (tenure.lock("x").ttl(25 * hour), "out of range"),
        (tenure.semaphore("x", 0), "1 of 0 permits"),
        (tenure.semaphore("x", 3).units(4), "4 of 3 permits"),
        (tenure.semaphore("x", 3).units(0), "0 of 3 permits"),
        (tenure.lock("x").units(2), "only a semaphore has permits"),
        (tenure.rwlock("x").read().units(1), "only a semaphore has permits"),
        (tenure.lock("x").max_hold(Duration::ZERO), "leave it out for no limit"),
    ];
    for (lock, expected) in locks {
        let error = lock.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(expected), "{error}");
    }
    settle().await;
    assert_eq!(gate.calls.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_future_that_nobody_polls_keeps_the_lock_for_one_ttl_at_most() {
    let world = World::new();
    let held = world.client("a").lock("x").ttl(TTL).acquire().await.unwrap();
    let b = world.client("b");
    let lock = b.lock("x").ttl(TTL);
    let mut forgotten = pin!(lock.acquire());
    still_pending(forgotten.as_mut()).await;
    let c = world.client("c");
    let lock_c = c.lock("x").ttl(TTL);
    let mut next = pin!(lock_c.acquire());
    still_pending(next.as_mut()).await;
    drop(held);
    world.pass(TTL).await;
    drop(now("the next in line", next).await.unwrap());
    // Polled again, it asks again: it is still good.
    assert!(now("the forgotten", forgotten).await.unwrap().is_held());
}

#[tokio::test]
async fn a_local_hand_over_that_nobody_polls_keeps_the_lock_for_one_ttl_at_most() {
    let world = World::new();
    let a = world.client("a");
    let lock = a.lock("x").ttl(TTL);
    let first = lock.acquire().await.unwrap();
    let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(lock.acquire())).collect();
    for waiter in &mut waiters {
        still_pending(waiter.as_mut()).await;
    }
    // The first hand-over fetches a block; the second is made in memory, to a task that looks away.
    drop(first);
    let second = now("second", waiters.remove(0)).await.unwrap();
    drop(second);
    let other = world.client("b");
    let lock_b = other.lock("x").ttl(TTL);
    let mut foreign = pin!(lock_b.acquire());
    still_pending(foreign.as_mut()).await;
    world.pass(TTL).await;
    drop(now("another process", foreign).await.unwrap());
}

#[tokio::test]
async fn an_older_attempt_that_gives_up_does_not_end_what_a_later_one_was_granted() {
    let world = World::new();
    let owner = tenure::Owner::new("script").unwrap();
    let held = world.client("h").lock("x").ttl(TTL).acquire().await.unwrap();
    let attempt = |label| world.client(label).session_as(owner.clone()).lock("x").ttl(TTL).no_renewal().repeatable();
    let (older, later) = (attempt("older"), attempt("later"));
    let mut first = Box::pin(older.acquire_within(Duration::from_secs(2)));
    still_pending(first.as_mut()).await;
    let mut second = Box::pin(later.acquire());
    still_pending(second.as_mut()).await;
    drop(held);
    let left = now("the later attempt", second).await.unwrap().leave();
    drop(first);
    settle().await;
    assert!(world.client("o").lock("x").try_acquire().await.unwrap().is_none(), "the later one's lease is good");
    assert_eq!(world.client("o").renew_as("x", &owner, None).await.unwrap().token, left.token);
}

#[tokio::test]
async fn a_wait_is_measured_from_its_start_and_names_the_holders_label() {
    let world = World::new();
    let tenure = world.client("a");
    for lock in [tenure.lock("x").label("the shop"), tenure.lock("x").label("the shop").strict_fifo()] {
        let _held = tenure.lock("x").label("the shop").acquire().await.unwrap();
        let error = world.drive("acquire_within", lock.acquire_within(Duration::from_millis(300))).await.unwrap_err();
        assert!(error.to_string().contains("within 300 ms"), "{error}");
        let holder = error.holder().unwrap();
        assert_eq!(holder.label, "the shop");
        assert!(holder.expires_in > Duration::from_secs(5), "{holder:?}");
    }
}

#[tokio::test]
async fn behind_a_local_task_too_a_store_out_of_reach_is_not_a_busy_lock() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    gate.set(Reply::Never);
    let lock = tenure.lock("x").ttl(TTL);
    let mut first = Box::pin(lock.acquire());
    still_pending(first.as_mut()).await;
    let waits = async { lock.acquire_within(Duration::from_secs(5)).await };
    let drive_first = async {
        let _ = first.as_mut().await;
        std::future::pending::<()>().await;
    };
    let both = async {
        tokio::select! {
            error = waits => error.unwrap_err(),
            () = drive_first => unreachable!(),
        }
    };
    let error = world.drive("the second task", both).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn local_tasks_do_not_wait_for_a_leader_that_nobody_polls() {
    // A short ttl is over before a request counts as unanswered.
    let ttls = [TTL, Duration::from_millis(200)];
    for (reply, ttl) in [Reply::Comes, Reply::ComesLater].into_iter().flat_map(|reply| ttls.map(|ttl| (reply, ttl))) {
        let world = World::new();
        let held = world.client("h").lock("x").ttl(TTL).acquire().await.unwrap();
        let (a, gate) = world.gated("a");
        gate.set(reply);
        let lock = a.lock("x").ttl(ttl);
        let mut leader = Box::pin(lock.acquire());
        assert!(common::poll_once(leader.as_mut()).is_pending());
        let mut second = Box::pin(lock.acquire());
        still_pending(second.as_mut()).await;
        drop(held);
        world.pass(TTL * 2).await;
        let second = world.drive("the second task", second).await.unwrap();
        assert!(second.is_held());
        drop(second);
        // The deposed one goes on alone.
        let leader = world.drive("the leader, polled at last", leader).await.unwrap();
        assert!(leader.is_held());
        drop(leader);
        settle().await;
        assert!(world.client("o").inspect("x").await.unwrap().is_free());
        assert!(lock.try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test]
async fn local_tasks_do_not_wait_for_a_leader_whose_request_is_not_answered_and_that_nobody_polls() {
    use Reply::{FailsApplied, FailsNotApplied, Late, Never, NeverApplied};
    let replies = [Late, Never, NeverApplied, FailsApplied, FailsNotApplied];
    let ttls = [TTL, Duration::from_millis(200)];
    // Polled once, or again for some other reason.
    let cases = replies.into_iter().flat_map(|reply| ttls.map(|ttl| [1, 2, 3].map(|polls| (reply, ttl, polls))));
    for (reply, ttl, polls) in cases.flatten() {
        let world = World::new();
        let (a, gate) = world.gated("a");
        gate.set(reply);
        let lock = a.lock("x").ttl(ttl);
        let mut leader = Box::pin(lock.acquire());
        for _ in 0..polls {
            assert!(common::poll_once(leader.as_mut()).is_pending());
        }
        gate.open();
        let mut second = Box::pin(lock.acquire());
        still_pending(second.as_mut()).await;
        let second = world.drive(&format!("the second task ({reply:?}, {ttl:?}, {polls})"), second).await.unwrap();
        assert!(second.is_held());
        drop(second);
        // Its own patience may be over by now.
        match world.drive("the leader, polled at last", leader).await {
            Ok(leader) => assert!(leader.is_held()),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable),
        }
    }
}

#[tokio::test]
async fn a_client_that_is_dropped_leaves_no_task_behind() {
    let world = World::new();
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    for _ in 0..10 {
        let tenure = world.client("brief");
        tenure.lock("x").acquire().await.unwrap().release().await.unwrap();
        tenure.close().await.unwrap();
        drop(tenure);
        settle().await;
    }
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), before);
}

#[tokio::test]
async fn a_request_for_the_next_block_that_nobody_polls_keeps_the_lock_for_one_ttl_at_most() {
    let world = World::new();
    let a = world.client("a");
    let lock = a.lock("x").ttl(TTL);
    let first = lock.acquire().await.unwrap();
    let mut looks_away = Box::pin(lock.acquire());
    still_pending(looks_away.as_mut()).await;
    let mut third = Box::pin(lock.acquire());
    still_pending(third.as_mut()).await;
    // The block is used up, so the next task has to ask for another, and does not.
    drop(first);
    world.pass(TTL).await;
    assert!(now("the third task", third).await.unwrap().is_held());
    assert!(world.drive("the one that looked away", looks_away).await.unwrap().is_held());
}

#[tokio::test]
async fn a_task_called_to_lead_that_nobody_polls_is_passed_over() {
    let world = World::new();
    let a = world.client("a");
    let lock = a.lock("x").ttl(TTL);
    let _held = lock.acquire().await.unwrap();
    let mut parked = Box::pin(lock.acquire());
    still_pending(parked.as_mut()).await;
    let mut third = Box::pin(lock.acquire());
    still_pending(third.as_mut()).await;
    // Those that wait start anew, the parked one first; the store has not heard of it, so no ttl ends its turn.
    world.client("admin").break_holders("x", None, "").await.unwrap();
    let third = world.drive("the third task", third).await.unwrap();
    drop(third);
    assert!(world.drive("the parked one", parked).await.unwrap().is_held());
}

#[tokio::test]
async fn a_request_under_way_that_is_passed_to_a_task_that_nobody_polls_ends_with_its_ttl() {
    for ttl in [TTL, Duration::from_millis(200)] {
        let world = World::new();
        let (a, gate) = world.gated("a");
        gate.set(Reply::ComesLater);
        let lock = a.lock("x").ttl(ttl);
        let mut leader = Box::pin(lock.acquire());
        assert!(common::poll_once(leader.as_mut()).is_pending());
        let mut parked = Box::pin(lock.acquire());
        still_pending(parked.as_mut()).await;
        let mut third = Box::pin(lock.acquire());
        still_pending(third.as_mut()).await;
        // The parked task is now the one whose request is under way.
        drop(leader);
        let third = world.drive("the third task", third).await.unwrap();
        drop(third);
        assert!(world.drive("the parked one", parked).await.unwrap().is_held());
    }
}

#[tokio::test]
async fn a_hand_over_past_a_task_that_left_is_renewed_like_any_other() {
    // Around the moment the renewal falls due, while the lease is on its way from task to task.
    for offset in (3_100..3_400).step_by(5) {
        let world = World::new();
        let a = world.client("a");
        let lock = a.lock("x").ttl(TTL);
        let first = lock.acquire().await.unwrap();
        let mut waiters: Vec<_> = (0..3).map(|_| Box::pin(lock.acquire())).collect();
        for waiter in &mut waiters {
            still_pending(waiter.as_mut()).await;
        }
        settle().await;
        world.clock.advance(Duration::from_millis(offset));
        drop(first);
        let second = now("second", waiters.remove(0)).await.unwrap();
        drop(second);
        world.clock.advance(Duration::from_millis(8));
        settle().await;
        // It was offered the lease, and leaves without having looked.
        drop(waiters.remove(0));
        let fourth = now("fourth", waiters.remove(0)).await.unwrap();
        world.pass(TTL * 2).await;
        assert!(fourth.is_held(), "offset {offset}");
    }
}

#[tokio::test]
async fn a_waiter_that_was_cut_off_does_not_wait_for_a_holder_that_has_long_left() {
    let world = World::new();
    let held = world.client("h").lock("x").ttl(TTL).acquire().await.unwrap();
    let (tenure, gate) = world.gated("a");
    let lock = tenure.lock("x").ttl(TTL);
    let mut waiter = Box::pin(lock.acquire());
    still_pending(waiter.as_mut()).await;
    gate.set(Reply::FailsNotApplied);
    gate.deafen();
    world.pass(TTL / 2).await;
    held.release().await.unwrap();
    // Its claim has ended with its ttl, and not because the store lost anything.
    world.pass(TTL * 3).await;
    gate.set(Reply::Comes);
    world.pass(TTL / 5).await;
    assert!(now("the waiter", waiter).await.unwrap().is_held());
}

#[tokio::test]
async fn a_wait_that_ends_while_the_store_is_asked_once_more_is_told_what_it_said_last() {
    for (hangs_after, kind) in [(5_800, ErrorKind::Timeout), (500, ErrorKind::Unavailable)] {
        let world = World::new();
        let _held = world.client("h").lock("x").ttl(TTL * 6).acquire().await.unwrap();
        let gate = Arc::new(Gated::new(Arc::new(world.store.client())).without_queue());
        let tenure = Tenure::over(gate.clone(), world.clock.clone(), "a");
        let lock = tenure.lock("x").ttl(TTL).wait_strategy(WaitStrategy::Spin);
        let mut waiting = Box::pin(lock.acquire_within(Duration::from_secs(6)));
        let hangs_after = Duration::from_millis(hangs_after);
        let mut passed = Duration::ZERO;
        while passed < hangs_after {
            still_pending(waiting.as_mut()).await;
            world.pass(Duration::from_millis(50)).await;
            passed += Duration::from_millis(50);
        }
        gate.set(Reply::Never);
        let error = world.drive("the waiter", waiting).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}
