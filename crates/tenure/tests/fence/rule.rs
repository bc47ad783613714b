//! One table of what is accepted and refused, and histories drawn at random, against every resource.

use tenure::Shape::{self, Exclusive, Shared};
use tenure::fence::{Fence, Gate, Refused};
use tenure_testkit::servers::shared;

use crate::resource::{InProcess, Op, Resource, connect, fence, in_redis, in_sqlite, postgres_url};

/// An operation, its token, its owner, and the token that stands against it, if one does.
type Step = (Op, Shape, u64, &'static str, Option<u64>);

const fn write(token: u64, owner: &'static str, newer: Option<u64>) -> Step {
    (Op::Write, Exclusive, token, owner, newer)
}

const fn read(token: u64, owner: &'static str, newer: Option<u64>) -> Step {
    (Op::Read, Shared, token, owner, newer)
}

const EXACT: u64 = 1 << 53;
const MAX: u64 = i64::MAX as u64;

const CASES: &[(&str, &[Step])] = &[
    ("the first write is accepted, of whatever token", &[write(0, "a", None), write(0, "a", None)]),
    ("a writer needs a higher token", &[write(5, "a", None), write(4, "b", Some(5)), write(6, "b", None)]),
    ("an equal token is the same owner's", &[write(5, "a", None), write(5, "b", Some(5)), write(5, "a", None)]),
    ("a stale writer stays stale", &[write(5, "a", None), write(6, "b", None), write(5, "a", Some(6))]),
    ("readers do not order each other", &[read(8, "a", None), read(7, "b", None), read(8, "c", None)]),
    ("a reader needs more than the writer's token", &[write(5, "a", None), read(4, "b", Some(5)), read(6, "b", None)]),
    ("a downgrade has its writer's token", &[write(5, "a", None), read(5, "a", None), read(5, "b", Some(5))]),
    ("before the downgrade's end it still writes", &[write(5, "a", None), read(5, "a", None), write(5, "a", None)]),
    ("a reader keeps older writers out", &[write(5, "a", None), read(8, "b", None), write(6, "c", Some(8))]),
    ("a reader's token is not another writer's", &[read(8, "a", None), write(8, "b", Some(8)), write(9, "b", None)]),
    (
        "an older reader lowers nothing",
        &[read(8, "a", None), read(6, "b", None), write(7, "c", Some(8)), write(9, "c", None), read(8, "a", Some(9))],
    ),
    (
        "what is refused changes nothing",
        &[
            write(5, "a", None),
            write(4, "b", Some(5)),
            write(5, "b", Some(5)),
            read(5, "b", Some(5)),
            write(5, "a", None),
            read(6, "c", None),
        ],
    ),
    (
        "an exclusive holder that reads is a writer",
        &[write(3, "a", None), (Op::Read, Exclusive, 5, "b", None), read(4, "c", Some(5)), write(4, "c", Some(5))],
    ),
    ("tokens are numbers, not text", &[write(9, "a", None), write(10, "b", None), write(9, "a", Some(10))]),
    (
        "large tokens are exact",
        &[write(EXACT + 1, "a", None), write(EXACT, "b", Some(EXACT + 1)), write(EXACT + 2, "b", None)],
    ),
    ("up to the largest", &[write(MAX, "a", None), write(MAX - 1, "b", Some(MAX)), read(MAX - 1, "b", Some(MAX))]),
];

async fn keeps_the_rule(mut resource: impl Resource) {
    for (number, (case, steps)) in CASES.iter().enumerate() {
        let name = format!("stock/rule {number}");
        for &(op, shape, token, owner, newer) in *steps {
            let fence = fence(token, owner, shape);
            let expected = match newer {
                Some(newer) => Err(Refused::Stale { token: fence.token(), newer: tenure::Token(newer) }),
                None => Ok(()),
            };
            let said = format!("{case}: {op:?} by {owner} with {fence}");
            assert_eq!(resource.run(&name, Op::Look, &fence).await, expected, "looked at, {said}");
            assert_eq!(resource.run(&name, op, &fence).await, expected, "{said}");
        }
    }
    let reader = fence(1, "a", Shared);
    let name = "stock/written by a reader";
    assert_eq!(resource.run(name, Op::Write, &reader).await, Err(Refused::Shape(Shared)), "a reader's write");
    assert_eq!(resource.run(name, Op::Write, &fence(0, "b", Exclusive)).await, Ok(()), "the reader was not there");
    agrees_with_a_gate(resource).await;
}

/// Histories of few tokens and owners, so that they meet.
async fn agrees_with_a_gate(mut resource: impl Resource) {
    let mut drawn: u64 = 42;
    let mut draw = |below: u64| {
        drawn = drawn.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (drawn >> 33) % below
    };
    for history in 0..20 {
        let name = format!("stock/history {history}");
        let mut gate = gate(&name);
        let mut steps: Vec<(Op, Fence)> = Vec::new();
        for _ in 0..20 {
            let op = [Op::Look, Op::Read, Op::Write][draw(3) as usize];
            let shape = [Exclusive, Shared][draw(2) as usize];
            let fence = fence(draw(8), ["a", "b", "c"][draw(3) as usize], shape);
            steps.push((op, fence));
            let expected = gate.run(&name, op, &fence).await;
            assert_eq!(resource.run(&name, op, &fence).await, expected, "{steps:?}");
        }
    }
}

fn gate(resource: &str) -> InProcess {
    InProcess(resource.to_owned(), Gate::new(()))
}

#[tokio::test]
async fn a_gate_keeps_the_rule() {
    keeps_the_rule(gate("")).await;
}

#[tokio::test]
async fn sqlite_keeps_the_rule() {
    keeps_the_rule(in_sqlite()).await;
}

#[tokio::test]
async fn postgres_keeps_the_rule() {
    keeps_the_rule(connect(postgres_url()).await).await;
}

#[tokio::test]
async fn redis_keeps_the_rule() {
    keeps_the_rule(in_redis(shared::redis().url()).await).await;
}
