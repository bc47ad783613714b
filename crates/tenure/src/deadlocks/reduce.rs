//! The reduction: whoever can go on is freed, until nobody is left that can. What remains is stuck.
//!
//! An owner waits while a claim of its own, or one that names it in `within`, waits; others are free, and give back
//! what they hold. A claim is freed when all that conflict with it have given back, and all before it are freed. What
//! an owner waits for on the very name that it holds does not count against that holding: one task holds it, and
//! another one waits.

use std::collections::HashMap;

use super::queues::{Queue, Queues};
use crate::machine::Shape;

/// What is freed, and what is not.
#[derive(Debug)]
pub(super) struct Reduced {
    /// For each waiting claim whether it was freed.
    pub(super) freed: Vec<bool>,
    /// For each owner by how many claims it still waits.
    waits: Vec<usize>,
}

/// What is held of a name by owners that do not give it back, on the way along its queue.
#[derive(Default)]
struct Kept {
    exclusive: bool,
    shared: bool,
    units: u64,
}

impl Kept {
    fn add(&mut self, shape: Shape) {
        match shape {
            Shape::Exclusive => self.exclusive = true,
            Shape::Shared => self.shared = true,
            Shape::Permits { units, .. } => self.units += u64::from(units),
        }
    }

    fn leaves_room_for(&self, shape: Shape) -> bool {
        match shape {
            Shape::Exclusive => !self.exclusive && !self.shared && self.units == 0,
            Shape::Shared => !self.exclusive && self.units == 0,
            Shape::Permits { units, of } => {
                !self.exclusive && !self.shared && self.units + u64::from(units) <= u64::from(of)
            }
        }
    }
}

impl Reduced {
    pub(super) fn of(queues: &Queues) -> Self {
        let waits = queues.waits_by.iter().map(Vec::len).collect();
        let mut reduced = Self { freed: vec![false; queues.waiters.len()], waits };
        // Each name is looked at once, and again when an owner that holds or waits for it waits by fewer claims.
        let mut due: Vec<usize> = (0..queues.names.len()).collect();
        let mut is_due = vec![true; queues.names.len()];
        while let Some(name) = due.pop() {
            is_due[name] = false;
            let Some(queue) = queues.names.get(name) else { continue };
            for owner in reduced.walk(queues, name, queue) {
                for touched in queues.touches.get(owner).into_iter().flatten() {
                    if !std::mem::replace(&mut is_due[*touched], true) {
                        due.push(*touched);
                    }
                }
            }
        }
        reduced
    }

    /// Frees what can be freed of a name; the owners that wait by fewer claims since.
    fn walk(&mut self, queues: &Queues, name: usize, queue: &Queue) -> Vec<usize> {
        let mut changed = Vec::new();
        let mut kept = Kept::default();
        // What each owner holds, or would: it may enter once more past anybody.
        let mut own: HashMap<usize, Shape> = HashMap::new();
        for holder in &queue.holders {
            own.insert(holder.owner, holder.shape);
            if !self.gives_back(queues, holder.owner, name) {
                kept.add(holder.shape);
            }
        }
        let mut all_before = true;
        for index in &queue.waiters {
            let waiter = &queues.waiters[*index];
            let enters = || own.get(&waiter.owner).is_some_and(|held| held.covers(waiter.shape));
            let goes_on = || all_before && kept.leaves_room_for(waiter.shape);
            if !self.freed[*index] && (enters() || goes_on()) {
                self.freed[*index] = true;
                for owner in &waiter.blocks {
                    self.waits[*owner] -= 1;
                    changed.push(*owner);
                }
            }
            if !self.freed[*index] {
                all_before = false;
                continue;
            }
            if own.get(&waiter.owner) != Some(&Shape::Exclusive) {
                own.insert(waiter.owner, waiter.shape);
            }
            if !self.gives_back(queues, waiter.owner, name) {
                kept.add(waiter.shape);
            }
        }
        changed
    }

    /// Whether an owner gives back what it holds of a name, or will: it waits for nothing else.
    pub(super) fn gives_back(&self, queues: &Queues, owner: usize, name: usize) -> bool {
        self.waits[owner] == 0 || self.stuck_by(queues, owner, name).next().is_none()
    }

    /// The claims that keep an owner from giving back what it holds of a name.
    pub(super) fn stuck_by<'a>(
        &'a self,
        queues: &'a Queues,
        owner: usize,
        name: usize,
    ) -> impl Iterator<Item = usize> + 'a {
        let counts = move |index: &usize| {
            let waiter = &queues.waiters[*index];
            !self.freed[*index] && (waiter.owner != owner || waiter.name != name)
        };
        queues.waits_by[owner].iter().copied().filter(counts)
    }
}
