//! One leader at a time, known to everybody, and stopped before the next one leads.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::{Gated, Reply, TTL, World, now, poll_once, settle, still_pending};
use futures_util::StreamExt as _;
use tenure::clock::Clock as _;
use tenure::{ErrorKind, Tenure};

/// Sets a flag when it is dropped.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Work, or a hook, that never ends by itself; the flag is set once it is gone.
fn endless() -> (impl Future<Output = ()>, Arc<AtomicBool>) {
    let gone = Arc::new(AtomicBool::new(false));
    let dropped = Dropped(gone.clone());
    let work = async move {
        let _dropped = dropped;
        std::future::pending().await
    };
    (work, gone)
}

#[tokio::test]
async fn the_next_leads_when_the_leader_resigns_and_terms_rise() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let first = a.election("boss").campaign().await.unwrap();
    let election = b.election("boss");
    let mut second = pin!(election.campaign());
    still_pending(second.as_mut()).await;
    assert!(first.is_leader());
    let term = first.term();
    first.resign().await.unwrap();
    let second = now("the second", second).await.unwrap();
    assert!(second.is_leader() && second.term() > term);
    assert_eq!((second.term(), second.guard().token()), (second.card().term, Some(second.term())));
}

#[tokio::test]
async fn a_leader_that_cannot_renew_has_stopped_before_another_leads() {
    let world = World::new();
    let ((a, gate), b) = (world.gated("a"), world.client("b"));
    let first = a.election("boss").ttl(TTL).campaign().await.unwrap();
    let (work, gone) = endless();
    let mut leading = pin!(first.protect(work));
    let election = b.election("boss").ttl(TTL);
    let mut second = pin!(election.campaign());
    still_pending(second.as_mut()).await;
    gate.set(Reply::Never);
    let mut stopped = false;
    for _ in 0..600 {
        stopped = stopped || poll_once(leading.as_mut()).is_ready();
        assert_eq!(gone.load(Ordering::Relaxed), stopped);
        if poll_once(second.as_mut()).is_ready() {
            assert!(stopped && !first.is_leader());
            return;
        }
        world.pass(Duration::from_millis(50)).await;
    }
    panic!("nobody leads");
}

#[tokio::test]
async fn a_hook_that_hangs_is_cut_off_at_the_deadline_and_not_before_its_grace() {
    let world = World::new();
    let ((a, gate), b) = (world.gated("a"), world.client("b"));
    let grace = Duration::from_secs(2);
    let lead = a.election("boss").ttl(TTL).grace(grace).campaign().await.unwrap();
    let ((work, work_gone), (hook, hook_gone)) = (endless(), endless());
    let begun = Arc::new(AtomicBool::new(false));
    let beginning = begun.clone();
    let hook = async move {
        beginning.store(true, Ordering::Relaxed);
        hook.await
    };
    let mut leading = pin!(lead.protect_then(work, hook));
    still_pending(leading.as_mut()).await;
    gate.set(Reply::Never);
    let election = b.election("boss").ttl(TTL);
    let mut second = pin!(election.campaign());
    let mut in_hook = Duration::ZERO;
    let outcome = loop {
        if let std::task::Poll::Ready(outcome) = poll_once(leading.as_mut()) {
            break outcome;
        }
        assert_eq!(
            work_gone.load(Ordering::Relaxed),
            begun.load(Ordering::Relaxed),
            "the work goes, then the hook runs"
        );
        if begun.load(Ordering::Relaxed) {
            in_hook += Duration::from_millis(50);
            assert!(lead.remaining() <= grace, "{:?}", lead.remaining());
        }
        assert!(poll_once(second.as_mut()).is_pending(), "nobody else leads while the hook runs");
        world.pass(Duration::from_millis(50)).await;
    };
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
    assert!(hook_gone.load(Ordering::Relaxed), "it was cut off");
    assert!(in_hook > grace - Duration::from_millis(200) && in_hook <= grace, "{in_hook:?}");
    let second = world.drive("the second", second).await.unwrap();
    assert!(second.term() > lead.term());
}

#[tokio::test]
async fn a_leader_that_renews_is_left_to_its_work_and_its_hook_is_not_run() {
    let world = World::new();
    let tenure = world.client("a");
    let lead = tenure.election("boss").ttl(TTL).campaign().await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let (count, clock) = (runs.clone(), world.clock.clone());
    let until = clock.now() + TTL * 5;
    let work = async move {
        let mut timer = clock.timer();
        std::future::poll_fn(|cx| timer.poll_until(until, cx)).await;
        7
    };
    let hook = async move {
        count.fetch_add(1, Ordering::Relaxed);
    };
    assert_eq!(world.drive("the work", lead.protect_then(work, hook)).await.unwrap(), 7);
    assert_eq!(runs.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn observers_see_rising_terms_and_reach_the_latest() {
    let world = World::new();
    let (a, b, c) = (world.client("a"), world.client("b"), world.client("c"));
    let mut leaders = c.election("boss").observe();
    {
        let mut none = pin!(leaders.next());
        world.pass(Duration::from_secs(2)).await;
        still_pending(none.as_mut()).await;
    }
    let first = a.election("boss").label("the first").address("10.0.0.7").campaign().await.unwrap();
    let seen = world.drive("the first", leaders.next()).await.unwrap();
    assert_eq!(&seen, first.card());
    assert_eq!((seen.label.as_str(), seen.address.as_deref()), ("the first", Some("10.0.0.7")));
    let wall = world.clock.wall_micros();
    let since = seen.since.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(since.as_secs() + 3 >= wall / 1_000_000 && since.as_micros() <= u128::from(wall), "{since:?}");
    first.resign().await.unwrap();
    // This one comes and goes between two looks.
    b.election("boss").campaign().await.unwrap().resign().await.unwrap();
    let third = a.election("boss").campaign().await.unwrap();
    let seen = world.drive("the third", leaders.next()).await.unwrap();
    assert_eq!((seen.term, seen.label.as_str()), (third.term(), "a"));
    let mut stream = pin!(leaders.into_stream());
    let mut next = pin!(stream.next());
    world.pass(Duration::from_secs(2)).await;
    still_pending(next.as_mut()).await;
    third.resign().await.unwrap();
    let fourth = b.election("boss").campaign().await.unwrap();
    assert_eq!(world.drive("the fourth", next).await.unwrap().unwrap().term, fourth.term());
}

#[tokio::test]
async fn a_card_counts_only_with_the_holders_own_token() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let election = b.election("boss");
    assert_eq!(election.leader().await.unwrap(), None);
    let lead = a.election("boss").campaign().await.unwrap();
    assert_eq!(election.leader().await.unwrap().as_ref(), Some(lead.card()));
    lead.resign().await.unwrap();
    assert_eq!(election.leader().await.unwrap(), None, "the card is still there, the leader is not");
    let _held = a.lock("boss").acquire().await.unwrap();
    assert_eq!(election.leader().await.unwrap(), None, "whoever only holds the name has left no card");
}

#[tokio::test]
async fn a_broken_leader_stops_at_once() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let lead = a.election("boss").campaign().await.unwrap();
    let ((work, gone), (hook, hook_gone)) = (endless(), endless());
    let mut leading = pin!(lead.protect_then(work, hook));
    still_pending(leading.as_mut()).await;
    b.break_holders("boss", None, "test").await.unwrap();
    settle().await;
    let error = now("the end", leading).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(gone.load(Ordering::Relaxed) && hook_gone.load(Ordering::Relaxed) && !lead.is_leader());
}

#[tokio::test]
async fn a_store_that_fails_to_tell_the_time_elects_all_the_same() {
    let world = World::new();
    let (a, gate) = world.gated("a");
    gate.fail_time();
    let lead = a.election("boss").campaign().await.unwrap();
    assert_eq!(world.client("b").election("boss").leader().await.unwrap().unwrap().term, lead.term());
}

#[tokio::test]
async fn whoever_cannot_leave_its_card_before_its_lease_is_over_stands_again() {
    let world = World::new();
    let ((a, gate), b) = (world.gated("a"), world.client("b"));
    let election = a.election("boss").ttl(TTL);
    let mut campaign = pin!(election.campaign());
    // Each reply comes by itself, so that the gate can be shut before the card is written.
    gate.set(Reply::ComesLater);
    while b.inspect("boss").await.unwrap().is_free() {
        assert!(poll_once(campaign.as_mut()).is_pending());
    }
    gate.set(Reply::FailsNotApplied);
    for _ in 0..TTL.as_millis() / 50 {
        assert!(poll_once(campaign.as_mut()).is_pending(), "it gave up");
        world.pass(Duration::from_millis(50)).await;
    }
    gate.open();
    let lead = world.drive("the leadership", campaign).await.unwrap();
    assert_eq!(b.election("boss").leader().await.unwrap().unwrap().term, lead.term());
}

#[tokio::test]
async fn what_cannot_carry_an_election_is_refused() {
    let world = World::new();
    let gate = Gated::new(Arc::new(world.store.client())).without_memos();
    let tenure = Tenure::over(Arc::new(gate), world.clock.clone(), "a");
    let error = tenure.election("boss").campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("keeps no memos"), "{error}");
    assert_eq!(tenure.election("boss").observe().next().await.unwrap_err().kind(), ErrorKind::Invalid);

    let tenure = world.client("b");
    let guard = tenure.lock("taken").acquire().await.unwrap();
    guard.write_memo("a program's own").await.unwrap();
    guard.release().await.unwrap();
    let error = tenure.election("taken").campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    settle().await;
    assert!(tenure.inspect("taken").await.unwrap().is_free(), "nothing is left behind");
    let error = tenure.election("boss").address("x".repeat(1025)).campaign().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
