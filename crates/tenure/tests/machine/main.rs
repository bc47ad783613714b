//! The state machine under long random histories: whatever comes in whatever order, every step keeps every
//! invariant.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod coverage;
mod examples;
mod history;
mod invariants;
mod steps;

use std::collections::BTreeSet;

use proptest::prelude::*;
use tenure::machine::{Applied, Claim, Op, SKIPS_MAX, apply, apply_reaching};

use crate::history::World;
use crate::invariants as keeps;
use crate::invariants::Seen;
use crate::steps::{Step, history};

/// Histories on each run, of some 250 steps, in each of three tests.
fn many() -> ProptestConfig {
    ProptestConfig { cases: 100, max_shrink_time: 20_000, failure_persistence: None, ..ProptestConfig::default() }
}

/// Runs a history and looks at each step.
pub(crate) fn run(
    steps: Vec<Step>,
    mut apply_one: impl FnMut(&mut World, &Op) -> Applied,
    mut look: impl FnMut(&Seen<'_>),
) {
    let mut world = World::new();
    for step in steps {
        let Some(op) = world.op(step) else { continue };
        let before = world.queue.clone();
        let applied = apply_one(&mut world, &op);
        let (now, floor) = (world.now, world.wall);
        look(&Seen { before: &before, op: &op, now, floor, applied: &applied, after: &world.queue });
    }
}

/// What holds of every step, however the grants were chosen.
fn every_invariant(seen: &Seen<'_>, highest: &mut u64) {
    keeps::holders_are_a_prefix(seen.after);
    keeps::holders_fit_together(seen.after);
    keeps::nobody_waits_in_vain(seen.after, seen.now);
    keeps::passed_over_at_most_three_times(seen.after);
    keeps::first_come_first_served(seen);
    keeps::tokens_increase(seen, highest);
    keeps::claims_end_for_a_reason(seen);
    keeps::nothing_shrinks(seen);
    keeps::grants_are_told(seen);
    keeps::answers_tell_the_state(seen);
    keeps::only_those_wait_that_may(seen);
    keeps::repetitions_change_nothing(seen);
    keeps::written_down_and_read_back(seen);
}

/// What also holds where grants depend on nobody's hearing.
fn every_exact_invariant(seen: &Seen<'_>) {
    keeps::refusals_change_nothing(seen);
    keeps::late_block_requests_change_nothing(seen);
    keeps::the_next_block_is_given_iff_nobody_waits(seen);
    keeps::owners_that_hold_re_enter(seen);
    keeps::breaks_end_the_holders_asked_for(seen);
    keeps::only_what_waits_is_released(seen);
    keeps::only_what_waits_is_broken_as_a_waiter(seen);
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn every_step_of_every_history_keeps_every_invariant(steps in history(1..500)) {
        let mut highest = 0;
        let apply_one = |world: &mut World, op: &Op| apply(&mut world.queue, op.clone(), world.now, world.wall);
        run(steps, apply_one, |seen| {
            every_invariant(seen, &mut highest);
            every_exact_invariant(seen);
        });
    }

    /// Each round another set of claims is deaf; what is granted is still in order, and a claim that hears is
    /// preferred to one that does not, three times at most.
    #[test]
    fn a_waiter_that_hears_is_preferred(steps in history(1..500), deaf in prop::collection::vec(any::<u16>(), 32)) {
        // A store that knows who hears passes over by itself.
        let steps = steps.into_iter().filter(|step| !matches!(step, Step::Skip { .. })).collect();
        let (mut highest, mut round) = (0, 0);
        let mut hears_now = u16::MAX;
        let hears = |mask: u16, claim: &Claim| mask & (1 << (claim.id.0 % 16)) != 0;
        let apply_one = |world: &mut World, op: &Op| {
            hears_now = deaf[round % deaf.len()];
            round += 1;
            let before = world.queue.clone();
            let mask = hears_now;
            let applied = apply_reaching(&mut world.queue, op.clone(), world.now, world.wall, |claim| hears(mask, claim));
            let seen = Seen { before: &before, op, now: world.now, floor: world.wall, applied: &applied, after: &world.queue };
            hearing_waiters_are_preferred(&seen, |claim| hears(mask, claim) || asks(op, claim));
            applied
        };
        run(steps, apply_one, |seen| every_invariant(seen, &mut highest));
    }

    /// Where everybody hears, nobody is passed over: both ways to apply an operation are one.
    #[test]
    fn where_everybody_hears_nobody_is_passed_over(steps in history(1..200)) {
        let apply_one = |world: &mut World, op: &Op| {
            let mut plain = world.queue.clone();
            let expected = apply(&mut plain, op.clone(), world.now, world.wall);
            let applied = apply_reaching(&mut world.queue, op.clone(), world.now, world.wall, |_| true);
            assert_eq!(applied, expected);
            assert_eq!(keeps::stored(&world.queue), keeps::stored(&plain));
            applied
        };
        run(steps, apply_one, |_| ());
    }
}

/// A claim that nobody hears is granted only if it was passed over often enough, is strict, or no waiter
/// behind it is heard.
fn hearing_waiters_are_preferred(seen: &Seen<'_>, hears: impl Fn(&Claim) -> bool) {
    let waited: BTreeSet<u64> = seen.before.waiters().map(|claim| claim.number).collect();
    let heard_waiter = seen.after.waiters().find(|claim| waited.contains(&claim.number) && hears(claim));
    for granted in &seen.applied.grants {
        let claim = seen.after.find(granted.id).unwrap();
        if keeps::re_entered(seen, claim) {
            continue; // let in with its owner, past whoever waits
        }
        let could_be_passed = !claim.strict && claim.skipped < SKIPS_MAX && !hears(claim);
        assert!(!could_be_passed || heard_waiter.is_none(), "{claim:?} was preferred to {heard_waiter:?}");
    }
}

/// Whether this claim's client has sent the operation: it is there to hear the answer.
fn asks(op: &Op, claim: &Claim) -> bool {
    match op {
        Op::Claim(request) => claim.id == request.id,
        Op::Renew { id, .. } | Op::Release { id, .. } => claim.id == *id,
        Op::NextBlock { id, next, .. } => claim.id == *id || claim.id == next.id,
        Op::Break { .. } | Op::BreakWaiter { .. } | Op::Skip { .. } => false,
    }
}
