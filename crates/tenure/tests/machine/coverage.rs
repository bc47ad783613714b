//! Histories are only worth something if they reach every corner: this counts what they do.

use std::collections::BTreeMap;

use proptest::strategy::{Strategy as _, ValueTree as _};
use proptest::test_runner::TestRunner;
use tenure::machine::{Op, Outcome, Refusal, apply};

use crate::history::{World, by_number};
use crate::invariants::Seen;
use crate::run;
use crate::steps::history;

/// What a step did, in one word.
fn kinds(seen: &Seen<'_>) -> Vec<&'static str> {
    let mut kinds = vec![match (&seen.applied.outcome, seen.op) {
        (Outcome::Stands(standing), Op::Claim(_)) => {
            let known = by_number(seen.before, standing.number).is_some();
            match (&standing.state, known) {
                (_, true) => "the same claim again",
                (Err(_), false) => "a claim waits",
                (Ok(grant), false) if grant.token.0 <= seen.before.last.0 => "a claim re-enters",
                (Ok(_), false) => "a claim is granted at once",
            }
        }
        (Outcome::Stands(_), Op::NextBlock { .. }) if seen.after.last > seen.before.last => "a next block is given",
        (Outcome::Stands(_), Op::NextBlock { .. }) => "a next block request is late",
        (Outcome::Stands(_), _) => "a claim is renewed",
        (Outcome::Busy(_), _) => "busy",
        (Outcome::Refused(Refusal::Mixed { .. }), _) => "refused: mixed",
        (Outcome::Refused(Refusal::Upgrade), _) => "refused: upgrade",
        (Outcome::Refused(Refusal::PermitsWithinPermits), _) => "refused: permits within permits",
        (Outcome::Refused(Refusal::NotHeld), _) => "refused: not held",
        (Outcome::Refused(Refusal::Units { .. }), _) => "refused: units",
        (Outcome::Refused(Refusal::NotSession), _) => "refused: outside a session",
        (Outcome::Gone, _) => "gone",
        (Outcome::Broken(_), _) => "broken",
        (Outcome::Released, Op::Release { waiting_only: true, .. }) => "released while it waits",
        (Outcome::Released, _) => "released",
        (Outcome::Holds, Op::BreakWaiter { .. }) => "not broken as a waiter, as it holds",
        (Outcome::Holds, _) => "not released, as it holds",
        (Outcome::WaiterEnded { .. }, _) => "a waiter is broken",
        (Outcome::Evicted(_), _) => "evicted",
        (Outcome::Moved(_), _) => "moved",
        (Outcome::Done, _) => "passed over",
    }];
    if seen.before.claims.iter().any(|claim| claim.expires <= seen.now) {
        kinds.push("somebody died");
        if !seen.applied.grants.is_empty() {
            kinds.push("the dead make room");
        }
    }
    if let Op::Break { up_to: Some(token), .. } = seen.op
        && seen.after.holders().any(|held| held.grant.is_some_and(|grant| grant.token > *token))
    {
        kinds.push("a break leaves who was granted later");
    }
    if seen.applied.grants.len() > 1 {
        kinds.push("several are granted");
    }
    if matches!(seen.op, Op::Skip { .. }) && !seen.applied.grants.is_empty() {
        kinds.push("passing over lets somebody in");
    }
    kinds
}

#[test]
fn the_histories_reach_every_corner() {
    const KINDS: usize = 28;
    let mut runner = TestRunner::deterministic();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..100 {
        let steps = history(1..500).new_tree(&mut runner).unwrap().current();
        let apply_one = |world: &mut World, op: &Op| apply(&mut world.queue, op.clone(), world.now, world.wall);
        run(steps, apply_one, |seen| {
            for kind in kinds(seen) {
                *counts.entry(kind).or_default() += 1;
            }
        });
    }
    assert_eq!(counts.len(), KINDS, "{counts:#?}");
    assert!(counts.values().all(|count| *count >= 20), "{counts:#?}");
    let steps: u32 = counts.values().sum();
    assert!(steps > 15_000, "only {steps}");
}
