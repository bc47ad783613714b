//! The cycles among what is stuck: who waits for whom. Whoever only hangs on a cycle is in none.

use std::collections::{BTreeSet, VecDeque};

use super::queues::Queues;
use super::reduce::Reduced;
use crate::machine::Shape;

/// How many cycles are told at most; those that are left are found once these are broken.
const CYCLES_MAX: usize = 64;

/// One claim waits for another: by way of an owner that holds its name, or stands before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The claim that waits.
    pub(super) waiter: usize,
    /// The owner that it waits for.
    pub(super) owner: usize,
    /// Whether that owner holds the name, or only stands before it.
    pub(super) holds: bool,
}

/// What a stuck claim waits for: the next claim, by number, and how.
type Edges = Vec<Vec<(usize, Step)>>;

/// The shortest cycle through each stuck claim that is in one, each once.
pub(super) fn cycles(queues: &Queues, reduced: &Reduced) -> Vec<Vec<Step>> {
    let mut edges: Edges = (0..queues.waiters.len()).map(|waiter| edges_of(queues, reduced, waiter)).collect();
    drop_hangers_on(&mut edges);
    let mut seen = BTreeSet::new();
    let mut cycles = Vec::new();
    for start in (0..edges.len()).filter(|start| !edges[*start].is_empty()) {
        let Some(mut cycle) = shortest(&edges, start) else { continue };
        let members: BTreeSet<usize> = cycle.iter().map(|step| step.waiter).collect();
        // Begun with the first of them, whichever it was found by.
        let first = cycle.iter().enumerate().min_by_key(|(_, step)| step.waiter).map_or(0, |(place, _)| place);
        cycle.rotate_left(first);
        if seen.insert(members) {
            cycles.push(cycle);
        }
        if cycles.len() == CYCLES_MAX {
            break;
        }
    }
    cycles
}

/// Whom a claim waits for. Holders that conflict with it, if there are any; else whoever is the first before it that
/// has to hold first. All others before it wait for the same.
fn edges_of(queues: &Queues, reduced: &Reduced, index: usize) -> Vec<(usize, Step)> {
    if reduced.freed[index] {
        return Vec::new();
    }
    let waiter = &queues.waiters[index];
    let Some(queue) = queues.names.get(waiter.name) else { return Vec::new() };
    let keeps = |owner: usize| !reduced.gives_back(queues, owner, waiter.name);
    let by_owner = |owner: usize, holds: bool| {
        let step = Step { waiter: index, owner, holds };
        reduced.stuck_by(queues, owner, waiter.name).map(move |next| (next, step))
    };
    let held: Vec<(usize, Shape)> =
        queue.holders.iter().map(|held| (held.owner, held.shape)).filter(|(owner, _)| keeps(*owner)).collect();
    let blockers = blocking(&held, waiter.shape);
    if !blockers.is_empty() {
        return blockers.into_iter().flat_map(|owner| by_owner(owner, true)).collect();
    }
    // Those that would hold before it, and keep the name.
    let mut would_hold = held;
    let holders = would_hold.len();
    for before in queue.waiters.iter().copied().take_while(|before| *before != index) {
        let ahead = &queues.waiters[before];
        if !reduced.freed[before] {
            return vec![(before, Step { waiter: index, owner: ahead.owner, holds: false })];
        }
        if !keeps(ahead.owner) {
            continue;
        }
        would_hold.push((ahead.owner, ahead.shape));
        let blockers = blocking(&would_hold, waiter.shape);
        if !blockers.is_empty() {
            let holds = |owner: usize| would_hold.iter().take(holders).any(|(held, _)| *held == owner);
            return blockers.into_iter().flat_map(|owner| by_owner(owner, holds(owner))).collect();
        }
    }
    Vec::new()
}

/// Those that leave no room for a claim; nobody, if there is room.
fn blocking(held: &[(usize, Shape)], shape: Shape) -> Vec<usize> {
    let conflicts = |held: &Shape| !matches!((held, shape), (Shape::Shared, Shape::Shared));
    let units: u64 = held.iter().map(|(_, shape)| u64::from(shape.units())).sum();
    if let Shape::Permits { units: own, of } = shape
        && units + u64::from(own) <= u64::from(of)
    {
        return Vec::new();
    }
    let mut blocking: Vec<usize> = held.iter().filter(|(_, held)| conflicts(held)).map(|(owner, _)| *owner).collect();
    blocking.sort_unstable();
    blocking.dedup();
    blocking
}

/// Takes away the claims that nobody waits for, again and again: a queue behind a cycle may be long.
fn drop_hangers_on(edges: &mut Edges) {
    let mut waited_for = vec![0_usize; edges.len()];
    for (next, _) in edges.iter().flatten() {
        waited_for[*next] += 1;
    }
    let mut idle: Vec<usize> = (0..edges.len()).filter(|claim| waited_for[*claim] == 0).collect();
    while let Some(claim) = idle.pop() {
        for (next, _) in std::mem::take(&mut edges[claim]) {
            waited_for[next] -= 1;
            if waited_for[next] == 0 {
                idle.push(next);
            }
        }
    }
}

/// The shortest way from a claim back to itself.
fn shortest(edges: &Edges, start: usize) -> Option<Vec<Step>> {
    // How each claim was come to first: from which, and by what.
    let mut reached: Vec<Option<Step>> = vec![None; edges.len()];
    let mut queue = VecDeque::from([start]);
    while let Some(claim) = queue.pop_front() {
        for (next, step) in &edges[claim] {
            if reached[*next].is_none() {
                reached[*next] = Some(*step);
                queue.push_back(*next);
            }
        }
        if reached[start].is_some() {
            break;
        }
    }
    let mut cycle = vec![reached[start]?];
    // No longer than there are claims.
    for _ in 0..edges.len() {
        let from = cycle.last()?.waiter;
        if from == start {
            break;
        }
        cycle.push(reached[from]?);
    }
    cycle.reverse();
    Some(cycle)
}
