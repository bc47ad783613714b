//! A name as tests need it: claims by the rule, and time that they move.

use std::time::Duration;

use tenure::clock::Moment;
use tenure::machine::{ClaimRequest, Op, Queue, apply};
use tenure::{ClaimId, Name, NameView, Owner, Shape};

/// A queue, and the store's time.
pub(crate) struct Scene {
    name: Name,
    queue: Queue,
    now: Moment,
}

impl Scene {
    pub(crate) fn of(name: &str) -> Self {
        Self { name: Name::new(name).unwrap(), queue: Queue::default(), now: Moment(1_000_000_000) }
    }

    /// Claims, for an owner and with a label that are `o` and `l` with this number.
    pub(crate) fn claim(&mut self, number: u64, shape: Shape, ttl: Duration) -> &mut Self {
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

    pub(crate) fn renew(&mut self, number: u64) -> &mut Self {
        self.apply(Op::Renew { id: ClaimId(number), ttl: Duration::ZERO })
    }

    pub(crate) fn pass(&mut self, time: Duration) -> &mut Self {
        self.now = self.now + time;
        self
    }

    pub(crate) fn view(&self) -> NameView {
        NameView::of(self.name.clone(), &self.queue, self.now)
    }

    fn apply(&mut self, op: Op) -> &mut Self {
        apply(&mut self.queue, op, self.now, 1);
        self
    }
}
