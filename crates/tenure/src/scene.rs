//! A name as tests need it: claims by the rule, and time that they move.

use std::time::Duration;

use crate::clock::Moment;
use crate::machine::{ClaimRequest, NameView, Op, Queue, Shape, apply};
use crate::name::Name;
use crate::owner::{ClaimId, Owner};

/// A queue, and the store's time.
#[derive(Debug)]
pub struct Scene {
    name: Name,
    queue: Queue,
    now: Moment,
}

impl Scene {
    /// A free name.
    ///
    /// # Panics
    ///
    /// If it is none.
    #[allow(clippy::unwrap_used)]
    pub fn of(name: &str) -> Self {
        Self { name: Name::new(name).unwrap(), queue: Queue::default(), now: Moment(1_000_000_000) }
    }

    /// Claims, for an owner and with a label that are `o` and `l` with this number.
    ///
    /// # Panics
    ///
    /// Never.
    #[allow(clippy::unwrap_used)]
    pub fn claim(&mut self, number: u64, shape: Shape, ttl: Duration) -> &mut Self {
        self.apply(Op::Claim(ClaimRequest {
            id: ClaimId(number),
            owner: Owner::new(format!("o{number}")).unwrap(),
            label: format!("l{number}").into(),
            shape,
            ttl,
            queue: true,
            block: 1,
            strict: false,
            inbox: "".into(),
            within: Vec::new(),
            reenter: None,
            solo: true,
            attempt: 0,
            presumed: Duration::ZERO,
        }))
    }

    /// Renews the claim with this number.
    pub fn renew(&mut self, number: u64) -> &mut Self {
        self.apply(Op::Renew { id: ClaimId(number), ttl: Duration::ZERO, number: None })
    }

    /// Time passes.
    pub fn pass(&mut self, time: Duration) -> &mut Self {
        self.now = self.now + time;
        self
    }

    /// Its queue.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The store's time.
    pub fn now(&self) -> Moment {
        self.now
    }

    /// The name as it is shown.
    pub fn view(&self) -> NameView {
        NameView::of(self.name.clone(), &self.queue, self.now)
    }

    fn apply(&mut self, op: Op) -> &mut Self {
        apply(&mut self.queue, op, self.now, 1);
        self
    }
}
