//! A job runs once per slot, whoever calls, and every skip says why.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::future::{pending, ready};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use common::{Gated, Reply, TTL, World, now, poll_once, settle, still_pending};
use tenure::clock::Clock as _;
use tenure::{Begun, ErrorKind, Missed, Once, OnceOutcome, Skipped, Tenure, WhySkipped};

const HOUR: Duration = Duration::from_secs(3_600);

fn hourly(tenure: &Tenure) -> Once {
    tenure.once("job").every(HOUR).ttl(TTL)
}

fn skipped<T: std::fmt::Debug>(outcome: OnceOutcome<T>) -> Skipped {
    match outcome {
        OnceOutcome::Skipped(skipped) => skipped,
        OnceOutcome::Ran(value) => panic!("it ran: {value:?}"),
    }
}

#[tokio::test]
async fn a_slot_runs_once_and_the_next_one_again() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    assert_eq!(hourly(&a).run(ready(7)).await.unwrap(), OnceOutcome::Ran(7));
    let skip = skipped(hourly(&b).run(ready(8)).await.unwrap());
    assert_eq!((skip.why, skip.by.as_deref(), skip.outcome.as_deref()), (WhySkipped::Done, Some("a"), Some("ok")));
    assert_eq!(skip.slot, "2026-01-01T00:00:00Z");
    assert_eq!(skip.when, Some(UNIX_EPOCH + Duration::from_micros(world.clock.wall_micros())));
    assert_eq!(skip.to_string(), "slot 2026-01-01T00:00:00Z was run by a at 2026-01-01T00:00:00Z and ended ok");
    world.clock.advance(HOUR);
    assert_eq!(hourly(&b).run(ready(9)).await.unwrap(), OnceOutcome::Ran(9));
    let runs = hourly(&a).status().await.unwrap();
    let told: Vec<_> = runs.iter().map(|run| (run.slot.as_str(), run.by.as_str(), run.attempt)).collect();
    assert_eq!(told, [("2026-01-01T01:00:00Z", "b", 1), ("2026-01-01T00:00:00Z", "a", 1)]);
    settle().await;
    assert!(a.inspect("job").await.unwrap().is_free());
}

#[tokio::test]
async fn others_skip_while_a_runner_is_seen_to_live_and_wait_for_it_if_they_may_retry() {
    let world = World::new();
    let (a, b, c) = (world.client("a"), world.client("b"), world.client("c"));
    let Begun::Run(attempt) = hourly(&a).begin().await.unwrap() else { panic!() };
    let (second, third) = (hourly(&b), hourly(&c).retry(1));
    let mut second = pin!(second.run(ready(2)));
    let mut third = pin!(third.run(ready(3)));
    // One look does not show whether it lives.
    world.pass(Duration::from_millis(200)).await;
    still_pending(second.as_mut()).await;
    still_pending(third.as_mut()).await;
    let mut waited = Duration::ZERO;
    let skip = loop {
        if let std::task::Poll::Ready(outcome) = poll_once(second.as_mut()) {
            break skipped(outcome.unwrap());
        }
        assert!(poll_once(third.as_mut()).is_pending());
        world.pass(Duration::from_millis(50)).await;
        waited += Duration::from_millis(50);
    };
    assert_eq!((skip.why, skip.by.as_deref(), skip.outcome), (WhySkipped::Runs, Some("a"), None));
    assert!(waited <= TTL, "{waited:?}");
    attempt.failed("exit 3").await.unwrap();
    attempt.into_guard().release().await.unwrap();
    assert_eq!(world.drive("the retry", third).await.unwrap(), OnceOutcome::Ran(3));
    assert_eq!(hourly(&a).status().await.unwrap()[0].attempt, 2);
}

#[tokio::test]
async fn a_runner_that_died_is_waited_for_and_its_slot_is_not_run_again_unless_it_may_be() {
    for retry in [0, 1] {
        let world = World::new();
        let ((a, gate), b) = (world.gated("a"), world.client("b"));
        let Begun::Run(attempt) = hourly(&a).begin().await.unwrap() else { panic!() };
        gate.set(Reply::Never);
        let once = hourly(&b).retry(retry);
        let outcome = world.drive("the other", once.run(ready(2))).await.unwrap();
        assert!(!attempt.guard().is_held(), "not before its claim was gone");
        if retry == 1 {
            assert_eq!(outcome, OnceOutcome::Ran(2));
            let skip = skipped(hourly(&b).retry(1).run(ready(3)).await.unwrap());
            assert_eq!(skip.why, WhySkipped::Done);
        } else {
            let skip = skipped(outcome);
            assert_eq!((skip.why, skip.by.as_deref()), (WhySkipped::Unended, Some("a")));
            assert!(skip.to_string().ends_with("and its end was not recorded"), "{skip}");
        }
    }
}

#[tokio::test]
async fn a_slot_whose_predecessor_still_runs_is_skipped_and_says_so() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    let Begun::Run(attempt) = hourly(&a).begin().await.unwrap() else { panic!() };
    world.clock.step_wall(3_600_000_000);
    let once = hourly(&b).retry(5);
    let skip = skipped(world.drive("the other", once.run(ready(2))).await.unwrap());
    assert_eq!((skip.why, skip.slot.as_str()), (WhySkipped::PredecessorRuns, "2026-01-01T01:00:00Z"));
    assert!(skip.to_string().contains("slot 2026-01-01T00:00:00Z is still being run by a"), "{skip}");
    attempt.succeeded().await.unwrap();
    attempt.into_guard().release().await.unwrap();
    assert_eq!(hourly(&b).run(ready(2)).await.unwrap(), OnceOutcome::Ran(2), "a late host within it runs it");
}

#[tokio::test]
async fn a_host_that_runs_ahead_of_the_store_waits_for_its_slot() {
    let world = World::new();
    let tenure = world.client("a");
    world.clock.step_wall(-30_000_000);
    let once = hourly(&tenure);
    let mut early = pin!(once.begin());
    world.pass(Duration::from_secs(29)).await;
    still_pending(early.as_mut()).await;
    let Begun::Run(attempt) = world.drive("the slot", early).await.unwrap() else { panic!() };
    assert_eq!(attempt.entry().unwrap().slot, "2026-01-01T00:00:00Z");
    assert!(attempt.entry().unwrap().started >= UNIX_EPOCH + Duration::from_secs(1_767_225_600));
}

#[tokio::test]
async fn who_was_queued_across_the_end_of_its_slot_skips_or_runs_the_present_one() {
    let world = World::new();
    let (a, b) = (world.client("a"), world.client("b"));
    for missed in [Missed::Skip, Missed::Run] {
        let held = a.lock("job").acquire().await.unwrap();
        let once = hourly(&b).missed(missed);
        let mut waiting = pin!(once.run(ready(1)));
        still_pending(waiting.as_mut()).await;
        world.clock.step_wall(3_600_000_000);
        held.release().await.unwrap();
        let outcome = now("the grant", waiting).await.unwrap();
        match missed {
            Missed::Skip => {
                let skip = skipped(outcome);
                assert_eq!((skip.why, skip.slot.as_str()), (WhySkipped::Over, "2026-01-01T00:00:00Z"));
            }
            Missed::Run => {
                assert_eq!(outcome, OnceOutcome::Ran(1));
                assert_eq!(hourly(&a).status().await.unwrap()[0].slot, "2026-01-01T02:00:00Z");
            }
        }
        settle().await;
    }
}

#[tokio::test]
async fn work_that_fails_is_recorded_and_tried_again_as_often_as_allowed() {
    let world = World::new();
    let tenure = world.client("a");
    for attempt in 1..=3 {
        let outcome = hourly(&tenure).retry(2).try_run(ready(Err::<(), _>("no disk"))).await.unwrap();
        assert_eq!(outcome, OnceOutcome::Ran(Err("no disk")));
        assert_eq!(hourly(&tenure).status().await.unwrap()[0].attempt, attempt);
    }
    let skip = skipped(hourly(&tenure).retry(2).run(ready(())).await.unwrap());
    assert_eq!((skip.why, skip.outcome.as_deref()), (WhySkipped::Failed, Some("no disk")));
    assert!(skip.to_string().ends_with("and failed: no disk (attempt 3)"), "{skip}");
}

#[tokio::test]
async fn work_that_is_cancelled_counts_as_failed() {
    let world = World::new();
    let tenure = world.client("a");
    {
        let once = hourly(&tenure);
        let mut running = pin!(once.run(pending::<()>()));
        still_pending(running.as_mut()).await;
        assert_eq!(hourly(&tenure).status().await.unwrap()[0].outcome, None, "recorded before it starts");
    }
    settle().await;
    let skip = skipped(hourly(&tenure).run(ready(())).await.unwrap());
    assert_eq!(skip.why, WhySkipped::Unended);
    assert_eq!(hourly(&tenure).retry(1).run(ready(1)).await.unwrap(), OnceOutcome::Ran(1));
}

#[tokio::test]
async fn the_work_does_not_start_before_the_record_is_answered_and_a_start_not_made_is_no_attempt() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let once = hourly(&tenure);
    let started = std::cell::Cell::new(false);
    let mut running = pin!(once.run(async { started.set(true) }));
    // Each reply comes by itself, so that the gate can be shut before the record is written.
    gate.set(Reply::ComesLater);
    for _ in 0..1_000 {
        if tenure.inspect("job").await.is_ok_and(|view| !view.holders.is_empty()) {
            break;
        }
        assert!(poll_once(running.as_mut()).is_pending());
    }
    gate.set(Reply::Never);
    world.drive("the end", running).await.unwrap_err();
    assert!(!started.get());
    let other = world.client("b");
    assert_eq!(world.drive("another", hourly(&other).run(ready(2))).await.unwrap(), OnceOutcome::Ran(2));
    assert_eq!(hourly(&other).status().await.unwrap().len(), 1);
}

#[tokio::test]
async fn another_schedule_is_refused_unless_it_replaces_the_one_before() {
    let world = World::new();
    let tenure = world.client("a");
    hourly(&tenure).run(ready(())).await.unwrap();
    world.clock.advance(Duration::from_secs(1_900));
    let half = tenure.once("job").every(HOUR / 2);
    let error = half.run(ready(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("`every 1h`") && error.to_string().contains("`every 30m`"), "{error}");
    assert_eq!(half.clone().reschedule().run(ready(1)).await.unwrap(), OnceOutcome::Ran(1));
    assert_eq!(hourly(&tenure).run(ready(())).await.unwrap_err().kind(), ErrorKind::Conflict);
    let skip = skipped(hourly(&tenure).reschedule().run(ready(())).await.unwrap());
    assert_eq!(skip.why, WhySkipped::Rescheduled, "{skip}");
}

#[tokio::test]
async fn a_record_ahead_of_the_stores_clock_is_refused() {
    let world = World::new();
    let tenure = world.client("a");
    hourly(&tenure).run(ready(())).await.unwrap();
    world.clock.step_wall(-2 * 3_600_000_000);
    let error = hourly(&tenure).run(ready(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store, "{error}");
    assert!(error.to_string().contains("the store's clock is 7200s behind it"), "{error}");
}

#[cfg(feature = "cron")]
#[tokio::test]
async fn cron_slots_are_named_by_local_time() {
    let world = World::new();
    let tenure = world.client("a");
    let nightly = tenure.once("job").cron("30 2 * * *", "Europe/Berlin");
    nightly.run(ready(())).await.unwrap();
    let runs = nightly.status().await.unwrap();
    let told = (runs[0].slot.as_str(), runs[0].schedule.as_str());
    assert_eq!(told, ("2025-12-31T02:30", "cron 30 2 * * * Europe/Berlin"));
    let error = tenure.once("job").cron("61 * * * *", "UTC").run(ready(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test]
async fn what_cannot_carry_a_job_is_refused() {
    let world = World::new();
    let gate = Gated::new(Arc::new(world.store.client())).without_memos();
    let tenure = Tenure::over(Arc::new(gate), world.clock.clone(), "a");
    let error = hourly(&tenure).run(ready(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let tenure = world.client("b");
    assert_eq!(tenure.once("job").run(ready(())).await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(tenure.once("job").every(Duration::ZERO).run(ready(())).await.unwrap_err().kind(), ErrorKind::Invalid);
    tenure.election("led").campaign().await.unwrap().resign().await.unwrap();
    let error = tenure.once("led").every(HOUR).run(ready(())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(tenure.once("led").status().await.unwrap_err().kind(), ErrorKind::Conflict);
}
