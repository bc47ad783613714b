//! The same rule where the store itself keeps claims in order: who holds follows from the order alone.
//!
//! Such a store is read, not told: whoever looks at the claims of a name, in their order, sees the same holders.

use super::apply::{fits, place, re_enterable, refuse, standing};
use super::claim::{Claim, Grant, Queue};
use super::op::{ClaimRequest, Place, Refusal, Standing};
use crate::clock::Moment;
use crate::owner::ClaimId;

impl Queue {
    /// The queue of claims that lie in a store in this order, each with what it is given as soon as it holds. The claims at the
    /// front that fit together hold, and past any waiter whoever re-enters them, with their token.
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
    use crate::owner::Owner;
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
