//! Names with waiters as the reduction needs them: owners and claims by their numbers, and who names whom.

use std::collections::HashMap;
use std::time::Duration;

use super::Claimed;
use crate::machine::{NameView, Shape};
use crate::name::Name;
use crate::owner::Owner;

/// A claim that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Its name, by number.
    pub(super) name: usize,
    /// Its owner, by number.
    pub(super) owner: usize,
    pub(super) shape: Shape,
    pub(super) claimed: Claimed,
    pub(super) label: Option<String>,
    pub(super) waited: Option<Duration>,
    /// Its owner and the owners that it runs within: all of them wait while it does.
    pub(super) blocks: Vec<usize>,
    /// Whether it asked to be refused rather than to wait in a deadlock.
    pub(super) refusable: bool,
}

/// An owner that holds a name.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) owner: usize,
    pub(super) shape: Shape,
    pub(super) label: Option<String>,
    pub(super) claims: Vec<Claimed>,
}

/// A name: who holds it, and who waits, in order.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) name: Name,
    pub(super) holders: Vec<Holder>,
    /// The claims that wait, by number.
    pub(super) waiters: Vec<usize>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Queues {
    pub(super) names: Vec<Queue>,
    pub(super) waiters: Vec<Waiter>,
    /// The owners; none for a claim of another library, which is an owner of its own.
    pub(super) owners: Vec<Option<Owner>>,
    /// For each owner the names that it holds or waits for.
    pub(super) touches: Vec<Vec<usize>>,
    /// For each owner the claims that it waits by.
    pub(super) waits_by: Vec<Vec<usize>>,
}

/// Gives owners their numbers.
#[derive(Default)]
struct Numbers {
    known: HashMap<Owner, usize>,
    owners: Vec<Option<Owner>>,
}

impl Numbers {
    fn of(&mut self, owner: Option<&Owner>) -> usize {
        let next = self.owners.len();
        let number = owner.map_or(next, |owner| *self.known.entry(owner.clone()).or_insert(next));
        if number == next {
            self.owners.push(owner.cloned());
        }
        number
    }
}

/// What a claim takes of a name; of one that left no word, everything.
fn taken(shape: Option<Shape>) -> Shape {
    shape.unwrap_or(Shape::Exclusive)
}

impl Queues {
    /// From looks at names; names without waiters keep nobody waiting.
    pub(super) fn of(views: &[NameView]) -> Self {
        let mut queues = Self::default();
        let mut numbers = Numbers::default();
        for view in views.iter().filter(|view| !view.waiters.is_empty()) {
            queues.add(view, &mut numbers);
        }
        queues.owners = numbers.owners;
        queues.touches = vec![Vec::new(); queues.owners.len()];
        queues.waits_by = vec![Vec::new(); queues.owners.len()];
        for (index, queue) in queues.names.iter().enumerate() {
            for holder in &queue.holders {
                touch(&mut queues.touches, holder.owner, index);
            }
        }
        for (index, waiter) in queues.waiters.iter().enumerate() {
            touch(&mut queues.touches, waiter.owner, waiter.name);
            for owner in &waiter.blocks {
                touch(&mut queues.waits_by, *owner, index);
            }
        }
        queues
    }

    fn add(&mut self, view: &NameView, numbers: &mut Numbers) {
        let name = self.names.len();
        let claimed = |(id, number)| Claimed { name: view.name.clone(), id, number };
        let holders = view.holders.iter().map(|holder| Holder {
            owner: numbers.of(holder.owner.as_ref()),
            shape: taken(holder.shape),
            label: holder.label.clone(),
            claims: holder.claims.iter().copied().map(claimed).collect(),
        });
        let holders = holders.collect();
        let first = self.waiters.len();
        for waiter in &view.waiters {
            let owner = numbers.of(waiter.owner.as_ref());
            let mut blocks = vec![owner];
            for outer in waiter.within.iter().filter(|outer| !outer.is_refusing_deadlocks()) {
                let outer = numbers.of(Some(outer));
                if !blocks.contains(&outer) {
                    blocks.push(outer);
                }
            }
            self.waiters.push(Waiter {
                name,
                owner,
                shape: taken(waiter.shape),
                claimed: claimed(waiter.claim),
                label: waiter.label.clone(),
                waited: waiter.waited,
                blocks,
                refusable: waiter.within.iter().any(Owner::is_refusing_deadlocks),
            });
        }
        let waiters = (first..self.waiters.len()).collect();
        self.names.push(Queue { name: view.name.clone(), holders, waiters });
    }
}

fn touch(lists: &mut [Vec<usize>], owner: usize, index: usize) {
    if let Some(list) = lists.get_mut(owner)
        && list.last() != Some(&index)
    {
        list.push(index);
    }
}
