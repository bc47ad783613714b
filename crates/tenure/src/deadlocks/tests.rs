//! Deadlocks in queues that the machine makes; and random ones against what becomes of them when everybody who can
//! goes on.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::Moment;
use crate::machine::{Claim, ClaimRequest, Op, Queue, Shape, apply};
use crate::owner::Owner;

const NOW: Moment = Moment(1_000_000);
const W: Shape = Shape::Exclusive;
const R: Shape = Shape::Shared;

fn permits(units: u32, of: u32) -> Shape {
    Shape::Permits { units, of }
}

/// Names, and claims on them in the order they are made.
#[derive(Clone, Default)]
struct World {
    names: BTreeMap<Name, Queue>,
    claims: u64,
}

impl World {
    fn claim(&mut self, owner: &str, name: &str, shape: Shape) -> &mut Self {
        self.claim_within(owner, name, shape, &[])
    }

    fn claim_within(&mut self, owner: &str, name: &str, shape: Shape, within: &[&str]) -> &mut Self {
        self.claims += 1;
        let request = ClaimRequest {
            id: ClaimId(self.claims),
            owner: Owner::new(owner).unwrap(),
            label: owner.into(),
            shape,
            ttl: Duration::from_secs(10),
            queue: true,
            block: 1,
            strict: false,
            inbox: "".into(),
            within: within.iter().map(|owner| Owner::new(owner).unwrap()).collect(),
            reenter: None,
            solo: false,
            attempt: 0,
            presumed: Duration::ZERO,
        };
        // Numbers grow with each claim, over all names, as in every store.
        let floor = self.claims * 10;
        let queue = self.names.entry(Name::new(name).unwrap()).or_default();
        apply(queue, Op::Claim(request), NOW, floor);
        self
    }

    fn release(&mut self, name: &Name, id: ClaimId) {
        let op = Op::Release { id, number: None, waiting_only: false };
        apply(self.names.get_mut(name).unwrap(), op, NOW, 1);
    }

    fn views(&self) -> Vec<NameView> {
        self.names.iter().map(|(name, queue)| NameView::of(name.clone(), queue, NOW)).collect()
    }

    fn deadlocks(&self) -> Vec<Deadlock> {
        Stuck::of(&self.views()).confirmed_by(self.views())
    }

    /// The owners and names of each cycle.
    fn cycles(&self) -> Vec<Vec<String>> {
        let told = |wait: &Wait| format!("{} {}", wait.owner.as_ref().unwrap(), wait.name);
        self.deadlocks().iter().map(|deadlock| deadlock.waits.iter().map(told).collect()).collect()
    }

    fn waiting(&self) -> impl Iterator<Item = (&Name, &Claim)> {
        self.names.iter().flat_map(|(name, queue)| queue.waiters().map(move |claim| (name, claim)))
    }

    /// Whether an owner goes on to give back what it holds of a name: no claim of its own on another name, and none
    /// that runs within it, waits.
    fn goes_on(&self, owner: &Owner, name: &Name) -> bool {
        !self.waiting().any(
            |(other, claim)| {
                if claim.owner == *owner { other != name } else { claim.within.contains(owner) }
            },
        )
    }

    /// Lets everybody who can go on and give back what it holds; who waits in the end.
    fn play(mut self) -> BTreeSet<(Name, u64)> {
        loop {
            let mut given_back = Vec::new();
            for (name, queue) in &self.names {
                for held in queue.holders().filter(|held| self.goes_on(&held.owner, name)) {
                    given_back.push((name.clone(), held.id));
                }
            }
            if given_back.is_empty() {
                return self.waiting().map(|(name, claim)| (name.clone(), claim.id.0)).collect();
            }
            for (name, id) in given_back {
                self.release(&name, id);
            }
        }
    }

    fn stuck(&self) -> BTreeSet<(Name, u64)> {
        Stuck::of(&self.views()).waiting.into_iter().map(|claimed| (claimed.name, claimed.id.0)).collect()
    }
}

/// `A` holds a, `B` holds b, and so on; each then wants the next one's.
fn ring(owners: &[&str]) -> World {
    let mut world = World::default();
    for owner in owners {
        world.claim(owner, &owner.to_lowercase(), W);
    }
    for (place, owner) in owners.iter().enumerate() {
        world.claim(owner, &owners[(place + 1) % owners.len()].to_lowercase(), W);
    }
    world
}

#[test]
fn cycles_of_two_and_of_five_are_told_with_who_waits_for_whom() {
    let two = ring(&["A", "B"]);
    assert_eq!(two.cycles(), [["B a", "A b"]]);
    assert_eq!(two.deadlocks()[0].to_string(), "B waits for a, held by A; A waits for b, held by B");
    assert_eq!(ring(&["A", "B", "C", "D", "E"]).cycles(), [["E a", "A b", "B c", "C d", "D e"]]);
}

#[test]
fn the_youngest_is_the_claim_that_came_last() {
    let deadlock = ring(&["A", "B", "C"]).deadlocks().remove(0);
    assert_eq!(deadlock.youngest().unwrap().owner, Some(Owner::new("C").unwrap()));
    assert_eq!(deadlock.youngest_refusable(|_| false), None);
    let asked = |wait: &Wait| wait.owner != deadlock.youngest().unwrap().owner;
    let refused = deadlock.youngest_refusable(asked).unwrap();
    assert_eq!(refused.owner, Some(Owner::new("B").unwrap()));
}

#[test]
fn waits_that_converge_on_somebody_free_are_none() {
    let mut world = World::default();
    world.claim("A", "a", W).claim("B", "b", W).claim("C", "c", W);
    world.claim("A", "c", W).claim("B", "c", W).claim("D", "a", W).claim("E", "b", W).claim("E", "a", W);
    assert_eq!(world.cycles(), Vec::<Vec<String>>::new());
    assert!(world.stuck().is_empty());
}

#[test]
fn who_hangs_on_a_cycle_is_not_in_it() {
    let mut world = ring(&["A", "B"]);
    world.claim("X", "x", W).claim("X", "a", W).claim("Y", "x", W).claim("Z", "b", W);
    assert_eq!(world.cycles(), [["B a", "A b"]]);
    assert_eq!(world.stuck().len(), 5, "they are stuck all the same");
}

#[test]
fn who_waits_before_a_member_of_a_cycle_is_not_in_it() {
    let mut world = World::default();
    world.claim("A", "a", W).claim("B", "b", W).claim("X", "a", W).claim("B", "a", W).claim("A", "b", W);
    assert_eq!(world.cycles(), [["B a", "A b"]]);
}

#[test]
fn who_holds_next_keeps_those_behind_it_waiting() {
    let mut world = World::default();
    world.claim("F", "a", W).claim("A", "a", W).claim("B", "b", W).claim("B", "a", W).claim("A", "b", W);
    assert_eq!(world.cycles(), [["B a", "A b"]], "whatever F does");
    // F gives it back between the looks.
    let first = Stuck::of(&world.views());
    world.release(&Name::new("a").unwrap(), ClaimId(1));
    assert_eq!(first.confirmed_by(world.views()).len(), 1);
}

#[test]
fn permits_of_which_another_holder_is_free_are_none() {
    let mut world = World::default();
    world.claim("A", "s", permits(1, 2)).claim("F", "s", permits(1, 2)).claim("B", "b", W);
    world.claim("B", "s", permits(1, 2)).claim("A", "b", W);
    assert!(world.cycles().is_empty(), "F gives its permit back");
    let mut world = World::default();
    world.claim("A", "s", permits(1, 2)).claim("C", "s", permits(1, 2)).claim("B", "b", W);
    world.claim("B", "s", permits(1, 2)).claim("A", "b", W).claim("C", "b", W);
    assert_eq!(world.cycles(), [["A b", "B s"], ["C b", "B s"]]);
    let mut world = World::default();
    world.claim("A", "s", permits(1, 3)).claim("F", "s", permits(2, 3)).claim("B", "b", W);
    world.claim("B", "s", permits(3, 3)).claim("A", "b", W);
    assert_eq!(world.cycles(), [["A b", "B s"]], "it wants all three");
}

#[test]
fn readers_keep_only_writers_waiting() {
    let mut world = World::default();
    world.claim("A", "a", R).claim("B", "b", R).claim("A", "b", R).claim("B", "a", R);
    assert!(world.cycles().is_empty(), "all of them read");
    let mut world = World::default();
    world.claim("A", "a", R).claim("B", "b", R).claim("A", "b", W).claim("B", "a", W);
    assert_eq!(world.cycles(), [["B a", "A b"]]);
}

#[test]
fn a_reader_behind_a_waiting_writer_waits_for_it() {
    let mut world = World::default();
    world.claim("A", "a", R).claim("C", "c", W).claim("V", "a", W).claim("C", "a", R).claim("A", "c", W);
    assert_eq!(world.cycles(), [["V a", "A c", "C a"]]);
    let deadlock = world.deadlocks().remove(0);
    assert_eq!(deadlock.to_string(), "V waits for a, held by A; A waits for c, held by C; C waits for a, behind V");
}

#[test]
fn an_owner_waits_while_what_runs_within_it_does() {
    let mut world = World::default();
    world.claim("A", "a", W).claim("B", "b", W);
    world.claim_within("A2", "b", W, &["A"]).claim_within("B2", "a", W, &["B"]);
    assert_eq!(world.cycles(), [["B2 a", "A2 b"]]);
    let waits = world.deadlocks().remove(0).waits;
    assert_eq!(waits[0].within, Some(Owner::new("B").unwrap()));
    assert_eq!(waits[0].blocker.owner, Some(Owner::new("A").unwrap()));
    assert_eq!(waits[1].to_string(), "A2, within A, waits for b, held by B");
    let mut world = World::default();
    world.claim("A", "a", R).claim_within("A2", "a", W, &["A"]);
    assert_eq!(world.cycles(), [["A2 a"]], "the inner run waits for the outer one");
}

#[test]
fn tasks_of_one_session_that_wait_for_the_same_name_are_none() {
    let mut world = World::default();
    world.claim("F", "s", permits(1, 1)).claim("A", "s", permits(1, 1)).claim("A", "s", permits(1, 1));
    world.claim("F", "x", W).claim("C", "x", R).claim("C", "x", W).claim("B", "x", W);
    assert!(world.stuck().is_empty());
}

#[test]
fn several_cycles_are_told_apart() {
    let mut world = ring(&["A", "B"]);
    for (owner, name) in [("C", "c"), ("D", "d"), ("C", "d"), ("D", "c")] {
        world.claim(owner, name, W);
    }
    assert_eq!(world.cycles(), [["B a", "A b"], ["D c", "C d"]]);
}

#[test]
fn what_the_second_look_does_not_show_again_is_none() {
    let world = ring(&["A", "B"]);
    let first = Stuck::of(&world.views());
    assert_eq!(first.names().len(), 2);
    let (a, b) = (Name::new("a").unwrap(), Name::new("b").unwrap());
    // Another claim of the same owner waits there by now: between the looks nobody may have.
    let mut waits_anew = world.clone();
    waits_anew.release(&b, ClaimId(3));
    waits_anew.claim("A", "b", W);
    assert_eq!(waits_anew.deadlocks().len(), 1);
    assert!(first.confirmed_by(waits_anew.views()).is_empty());
    // And so for another claim of it that holds.
    let mut holds_anew = world.clone();
    holds_anew.release(&a, ClaimId(4));
    holds_anew.release(&a, ClaimId(1));
    holds_anew.claim("A", "a", W).claim("B", "a", W);
    assert_eq!(holds_anew.deadlocks().len(), 1);
    assert!(first.confirmed_by(holds_anew.views()).is_empty());
    assert_eq!(first.confirmed_by(world.views()).len(), 1);
}

#[test]
fn a_long_queue_behind_a_cycle_and_a_long_chain_are_no_matter() {
    let mut world = ring(&["A", "B"]);
    for number in 0..5_000 {
        world.claim(&format!("w{number}"), "a", W);
    }
    assert_eq!(world.cycles(), [["B a", "A b"]]);
    let mut chain = World::default();
    for number in 0..2_000 {
        chain.claim(&format!("c{number}"), &format!("n{number}"), W);
        chain.claim(&format!("c{number}"), &format!("n{}", number + 1), W);
    }
    chain.claim("end", "n0", W);
    assert!(chain.stuck().is_empty());
}

/// One claim of a random world: its owner, its name, how, and the owner that it runs within.
fn claims() -> impl Strategy<Value = Vec<(usize, usize, Shape, Option<usize>)>> {
    let shape = prop_oneof![4 => Just(W), 2 => Just(R)];
    let within = proptest::option::weighted(0.25, 0..6_usize);
    let plain = (0..6_usize, 0..4_usize, shape, within.clone());
    let taken = (0..6_usize, 4..6_usize, (1..3_u32).prop_map(|units| permits(units, 2)), within);
    proptest::collection::vec(prop_oneof![3 => plain, 1 => taken], 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_stuck_is_what_waits_when_everybody_who_can_has_gone_on(claims in claims()) {
        let mut world = World::default();
        for (owner, name, shape, within) in claims {
            let within = within.filter(|outer| *outer != owner).map(|outer| format!("o{outer}"));
            let within: Vec<&str> = within.as_deref().into_iter().collect();
            world.claim_within(&format!("o{owner}"), &format!("n{name}"), shape, &within);
        }
        let stuck = world.stuck();
        prop_assert_eq!(&stuck, &world.clone().play());
        // Something is stuck if and only if there is a cycle, and every cycle is of what is stuck.
        let deadlocks = world.deadlocks();
        prop_assert_eq!(stuck.is_empty(), deadlocks.is_empty());
        for deadlock in &deadlocks {
            for (wait, next) in deadlock.waits.iter().zip(deadlock.waits.iter().cycle().skip(1)) {
                prop_assert!(stuck.contains(&(wait.name.clone(), wait.claim.0)));
                let kept = [&next.owner, &next.within];
                prop_assert!(kept.contains(&&wait.blocker.owner), "{}", deadlock);
            }
        }
    }
}
