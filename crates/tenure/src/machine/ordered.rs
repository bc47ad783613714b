//! The same rule where the store itself keeps claims in order: who holds follows from the order alone.
//!
//! Such a store is read, not told: whoever looks at the claims of a name, in their order, sees the same holders.

use std::cmp::Reverse;

use super::apply::{fits, place, re_enterable, refuse, standing};
use super::claim::{Claim, Grant, Queue};
use super::op::{ClaimRequest, Place, Refusal, Standing};
use crate::clock::Moment;
use crate::owner::{ClaimId, Owner};

impl Queue {
    /// The queue of claims that lie in a store in this order, each with what it is given as soon as it holds. The
    /// claims at the front that fit together hold, and past any waiter whoever re-enters them, with their token.
    pub(crate) fn ordered(claims: impl IntoIterator<Item = (Claim, Grant)>) -> Self {
        let mut queue = Self::default();
        let mut waiting = Vec::new();
        let mut oldest = None;
        for (mut claim, grant) in claims {
            let oldest = *oldest.get_or_insert(claim.shape);
            let held = queue.claims.iter().find(|held| re_enterable(held, &claim.owner, claim.shape));
            let re_entered = held.and_then(|held| held.grant);
            let holders = queue.claims.len();
            claim.grant = match re_entered {
                Some(outer) => Some(Grant { token: outer.token, block_end: outer.token, at: grant.at }),
                // One that cannot stand beside the others will be taken back by whoever made it.
                None if waiting.is_empty()
                    && oldest.mixes_with(claim.shape)
                    && fits(&queue, holders, &claim.owner, claim.shape) =>
                {
                    Some(grant)
                }
                None => None,
            };
            if claim.grant.is_some() {
                queue.claims.push_back(claim);
            } else {
                waiting.push(claim);
            }
        }
        queue.claims.extend(waiting);
        queue
    }

    /// Why this claim can never be granted behind the claims of this queue, if so.
    pub(crate) fn refusal(&self, request: &ClaimRequest) -> Option<Refusal> {
        refuse(self, request)
    }

    /// Whether this claim, were it appended, would hold at once.
    pub(crate) fn has_room_for(&self, request: &ClaimRequest) -> bool {
        let holders = self.holders().count();
        let nobody_waits = self.claims.len() == holders;
        self.re_entered_by(request).is_some() || (nobody_waits && fits(self, holders, &request.owner, request.shape))
    }

    /// The holding that this claim re-enters.
    pub(crate) fn re_entered_by(&self, request: &ClaimRequest) -> Option<&Claim> {
        self.holders().find(|held| re_enterable(held, &request.owner, request.shape))
    }

    /// The claims by whose being there it is certain that one of this owner's waits, which stands in this queue and
    /// does not hold, or behind all of it. None if that is not certain.
    ///
    /// The first who waits does not fit beside these holders, however many others end; whoever stands behind it waits
    /// as long as it does, unless its owner holds, and nobody comes to hold before them. Who claims later stands
    /// behind.
    #[cfg_attr(not(any(feature = "etcd", feature = "zookeeper")), allow(dead_code))]
    pub(crate) fn blockers(&self, own: (ClaimId, &Owner)) -> Option<Vec<&Claim>> {
        let first = self.waiters().next()?;
        let blocked = |by: &[&Claim]| {
            let mut beside = Self::default();
            by.iter().for_each(|held| beside.claims.push_back((*held).clone()));
            let mixed = by.iter().any(|held| !held.shape.mixes_with(first.shape));
            mixed || !fits(&beside, by.len(), &first.owner, first.shape)
        };
        let mut holders: Vec<&Claim> = self.holders().collect();
        holders.sort_by_key(|held| Reverse(held.shape.units()));
        // But for permits any one will do.
        let mut kept: Vec<&Claim> = holders.iter().copied().find(|held| blocked(&[held])).into_iter().collect();
        let mut others = holders.iter().copied();
        while !blocked(&kept) {
            kept.push(others.next()?);
        }
        let re_enters = |held: &&Claim| held.owner == *own.1 && !kept.iter().any(|kept| kept.id == held.id);
        let of_owner: Vec<&Claim> = holders.iter().copied().filter(re_enters).collect();
        kept.extend(of_owner);
        kept.extend(Some(first).filter(|first| first.id != own.0));
        Some(kept)
    }

    /// How a claim stands.
    #[cfg_attr(not(feature = "etcd"), allow(dead_code))]
    pub(crate) fn standing(&self, id: ClaimId, now: Moment) -> Option<Standing> {
        standing(self, id, now)
    }

    /// Where a claim would stand that comes now.
    pub(crate) fn place_at_the_end(&self, now: Moment) -> Place {
        place(self, self.claims.len(), now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::machine::Shape;
    use crate::token::Token;

    fn claim(number: u64, owner: &Owner, shape: Shape) -> (Claim, Grant) {
        let grant = Grant { token: Token(number), block_end: Token(number), at: Moment(0) };
        let claim = Claim {
            id: ClaimId(number),
            number,
            owner: owner.clone(),
            label: "".into(),
            shape,
            ttl: Duration::from_secs(10),
            expires: Moment(10_000_000),
            appended: Moment(0),
            grant: None,
            block: 1,
            strict: false,
            skipped: 0,
            inbox: "".into(),
            solo: false,
            attempt: 0,
            within: Vec::new(),
        };
        (claim, grant)
    }

    fn holders(claims: Vec<(Claim, Grant)>) -> Vec<(u64, u64)> {
        let queue = Queue::ordered(claims);
        queue.holders().map(|held| (held.number, held.grant.map_or(0, |grant| grant.token.0))).collect()
    }

    fn owners() -> [Owner; 3] {
        [Owner::random(), Owner::random(), Owner::random()]
    }

    #[test]
    fn the_first_exclusive_claim_holds() {
        let [a, b, _] = owners();
        assert_eq!(holders(vec![claim(1, &a, Shape::Exclusive), claim(2, &b, Shape::Exclusive)]), [(1, 1)]);
    }

    #[test]
    fn readers_hold_together_up_to_the_first_writer() {
        let [a, b, c] = owners();
        let claims =
            [(1, &a, Shape::Shared), (2, &b, Shape::Shared), (3, &c, Shape::Exclusive), (4, &a, Shape::Shared)];
        let found = holders(claims.map(|(number, owner, shape)| claim(number, owner, shape)).into());
        assert_eq!(found, [(1, 1), (2, 2), (4, 1)], "and whoever re-enters has its holder's token");
    }

    #[test]
    fn permits_hold_up_to_their_number_and_nobody_passes_one_that_waits() {
        let [a, b, c] = owners();
        let permits = |units| Shape::Permits { units, of: 3 };
        let claims = vec![claim(1, &a, permits(2)), claim(2, &b, permits(2)), claim(3, &c, permits(1))];
        assert_eq!(holders(claims), [(1, 1)]);
    }

    /// What must stay for a claim to wait for certain.
    fn blockers(claims: Vec<(Claim, Grant)>, own: u64, owner: &Owner) -> Option<Vec<u64>> {
        let queue = Queue::ordered(claims);
        let kept = queue.blockers((ClaimId(own), owner))?;
        Some(kept.into_iter().map(|claim| claim.number).collect())
    }

    #[test]
    fn one_holder_and_the_first_who_waits_keep_all_others_waiting() {
        let [a, b, c] = owners();
        let exclusive = [1, 2, 3].map(|number| claim(number, [&a, &b, &c][number as usize - 1], Shape::Exclusive));
        assert_eq!(blockers(exclusive.to_vec(), 3, &c), Some(vec![1, 2]));
        assert_eq!(blockers(exclusive.to_vec(), 2, &b), Some(vec![1]), "the first who waits is itself");
        assert_eq!(blockers(exclusive[..2].to_vec(), 7, &c), Some(vec![1, 2]), "behind all that were read");
        assert_eq!(blockers(exclusive[..1].to_vec(), 7, &c), None, "nobody waits");
        let readers = [1, 2].map(|number| claim(number, [&a, &b][number as usize - 1], Shape::Shared));
        let waits = [claim(3, &c, Shape::Exclusive), claim(4, &Owner::random(), Shape::Shared)];
        let queue: Vec<_> = readers.into_iter().chain(waits).collect();
        assert_eq!(blockers(queue.clone(), 3, &c), Some(vec![1]));
        assert_eq!(blockers(queue, 4, &Owner::random()), Some(vec![1, 3]));
    }

    #[test]
    fn as_many_permits_keep_one_waiting_as_do_not_leave_room_for_it() {
        let [a, b, c] = owners();
        let permits = |units| Shape::Permits { units, of: 5 };
        let held = [claim(1, &a, permits(1)), claim(2, &b, permits(1)), claim(3, &c, permits(3))];
        let waits = |units| held.iter().cloned().chain([claim(4, &Owner::random(), permits(units))]).collect();
        assert_eq!(blockers(waits(3), 4, &Owner::random()), Some(vec![3]));
        assert_eq!(blockers(waits(2), 4, &Owner::random()), Some(vec![3, 1]));
        assert_eq!(blockers(waits(1), 4, &Owner::random()), Some(vec![3, 1, 2]));
    }

    /// Whatever else ends, it waits; that is what they are for.
    #[test]
    fn as_long_as_they_stay_a_claim_waits_whoever_else_ends() {
        let mut state = 7_u64;
        // Below `most`, the same in each run.
        let mut draw = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let owners: Vec<Owner> = (0..4).map(|_| Owner::random()).collect();
        let (mut waited, mut needed) = (0, [0_usize; 4]);
        for _ in 0..3_000 {
            let (permits, count) = (draw(10) < 3, 2 + draw(6));
            let claims: Vec<_> = (1..=count)
                .map(|number| {
                    let shape = match 1 + draw(3) as u32 {
                        units if permits => Shape::Permits { units, of: 4 },
                        1 => Shape::Shared,
                        _ => Shape::Exclusive,
                    };
                    let mut one = claim(number, &owners[draw(4) as usize], shape);
                    one.0.solo = draw(10) < 3;
                    one
                })
                .collect();
            let queue = Queue::ordered(claims.clone());
            for own in queue.waiters() {
                let kept = queue.blockers((own.id, &own.owner)).expect("somebody waits");
                waited += 1;
                needed[kept.len().min(3)] += 1;
                // Every subset of the others is gone.
                for gone in 0..1_u32 << count {
                    let stays = |claim: &Claim| {
                        claim.id == own.id
                            || kept.iter().any(|kept| kept.id == claim.id)
                            || gone & (1 << (claim.number - 1)) == 0
                    };
                    let left = claims.iter().filter(|(claim, _)| stays(claim)).cloned();
                    let left = Queue::ordered(left);
                    assert!(left.find(own.id).is_some_and(|own| own.grant.is_none()), "{own:?} holds in {left:?}");
                }
            }
        }
        assert!(waited > 3_000 && needed[1..].iter().all(|count| *count > 100), "{waited} {needed:?}");
    }

    #[test]
    fn a_claim_of_another_kind_than_the_oldest_never_holds() {
        let [a, b, _] = owners();
        let permit = Shape::Permits { units: 1, of: 3 };
        assert_eq!(holders(vec![claim(1, &a, Shape::Shared), claim(2, &b, permit)]), [(1, 1)]);
    }

    #[test]
    fn there_is_room_where_nobody_waits_and_it_fits() {
        let [a, b, c] = owners();
        let asks = |owner: &Owner, shape| ClaimRequest {
            id: ClaimId(9),
            owner: owner.clone(),
            label: "".into(),
            shape,
            ttl: Duration::from_secs(10),
            queue: false,
            block: 1,
            strict: false,
            inbox: "".into(),
            within: Vec::new(),
            reenter: None,
            solo: false,
            attempt: 0,
            presumed: Duration::ZERO,
        };
        let read = Queue::ordered([claim(1, &a, Shape::Shared)]);
        assert!(read.has_room_for(&asks(&b, Shape::Shared)));
        assert!(!read.has_room_for(&asks(&b, Shape::Exclusive)));
        let awaited = Queue::ordered([claim(1, &a, Shape::Shared), claim(2, &b, Shape::Exclusive)]);
        assert!(!awaited.has_room_for(&asks(&c, Shape::Shared)), "somebody waits");
        assert!(awaited.has_room_for(&asks(&a, Shape::Shared)), "but its owner re-enters");
        assert_eq!(awaited.refusal(&asks(&a, Shape::Exclusive)), Some(Refusal::Upgrade));
    }
}
