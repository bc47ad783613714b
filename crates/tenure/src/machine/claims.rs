//! The claims of a queue in order, found by id in constant time where that pays.

use std::collections::{HashMap, VecDeque};
use std::ops::Deref;

use foldhash::fast::RandomState;

use super::claim::Claim;
use crate::owner::ClaimId;

/// Claims in order: reads as a [`VecDeque`], and changes through its own methods, which keep the index right.
#[derive(Clone, Default)]
pub struct Claims {
    list: VecDeque<Claim>,
    /// Absent unless somebody asked for it: most queues are short, and one operation does not pay for it.
    index: Option<Box<Index>>,
}

/// Where each claim stands.
#[derive(Clone)]
struct Index {
    /// The place of the first claim. Places are counted from here, so that a claim that leaves or joins shifts only
    /// those between it and the nearer end.
    first: u64,
    /// Hashed with a random seed, as others choose the ids; nothing depends on it.
    places: HashMap<ClaimId, u64, RandomState>,
}

impl Index {
    fn shift<'a>(&mut self, claims: impl Iterator<Item = &'a Claim>, by: u64) {
        for claim in claims {
            if let Some(place) = self.places.get_mut(&claim.id) {
                *place = place.wrapping_add(by);
            }
        }
    }

    fn place(&self, index: usize) -> u64 {
        self.first.wrapping_add(index as u64)
    }
}

/// One place towards the front, in wrapping arithmetic.
const BACK: u64 = u64::MAX;

impl Claims {
    /// Makes room for one claim and no more.
    pub(crate) fn reserve_one(&mut self) {
        self.list.reserve_exact(1);
    }

    pub(crate) fn with_capacity(claims: usize) -> Self {
        Self { list: VecDeque::with_capacity(claims), index: None }
    }

    /// From now on claims are found by id without looking through all of them.
    pub(crate) fn index(&mut self) {
        if self.index.is_none() {
            let places = self.list.iter().enumerate().map(|(index, claim)| (claim.id, index as u64)).collect();
            self.index = Some(Box::new(Index { first: 0, places }));
        }
    }

    /// Where the claim with this id stands.
    pub(crate) fn position(&self, id: ClaimId) -> Option<usize> {
        match &self.index {
            Some(index) => {
                let place = index.places.get(&id)?;
                usize::try_from(place.wrapping_sub(index.first)).ok()
            }
            None => self.list.iter().position(|claim| claim.id == id),
        }
    }

    /// The claim at an index. Its id must stay as it is.
    pub(crate) fn get_mut(&mut self, index: usize) -> Option<&mut Claim> {
        self.list.get_mut(index)
    }

    /// Puts a claim at an index, before the one that stands there.
    pub(crate) fn insert(&mut self, at: usize, claim: Claim) {
        if let Some(index) = &mut self.index {
            if at < self.list.len() / 2 {
                index.shift(self.list.iter().take(at), BACK);
                index.first = index.first.wrapping_add(BACK);
            } else {
                index.shift(self.list.iter().skip(at), 1);
            }
            index.places.insert(claim.id, index.place(at));
        }
        self.list.insert(at, claim);
    }

    /// Adds a claim at the end.
    pub fn push_back(&mut self, claim: Claim) {
        if let Some(index) = &mut self.index {
            index.places.insert(claim.id, index.place(self.list.len()));
        }
        self.list.push_back(claim);
    }

    /// Takes out the claim at an index.
    pub(crate) fn remove(&mut self, at: usize) -> Option<Claim> {
        let removed = self.list.remove(at)?;
        if let Some(index) = &mut self.index {
            index.places.remove(&removed.id);
            if at < self.list.len() / 2 {
                index.shift(self.list.iter().take(at), 1);
                index.first = index.first.wrapping_add(1);
            } else {
                index.shift(self.list.iter().skip(at), BACK);
            }
        }
        Some(removed)
    }

    /// Keeps those claims for which `keep` answers true.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Claim) -> bool) {
        let before = self.list.len();
        self.list.retain(keep);
        if self.list.len() != before && self.index.take().is_some() {
            self.index();
        }
    }
}

impl Deref for Claims {
    type Target = VecDeque<Claim>;

    fn deref(&self) -> &VecDeque<Claim> {
        &self.list
    }
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.list.fmt(f)
    }
}

impl PartialEq for Claims {
    fn eq(&self, other: &Self) -> bool {
        self.list == other.list
    }
}

impl Eq for Claims {}

impl<'a> IntoIterator for &'a Claims {
    type Item = &'a Claim;
    type IntoIter = std::collections::vec_deque::Iter<'a, Claim>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl Extend<Claim> for Claims {
    fn extend<I: IntoIterator<Item = Claim>>(&mut self, claims: I) {
        claims.into_iter().for_each(|claim| self.push_back(claim));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Moment;
    use crate::machine::Shape;
    use crate::owner::Owner;

    fn claim(id: u64) -> Claim {
        Claim {
            id: ClaimId(id),
            number: id,
            owner: Owner::random(),
            label: "".into(),
            shape: Shape::Exclusive,
            ttl: Duration::from_secs(10),
            expires: Moment(id),
            appended: Moment(0),
            grant: None,
            block: 1,
            strict: false,
            skipped: 0,
            inbox: "".into(),
            solo: false,
            attempt: 0,
            within: Vec::new(),
        }
    }

    /// Random changes: the index finds what a look through all claims finds.
    #[test]
    fn the_index_knows_every_place() {
        let mut seed = 7_u64;
        let mut draw = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % below.max(1)
        };
        let mut claims = Claims::default();
        claims.index();
        for id in 0..3_000 {
            match draw(8) {
                0..3 => claims.push_back(claim(id)),
                3 => claims.insert(draw(claims.len() + 1), claim(id)),
                4 => drop(claims.remove(0)),
                5 => drop(claims.remove(draw(claims.len()))),
                6 if draw(20) == 0 => {
                    let dead = draw(10) as u64;
                    claims.retain(|claim| claim.id.0 % 10 != dead);
                }
                _ => assert!(claims.remove(claims.len()).is_none()),
            }
            for (place, claim) in claims.iter().enumerate() {
                assert_eq!(claims.position(claim.id), Some(place));
            }
            assert_eq!(claims.position(ClaimId(9_999)), None);
            assert_eq!(claims.index.as_ref().map(|index| index.places.len()), Some(claims.len()));
        }
        assert!(claims.len() > 50, "{} claims: too few to be sure", claims.len());
    }
}
