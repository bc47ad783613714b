//! The rule by example: a few short histories to read.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::Moment;
use tenure::machine::{Applied, ClaimRequest, Op, Outcome, Queue, Refusal, Shape, apply, apply_reaching};
use tenure::{ClaimId, Owner, Token};

const TTL: Duration = Duration::from_secs(10);
/// The floor is far below the tokens that come up here, so that they count 1, 2, 3.
const FLOOR: u64 = 0;

fn claim(id: u64, owner: &str, shape: Shape) -> ClaimRequest {
    ClaimRequest {
        id: ClaimId(id),
        owner: Owner::new(owner).unwrap(),
        label: Arc::from(owner),
        shape,
        ttl: TTL,
        queue: true,
        block: 1,
        strict: false,
        inbox: Arc::from(owner),
        within: Vec::new(),
        reenter: None,
        solo: false,
        attempt: 0,
        presumed: Duration::ZERO,
    }
}

fn at(queue: &mut Queue, seconds: u64, op: Op) -> Applied {
    apply(queue, op, Moment(seconds * 1_000_000), FLOOR)
}

fn asks(queue: &mut Queue, request: ClaimRequest) -> Outcome {
    at(queue, 1, Op::Claim(request)).outcome
}

fn ends(queue: &mut Queue, id: u64) -> Vec<u64> {
    let applied = at(queue, 1, Op::Release { id: ClaimId(id), number: None, waiting_only: false });
    assert_eq!(applied.outcome, Outcome::Released);
    applied.grants.iter().map(|granted| granted.id.0).collect()
}

/// The ids of those who hold, with their tokens.
fn holding(queue: &Queue) -> Vec<(u64, u64)> {
    queue.holders().map(|held| (held.id.0, held.grant.unwrap().token.0)).collect()
}

fn waiting(queue: &Queue) -> Vec<u64> {
    queue.waiters().map(|waiter| waiter.id.0).collect()
}

#[test]
fn a_reader_behind_a_waiting_writer_waits_and_then_all_readers_hold_together() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Shared));
    asks(&mut queue, claim(2, "b", Shape::Exclusive));
    asks(&mut queue, claim(3, "c", Shape::Shared));
    asks(&mut queue, claim(4, "d", Shape::Shared));
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(1, 1)], vec![2, 3, 4]));
    assert_eq!(ends(&mut queue, 1), [2]);
    assert_eq!(ends(&mut queue, 2), [3, 4]);
    assert_eq!(holding(&queue), [(3, 3), (4, 4)]);
}

#[test]
fn a_downgrade_lets_readers_in_once_the_writer_ends() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Exclusive));
    asks(&mut queue, claim(2, "a", Shape::Shared));
    asks(&mut queue, claim(3, "b", Shape::Shared));
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(1, 1), (2, 1)], vec![3]));
    assert_eq!(ends(&mut queue, 1), [3]);
    assert_eq!(holding(&queue), [(2, 1), (3, 2)]);
}

#[test]
fn an_upgrade_is_refused_and_changes_nothing() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Shared));
    assert_eq!(asks(&mut queue, claim(2, "a", Shape::Exclusive)), Outcome::Refused(Refusal::Upgrade));
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(1, 1)], vec![]));
}

#[test]
fn waiters_of_one_owner_are_let_in_together() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Exclusive));
    asks(&mut queue, claim(2, "b", Shape::Exclusive));
    asks(&mut queue, claim(3, "c", Shape::Exclusive));
    asks(&mut queue, claim(4, "b", Shape::Shared));
    assert_eq!(ends(&mut queue, 1), [2, 4]);
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(2, 2), (4, 2)], vec![3]));
}

#[test]
fn the_next_block_is_given_or_moved() {
    let mut queue = Queue::new(0);
    let cohort = |id, owner| ClaimRequest { block: 32, ..claim(id, owner, Shape::Exclusive) };
    asks(&mut queue, cohort(1, "a"));
    assert_eq!(queue.holders().next().unwrap().grant.unwrap().block_end, Token(32));
    let next = |block_end, id| Op::NextBlock { id: ClaimId(1), block_end: Token(block_end), next: cohort(id, "a2") };

    assert!(matches!(at(&mut queue, 1, next(32, 2)).outcome, Outcome::Stands(_)), "nobody waits");
    assert_eq!(holding(&queue), [(1, 33)]);
    asks(&mut queue, claim(9, "b", Shape::Exclusive));
    at(&mut queue, 1, next(32, 2));
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(1, 33)], vec![9]), "a late copy ends nothing");

    let applied = at(&mut queue, 1, next(64, 3));
    assert!(matches!(applied.outcome, Outcome::Moved(_)), "somebody waits: {applied:?}");
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(9, 65)], vec![3]));
}

#[test]
fn the_dead_are_swept_by_whoever_comes() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Exclusive));
    at(&mut queue, 5, Op::Claim(claim(2, "b", Shape::Exclusive)));
    let applied = at(&mut queue, 11, Op::Renew { id: ClaimId(77), ttl: TTL, number: None });
    assert_eq!(applied.outcome, Outcome::Gone);
    assert_eq!(applied.grants.iter().map(|granted| granted.id.0).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_claim_granted_and_broken_by_one_operation_is_not_told_of_its_grant() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Exclusive));
    at(&mut queue, 5, Op::Claim(claim(2, "b", Shape::Exclusive)));
    let applied = at(&mut queue, 11, Op::Break { owner: None, up_to: None, by: "operator".into(), reason: "".into() });
    assert!(matches!(&applied.outcome, Outcome::Evicted(evicted) if evicted[0].id == ClaimId(2)), "{applied:?}");
    assert_eq!(applied.grants, [], "it would be heard after the end");
}

#[test]
fn passing_over_a_writer_lets_the_reader_behind_it_in() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Shared));
    asks(&mut queue, claim(2, "b", Shape::Exclusive));
    asks(&mut queue, claim(3, "c", Shape::Shared));
    let applied = at(&mut queue, 1, Op::Skip { id: ClaimId(2), behind: ClaimId(3) });
    assert_eq!(applied.outcome, Outcome::Done);
    assert_eq!(applied.grants.iter().map(|granted| granted.id.0).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_claim_is_passed_over_three_times_and_a_strict_one_never() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Exclusive));
    asks(&mut queue, claim(2, "b", Shape::Exclusive));
    for later in 3..7 {
        asks(&mut queue, claim(later, "c", Shape::Exclusive));
    }
    let mut pass_over = |id, behind| {
        let op = Op::Skip { id: ClaimId(id), behind: ClaimId(behind) };
        at(&mut queue, 1, op).outcome == Outcome::Done
    };
    assert_eq!([3, 4, 5, 6].map(|behind| pass_over(2, behind)), [true, true, true, false]);
    assert_eq!(waiting(&queue), [3, 4, 5, 2, 6]);

    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "a", Shape::Exclusive));
    asks(&mut queue, ClaimRequest { strict: true, ..claim(2, "b", Shape::Exclusive) });
    asks(&mut queue, claim(3, "c", Shape::Exclusive));
    let strict = Op::Skip { id: ClaimId(2), behind: ClaimId(3) };
    assert_eq!(at(&mut queue, 1, strict).outcome, Outcome::Gone);
}

#[test]
fn a_deaf_waiter_is_passed_over_when_a_dead_holder_is_swept() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "dead", Shape::Exclusive));
    at(&mut queue, 5, Op::Claim(claim(2, "deaf", Shape::Exclusive)));
    let too_short = ClaimRequest { ttl: Duration::from_secs(1), ..claim(4, "dies", Shape::Exclusive) };
    at(&mut queue, 6, Op::Claim(too_short));
    at(&mut queue, 6, Op::Claim(claim(3, "hears", Shape::Exclusive)));
    let someone = Op::Renew { id: ClaimId(77), ttl: TTL, number: None };
    let applied = apply_reaching(&mut queue, someone, Moment(11_000_000), FLOOR, |claim| claim.id != ClaimId(2));
    assert_eq!(applied.grants.iter().map(|granted| granted.id.0).collect::<Vec<_>>(), [3]);
    assert_eq!(waiting(&queue), [2]);
    assert_eq!(queue.waiters().next().unwrap().skipped, 1, "it is not passed over for the dead");
}

#[test]
fn what_local_tasks_hand_over_among_themselves_is_not_re_entered() {
    let mut queue = Queue::new(0);
    asks(&mut queue, ClaimRequest { solo: true, ..claim(1, "a", Shape::Exclusive) });
    let refused = asks(&mut queue, claim(2, "a", Shape::Exclusive));
    assert_eq!(refused, Outcome::Refused(Refusal::NotSession));
    asks(&mut queue, claim(3, "b", Shape::Exclusive));
    assert_eq!((holding(&queue), waiting(&queue)), (vec![(1, 1)], vec![3]));
}

#[test]
fn another_attempt_with_the_id_takes_the_claim_over_from_the_one_before() {
    let mut queue = Queue::new(0);
    asks(&mut queue, claim(1, "h", Shape::Exclusive));
    let attempt = |attempt| ClaimRequest { attempt, ..claim(2, "a", Shape::Exclusive) };
    let number = |outcome| match outcome {
        Outcome::Stands(standing) => standing.number,
        other => panic!("{other:?}"),
    };
    let first = number(asks(&mut queue, attempt(7)));
    assert_eq!(number(asks(&mut queue, attempt(7))), first, "a retry is the same attempt");
    let second = number(asks(&mut queue, attempt(8)));
    assert_ne!(first, second);
    ends(&mut queue, 1);
    // The attempt before gives up: what the later one holds is not its to end.
    let late = at(&mut queue, 1, Op::Release { id: ClaimId(2), number: Some(first), waiting_only: false });
    assert_eq!(late.outcome, Outcome::Gone);
    assert_eq!(holding(&queue), [(2, 2)]);
}
