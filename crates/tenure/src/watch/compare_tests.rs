use super::*;
use crate::machine::{ClaimRequest, Op, Queue, apply};
use crate::owner::Owner;
use crate::{NameView, Shape};

const TTL: Duration = Duration::from_secs(10);
const APART: Duration = Duration::from_millis(500);
const WALL: u64 = 1_700_000_000_000_000;

/// Names by the rule, on a clock that the test moves.
struct World {
    queues: Vec<(Name, Queue)>,
    now: Moment,
}

impl World {
    fn new() -> Self {
        Self { queues: Vec::new(), now: Moment(1_000_000_000) }
    }

    fn apply(&mut self, name: &str, op: Op) -> &mut Self {
        let name = Name::new(name).unwrap();
        let at = self.queues.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            self.queues.push((name, Queue::default()));
            self.queues.len() - 1
        });
        apply(&mut self.queues[at].1, op, self.now, 1);
        self
    }

    /// Claims; the owner is `o` with this number, the label `l` with it.
    fn claim(&mut self, name: &str, number: u64, shape: Shape) -> &mut Self {
        self.claim_as(name, number, number, shape)
    }

    /// The same for the owner with another number.
    fn claim_as(&mut self, name: &str, number: u64, owner: u64, shape: Shape) -> &mut Self {
        let request = ClaimRequest {
            id: ClaimId(number),
            owner: Owner::new(format!("o{owner}")).unwrap(),
            label: format!("l{owner}").into(),
            shape,
            ttl: TTL,
            queue: true,
            block: 1,
            strict: false,
            inbox: "".into(),
            within: Vec::new(),
            reenter: None,
            solo: false,
            attempt: 0,
            presumed: Duration::ZERO,
        };
        self.apply(name, Op::Claim(request))
    }

    fn lock(&mut self, name: &str, number: u64) -> &mut Self {
        self.claim(name, number, Shape::Exclusive)
    }

    fn lock_as(&mut self, name: &str, number: u64, owner: u64) -> &mut Self {
        self.claim_as(name, number, owner, Shape::Exclusive)
    }

    fn release(&mut self, name: &str, number: u64) -> &mut Self {
        self.apply(name, Op::Release { id: ClaimId(number), number: None, waiting_only: false })
    }

    fn renew(&mut self, name: &str, number: u64) -> &mut Self {
        self.apply(name, Op::Renew { id: ClaimId(number), ttl: Duration::ZERO, number: None })
    }

    fn pass(&mut self, time: Duration) -> &mut Self {
        self.now = self.now + time;
        self
    }

    fn look(&self) -> Look {
        let mut names: Vec<NameView> =
            self.queues.iter().map(|(name, queue)| NameView::of(name.clone(), queue, self.now)).collect();
        names.sort_by(|a, b| a.name.cmp(&b.name));
        names.retain(|view| !view.is_free() || !view.breaks.is_empty());
        Look { names, cut_after: None, from: self.now, to: self.now, wall_micros: WALL + self.now.0 }
    }
}

/// Changes as `KIND NAME LABEL`.
fn told(changes: &[Change]) -> Vec<String> {
    let line = |change: &Change| format!("{} {} {}", change.kind, change.name, change.label.as_deref().unwrap_or("-"));
    changes.iter().map(line).collect()
}

/// What one step changes.
fn changes(world: &mut World, step: impl FnOnce(&mut World)) -> Vec<Change> {
    let before = world.look();
    step(world);
    compare(&before, &world.look(), false)
}

fn permits(units: u32) -> Shape {
    Shape::Permits { units, of: 3 }
}

#[test]
fn nothing_changes_while_a_holder_renews_and_a_waiter_waits() {
    let mut world = World::new();
    world.lock("x", 1).lock("x", 2);
    let seen = changes(&mut world, |world| {
        world.pass(APART).renew("x", 1).renew("x", 2);
    });
    assert_eq!(told(&seen), [""; 0]);
}

#[test]
fn a_grant_of_a_free_name_is_told_with_its_time_and_token() {
    let mut world = World::new();
    let seen = changes(&mut world, |world| {
        world.pass(APART).lock("x", 1).pass(APART);
    });
    assert_eq!(told(&seen), ["granted x l1"]);
    let granted = &seen[0];
    assert_eq!((granted.held, granted.waited), (Some(APART), None));
    assert!(granted.token.is_some() && granted.owner.is_some());
    assert_eq!(granted.at_micros, WALL + world.now.0 - micros(APART));
}

#[test]
fn a_hand_over_is_a_release_and_then_a_grant() {
    let mut world = World::new();
    world.lock("x", 1).lock("x", 2).lock("x", 3).pass(APART);
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 1).pass(APART);
    });
    assert_eq!(told(&seen), ["released x l1", "granted x l2"]);
    assert_eq!(seen[0].held, Some(2 * APART), "until the next one was granted");
    assert_eq!(seen[0].at_micros, seen[1].at_micros);
    assert_eq!((seen[1].waited, seen[1].held), (Some(2 * APART), Some(APART)));
    assert!(seen[1].token > seen[0].token);
}

#[test]
fn a_name_that_is_free_again_was_released() {
    let mut world = World::new();
    world.lock("x", 1).lock("y", 9);
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 1);
    });
    assert_eq!(told(&seen), ["released x l1"]);
    assert_eq!(seen[0].held, Some(APART));
}

#[test]
fn what_is_gone_after_its_expiry_has_expired_and_before_it_was_released() {
    for (time, kind) in [(TTL, "expired"), (TTL + APART, "expired")] {
        let mut world = World::new();
        world.lock("x", 1).lock("x", 2);
        let seen = changes(&mut world, |world| {
            // The one who waits renews just before.
            world.pass(TTL - APART).renew("x", 2).pass(time + APART - TTL).renew("x", 2);
        });
        assert_eq!(told(&seen), [format!("{kind} x l1"), "granted x l2".to_owned()], "{time:?}");
    }
    let mut world = World::new();
    world.lock("x", 1);
    let seen = changes(&mut world, |world| {
        world.pass(TTL - APART).release("x", 1);
    });
    assert_eq!(told(&seen), ["released x l1"]);
    assert_eq!(seen[0].held, Some(TTL - APART));
}

#[test]
fn an_expiry_is_dated_to_when_the_ttl_was_over() {
    let mut world = World::new();
    world.lock("x", 1).pass(APART);
    let end = WALL + world.now.0 + micros(TTL - APART);
    let seen = changes(&mut world, |world| {
        world.pass(3 * TTL);
    });
    assert_eq!((told(&seen).concat().as_str(), seen[0].at_micros), ("expired x l1", end));
    assert_eq!(seen[0].held, Some(TTL));
}

#[test]
fn a_break_is_told_with_who_and_why_also_if_nobody_waits() {
    for waits in [false, true] {
        let mut world = World::new();
        world.lock("x", 1);
        if waits {
            world.lock("x", 2);
        }
        let seen = changes(&mut world, |world| {
            let (by, reason) = ("ops".into(), "hangs".into());
            world.pass(APART).apply("x", Op::Break { owner: None, up_to: None, by, reason });
        });
        assert_eq!(told(&seen)[0], "broken x l1");
        assert_eq!(seen[0].broken_by, Some(("ops".to_owned(), "hangs".to_owned())));
        assert_eq!(seen.len(), if waits { 2 } else { 1 });
    }
}

#[test]
fn what_a_store_lacks_when_it_comes_back_is_lost_unless_it_has_expired() {
    let mut world = World::new();
    world.lock("x", 1);
    let before = world.look();
    world.queues.clear();
    world.pass(APART);
    assert_eq!(told(&compare(&before, &world.look(), true)), ["lost x l1"]);
    assert_eq!(told(&compare(&before, &world.look(), false)), ["released x l1"]);
    world.pass(TTL);
    assert_eq!(told(&compare(&before, &world.look(), true)), ["expired x l1"]);
}

#[test]
fn readers_come_and_go_one_by_one() {
    let mut world = World::new();
    world.claim("x", 1, Shape::Shared).claim("x", 2, Shape::Shared);
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 1).claim("x", 3, Shape::Shared).lock("x", 4);
    });
    assert_eq!(told(&seen), ["released x l1", "granted x l3", "waiting x l4"]);
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 2).release("x", 3);
    });
    assert_eq!(told(&seen), ["released x l2", "released x l3", "granted x l4"]);
}

#[test]
fn permits_come_and_go_one_by_one() {
    let mut world = World::new();
    world.claim("x", 1, permits(1)).claim("x", 2, permits(2)).claim("x", 3, permits(2));
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 2);
    });
    assert_eq!(told(&seen), ["released x l2", "granted x l3"]);
}

#[test]
fn a_waiter_that_left_is_told_and_so_is_a_new_one() {
    let mut world = World::new();
    world.lock("x", 1).lock("x", 2);
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 2).lock("x", 3);
    });
    assert_eq!(told(&seen), ["waiting x l3", "left x l2"]);
    assert_eq!(seen[1].waited, Some(APART));
}

#[test]
fn the_same_owner_again_is_a_new_claim() {
    let mut world = World::new();
    world.lock("x", 1);
    let seen = changes(&mut world, |world| {
        // With the id it had: commands without state have one for each owner.
        world.pass(APART).release("x", 1).lock("x", 1);
    });
    assert_eq!(told(&seen), ["released x l1", "granted x l1"]);
}

#[test]
fn a_reentry_is_no_change_and_the_holding_ends_with_its_last_claim() {
    let mut world = World::new();
    world.lock("x", 1).pass(APART);
    let seen = changes(&mut world, |world| {
        world.lock_as("x", 2, 1);
    });
    assert_eq!(told(&seen), [""; 0], "one more claim of the owner that holds");
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 1);
    });
    assert_eq!(told(&seen), [""; 0]);
    let seen = changes(&mut world, |world| {
        world.pass(APART).release("x", 2);
    });
    assert_eq!(told(&seen), ["released x l1"]);
}

#[test]
fn names_that_a_look_did_not_reach_are_not_told_of() {
    let mut world = World::new();
    for (number, name) in (1..).zip(["a", "b", "c"]) {
        world.lock(name, number);
    }
    let whole = world.look();
    let mut cut = whole.clone();
    cut.names.truncate(2);
    cut.cut_after = Some(Name::new("b").unwrap());
    assert_eq!(told(&compare(&whole, &cut, false)), [""; 0]);
    assert_eq!(told(&compare(&cut, &whole, false)), [""; 0]);
}

#[test]
fn a_foreign_holder_is_told_apart_by_what_it_left() {
    let mut world = World::new();
    world.lock("x", 1);
    let mut before = world.look();
    let held = &mut before.names[0].holders[0];
    (held.owner, held.token, held.held, held.label) = (None, None, None, None);
    held.claims.clear();
    let mut after = before.clone();
    assert_eq!(told(&compare(&before, &after, false)), [""; 0]);
    after.names[0].holders[0].label = Some("key 7".to_owned());
    assert_eq!(told(&compare(&before, &after, false)), ["released x -", "granted x key 7"]);
}

#[test]
fn changes_of_several_names_are_in_the_order_of_time() {
    let mut world = World::new();
    let seen = changes(&mut world, |world| {
        world.pass(APART).lock("b", 1).pass(APART).lock("a", 2).pass(APART).lock("c", 3);
    });
    assert_eq!(told(&seen), ["granted b l1", "granted a l2", "granted c l3"]);
}

#[test]
fn a_waiter_without_a_number_is_known_by_its_id_when_it_holds() {
    let mut world = World::new();
    world.lock("x", 1).lock("x", 2);
    let mut before = world.look();
    before.names[0].waiters[0].claim.1 = 0;
    world.pass(APART).release("x", 1);
    let seen = compare(&before, &world.look(), false);
    assert_eq!(told(&seen), ["released x l1", "granted x l2"]);
    assert_eq!(seen[1].waited, Some(APART));
}
