//! The steps of a random history.

use proptest::prelude::*;
use tenure::machine::Shape;

/// How many claims a history has in hand at a time.
pub(crate) const SLOTS: usize = 6;
/// How many owners claim, beside cohorts, which have one for each claim.
pub(crate) const OWNERS: u8 = 5;

/// One step of a history. It says nothing of the state it meets, so that a history still means something
/// when steps are left out of it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A new claim, kept in this slot from now on; the slot's claim again while that one lives.
    Claim {
        slot: usize,
        wish: Wish,
    },
    /// The slot's claim again, as it was, or changed a little.
    Again {
        slot: usize,
        change: Change,
    },
    /// An old operation once more: a late copy.
    LateCopy {
        age: usize,
    },
    Renew {
        slot: usize,
        ttl: u8,
    },
    Release {
        slot: usize,
        number: Number,
        waiting_only: bool,
    },
    /// The request for the next block, by the cohort that holds or by the slot's; `next` is kept in the
    /// slot after.
    NextBlock {
        by_holder: bool,
        slot: usize,
        right_end: bool,
        next: NextId,
        block: u32,
    },
    /// Up to the token of one of the holders, if at all.
    Break {
        owner: Option<u8>,
        of_slot: bool,
        up_to: Option<usize>,
    },
    /// Break the first waiter, or any claim as if it waited; by its number, or another one.
    BreakWaiter {
        first: bool,
        slot: usize,
        right: bool,
    },
    /// Pass over the first waiter, or any claim.
    Skip {
        first: bool,
        slot: usize,
        behind: usize,
    },
    /// Time passes, in milliseconds.
    Pass(u16),
    /// The wall clock is set forward or back, in microseconds.
    MoveWall(i32),
}

#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) owner: u8,
    pub(crate) shape: Shape,
    pub(crate) ttl: u8,
    pub(crate) queue: bool,
    pub(crate) block: u32,
    pub(crate) strict: bool,
    pub(crate) reenter: Reenter,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reenter {
    No,
    /// With a token the owner holds, if it holds.
    Right,
    Wrong,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Nothing,
    /// Goes on in another process, with another ttl.
    InboxAndTtl,
    Owner,
    Shape,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Number {
    Any,
    Right,
    Wrong,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum NextId {
    New,
    /// The id of another claim, which may be in the queue.
    OfSlot(usize),
}

/// Shapes of one family, with a stranger now and then.
fn shape(permits: bool) -> BoxedStrategy<Shape> {
    let units = prop_oneof![1 => Just(0_u32), 1 => Just(5_u32), 20 => 1..4_u32];
    let permit = (units, prop_oneof![30 => Just(3_u32), 1 => Just(4_u32)]);
    let permit = permit.prop_map(|(units, of)| Shape::Permits { units, of });
    let lock = prop_oneof![Just(Shape::Exclusive), Just(Shape::Shared)];
    let weights = if permits { (30, 1) } else { (1, 30) };
    prop_oneof![weights.0 => permit, weights.1 => lock].boxed()
}

fn wish(permits: bool) -> impl Strategy<Value = Wish> {
    let reenter = prop_oneof![8 => Just(Reenter::No), 1 => Just(Reenter::Right), 1 => Just(Reenter::Wrong)];
    let block = prop_oneof![3 => Just(1_u32), 1 => Just(0_u32), 4 => Just(32_u32)];
    (0..OWNERS, shape(permits), any::<u8>(), prop::bool::weighted(0.8), block, prop::bool::weighted(0.2), reenter)
        .prop_map(|(owner, shape, ttl, queue, block, strict, reenter)| Wish {
            owner,
            shape,
            ttl,
            queue,
            block,
            strict,
            reenter,
        })
}

fn step(permits: bool) -> impl Strategy<Value = Step> {
    let slot = || 0..SLOTS;
    let change = prop_oneof![4 => Just(Change::Nothing), 2 => Just(Change::InboxAndTtl), 1 => Just(Change::Owner), 1 => Just(Change::Shape)];
    let number = prop_oneof![Just(Number::Any), Just(Number::Right), Just(Number::Wrong)];
    let next = prop_oneof![5 => Just(NextId::New), 1 => slot().prop_map(NextId::OfSlot)];
    prop_oneof![
        14 => (slot(), wish(permits)).prop_map(|(slot, wish)| Step::Claim { slot, wish }),
        3 => (slot(), change).prop_map(|(slot, change)| Step::Again { slot, change }),
        3 => (0..40_usize).prop_map(|age| Step::LateCopy { age }),
        5 => (slot(), any::<u8>()).prop_map(|(slot, ttl)| Step::Renew { slot, ttl }),
        12 => (slot(), number, prop::bool::weighted(0.25))
            .prop_map(|(slot, number, waiting_only)| Step::Release { slot, number, waiting_only }),
        9 => (prop::bool::weighted(0.8), slot(), prop::bool::weighted(0.8), next, prop_oneof![Just(1_u32), Just(32_u32)])
            .prop_map(|(by_holder, slot, right_end, next, block)| Step::NextBlock { by_holder, slot, right_end, next, block }),
        1 => (prop::option::of(0..OWNERS), any::<bool>(), prop::option::of(0..3_usize))
            .prop_map(|(owner, of_slot, up_to)| Step::Break { owner, of_slot, up_to }),
        2 => (any::<bool>(), slot(), prop::bool::weighted(0.8))
            .prop_map(|(first, slot, right)| Step::BreakWaiter { first, slot, right }),
        6 => (any::<bool>(), slot(), slot()).prop_map(|(first, slot, behind)| Step::Skip { first, slot, behind }),
        5 => (1..400_u16).prop_map(Step::Pass),
        1 => any::<i32>().prop_map(Step::MoveWall),
    ]
}

/// A history on a lock, or on a semaphore.
pub(crate) fn history(steps: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Step>> {
    prop::bool::weighted(0.3).prop_flat_map(move |permits| prop::collection::vec(step(permits), steps.clone()))
}
