//! A store that does not answer, under many leases: who is told when, and how often the store is asked.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Reply, TTL, World, settle};
use tenure::clock::{Clock as _, Moment};
use tenure::{Guard, Tenure};

const LEASES: usize = 2_500;
/// 1 % of the ttl and 2 ms.
const MARGIN: Duration = Duration::from_millis(102);

async fn acquire(tenure: &Tenure, prefix: &str, leases: usize, ttl: Duration, renewed: bool) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(leases);
    for number in 0..leases {
        let lock = tenure.lock(format!("{prefix}/{number}")).ttl(ttl);
        let lock = if renewed { lock } else { lock.no_renewal() };
        guards.push(lock.acquire().await.unwrap());
    }
    guards
}

/// Lets time pass, near the deadlines in steps of a millisecond, until no lease is left. How many were told after
/// their deadline, and how many were not told.
async fn count_late(world: &World, guards: &[Guard], within: Duration) -> (usize, usize) {
    let mut held: Vec<(usize, Moment)> = guards.iter().map(Guard::deadline).enumerate().collect();
    let (mut late, until) = (0, world.clock.now() + within);
    let first = guards.iter().map(Guard::deadline).min().unwrap();
    world.pass(first.since(world.clock.now() + Duration::from_millis(50))).await;
    while !held.is_empty() && world.clock.now() < until {
        world.clock.advance(Duration::from_millis(1));
        settle().await;
        held.retain_mut(|(index, deadline)| {
            let now = guards[*index].deadline();
            let told = now == Moment(0);
            *deadline = if told { *deadline } else { now };
            late += usize::from(world.clock.now() >= *deadline);
            !told && world.clock.now() < *deadline
        });
    }
    (late, held.len())
}

/// Counts the claims that the store is asked to renew.
fn count_renewals(gate: &common::Gated) -> Arc<AtomicUsize> {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    gate.watch_renewals(move |batch| {
        counter.fetch_add(batch.len(), Ordering::Relaxed);
    });
    asked
}

#[tokio::test]
async fn holders_are_told_before_anything_else_that_is_due() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let ending = Arc::new(acquire(&tenure, "ending", LEASES, TTL * 4, false).await);
    let kept = acquire(&tenure, "kept", LEASES, TTL * 6, true).await;
    let untold = Arc::new(Mutex::new(Vec::new()));
    let (seen, clock, lost) = (untold.clone(), world.clock.clone(), ending.clone());
    gate.watch_renewals(move |_| {
        let overdue = |guard: &&Guard| {
            guard.deadline() != Moment(0) && clock.now() + Duration::from_millis(2) >= guard.deadline()
        };
        seen.lock().unwrap().push(lost.iter().filter(overdue).count());
    });
    // A process that was paused: the renewals of the others were due long before.
    world.clock.advance(TTL * 4 - TTL / 25 - Duration::from_millis(4));
    for _ in 0..10 {
        settle().await;
    }
    let untold = std::mem::take(&mut *untold.lock().unwrap());
    assert!(!untold.is_empty(), "nothing was renewed");
    assert!(untold.iter().all(|untold| *untold == 0), "renewals were sent before losses were told: {untold:?}");
    assert!(ending.iter().all(|guard| !guard.is_held()) && kept.iter().all(Guard::is_held));
}

#[tokio::test]
async fn no_loss_is_told_after_its_deadline_and_a_dead_store_is_not_asked_for_each_lease() {
    for reply in [Reply::FailsNotApplied, Reply::FailsApplied, Reply::Never] {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let guards = acquire(&tenure, "x", LEASES, TTL, true).await;
        let asked = count_renewals(&gate);
        gate.set(reply);
        assert_eq!(count_late(&world, &guards, TTL).await, (0, 0), "told late, and not at all, {reply:?}");
        let asked = asked.load(Ordering::Relaxed);
        assert!(asked < 2 * LEASES, "{asked} renewals of {LEASES} leases, {reply:?}");
        let before = gate.calls.load(Ordering::Relaxed);
        world.pass(TTL * 2).await;
        let calls = gate.calls.load(Ordering::Relaxed) - before;
        assert!(calls < LEASES / 5, "{calls} calls to end {LEASES} leases, {reply:?}");
        tenure.close().await.unwrap();
    }
}

#[tokio::test]
async fn the_reason_is_told_of_every_lease_also_of_those_that_were_not_asked_for() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guards = acquire(&tenure, "x", LEASES, TTL, true).await;
    gate.set(Reply::FailsNotApplied);
    world.pass(TTL).await;
    let unexplained = guards.iter().filter(|guard| guard.renewal_failure().is_none()).count();
    assert_eq!(unexplained, 0);
}

#[tokio::test]
async fn once_the_store_answers_again_every_lease_is_renewed_at_once() {
    for reply in [Reply::FailsNotApplied, Reply::Never] {
        let world = World::new();
        let (tenure, gate) = world.gated("a");
        let guards = acquire(&tenure, "x", LEASES, TTL, true).await;
        gate.set(reply);
        world.pass(TTL * 2 / 3).await;
        assert!(guards.iter().all(Guard::is_held));
        gate.set(Reply::Comes);
        // A hung store is asked again after a ninth of the ttl, one that fails after a quarter of a second.
        let probed = if reply == Reply::Never { TTL / 9 } else { Duration::from_millis(250) };
        let within = probed + Duration::from_millis(100);
        world.pass(within).await;
        let stale = guards.iter().filter(|guard| guard.remaining() < TTL - MARGIN - within).count();
        assert_eq!(stale, 0, "of {LEASES} leases were not renewed, {reply:?}");
        world.pass(TTL * 2).await;
        assert!(guards.iter().all(Guard::is_held), "{reply:?}");
    }
}

#[tokio::test]
async fn a_shard_that_fails_costs_the_other_names_nothing() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let sick = acquire(&tenure, "sick", LEASES / 10, TTL, true).await;
    let sound = acquire(&tenure, "sound", LEASES, TTL, true).await;
    let asked = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let counters = asked.clone();
    gate.fail_renewals(move |batch| {
        let fails: Vec<bool> = batch.iter().map(|claim| claim.name.as_str().starts_with("sick")).collect();
        for fails in &fails {
            counters[usize::from(*fails)].fetch_add(1, Ordering::Relaxed);
        }
        fails
    });
    for _ in 0..60 {
        world.pass(TTL / 20).await;
        let late = sound.iter().filter(|guard| guard.remaining() < TTL / 2).count();
        assert_eq!(late, 0, "renewals held up by others");
    }
    assert!(sick.iter().all(|guard| !guard.is_held()));
    let [sound, sick] = [0, 1].map(|which| asked[which].load(Ordering::Relaxed));
    assert!(sound < 12 * LEASES, "{sound} renewals of {LEASES} leases in three ttls");
    assert!(sick < 25 * LEASES / 10, "{sick} renewals of {} leases in one ttl", LEASES / 10);
}

#[tokio::test]
async fn a_store_that_answers_but_knows_nothing_is_asked_again_soon() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let guards = acquire(&tenure, "x", LEASES, TTL, true).await;
    gate.set(Reply::FailsNotApplied);
    world.pass(TTL / 2).await;
    gate.fail_renewals(|batch| vec![true; batch.len()]);
    gate.set(Reply::Comes);
    world.pass(TTL / 5).await;
    assert!(guards.iter().all(Guard::is_held));
    gate.watch_renewals(|_| {});
    let within = Duration::from_millis(350);
    world.pass(within).await;
    let stale = guards.iter().filter(|guard| guard.remaining() < TTL - MARGIN - within).count();
    assert_eq!(stale, 0, "of {LEASES} leases were not renewed");
}

#[tokio::test]
async fn a_probe_that_hangs_is_repeated_as_often_as_the_shortest_lease_needs() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let long = acquire(&tenure, "long", 100, TTL, true).await;
    world.pass(TTL * 8 / 25).await;
    let short = tenure.lock("short").ttl(TTL / 10).acquire().await.unwrap();
    // The long ones fail first, and are enough for many probes.
    gate.set(Reply::FailsNotApplied);
    world.pass(TTL / 25).await;
    gate.set(Reply::Never);
    world.pass(TTL * 3 / 200).await;
    gate.set(Reply::Comes);
    world.pass(TTL / 5).await;
    assert!(short.is_held(), "{:?}", short.renewal_failure());
    assert!(long.iter().all(Guard::is_held));
}

#[tokio::test]
async fn claims_whose_end_the_store_fails_hold_up_the_end_of_no_other() {
    let world = World::new();
    let (tenure, gate) = world.gated("a");
    let seen: [Arc<Mutex<HashSet<String>>>; 2] = Default::default();
    let note = seen.clone();
    gate.fail_releases(move |name| {
        let is_sick = name.as_str().starts_with("sick");
        note[usize::from(is_sick)].lock().unwrap().insert(name.as_str().to_owned());
        is_sick
    });
    let mut guards = acquire(&tenure, "sick", 1_000, TTL, false).await;
    guards.extend(acquire(&tenure, "sound", 1_000, TTL, false).await);
    world.pass(TTL).await;
    assert!(guards.iter().all(|guard| !guard.is_held()));
    // Which are tried while the store fails is left to chance. One after the other would take a second for each.
    let asked = || seen.each_ref().map(|names| names.lock().unwrap().len());
    let mut left = 40;
    while asked() != [1_000, 1_000] && left > 0 {
        world.pass(TTL / 100).await;
        left -= 1;
    }
    assert_eq!(asked(), [1_000, 1_000], "ends that the store was asked for: sound, sick");
}
