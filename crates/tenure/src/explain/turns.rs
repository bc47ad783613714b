//! How far from the lock each waiter is.

use std::collections::VecDeque;

use crate::machine::{NameView, Shape};

/// What a claim takes of a name; of one that left no word, everything.
fn taken(shape: Option<Shape>) -> Shape {
    shape.unwrap_or(Shape::Exclusive)
}

/// Whether a claim fits beside those that hold.
fn fits(holding: &VecDeque<Shape>, shape: Shape) -> bool {
    match shape {
        Shape::Exclusive => holding.is_empty(),
        Shape::Shared => holding.iter().all(|held| *held == Shape::Shared),
        Shape::Permits { units, of } => {
            let used: u64 = holding.iter().map(|held| u64::from(held.units())).sum();
            holding.is_empty()
                || holding.iter().all(|held| matches!(held, Shape::Permits { .. }))
                    && used + u64::from(units) <= u64::from(of)
        }
    }
}

/// For each waiter how many claims end before it holds, if they end in the order they came: the hand-overs it is away.
pub(super) fn hand_overs(view: &NameView) -> Vec<usize> {
    away(view.holders.iter().map(|holder| taken(holder.shape)).collect(), view)
}

/// How many waiters hold at once if every holder's claim ends now.
pub(super) fn next_together(view: &NameView) -> usize {
    away(VecDeque::new(), view).into_iter().take_while(|away| *away == 0).count()
}

fn away(mut holding: VecDeque<Shape>, view: &NameView) -> Vec<usize> {
    let mut ended = 0;
    let mut away = Vec::with_capacity(view.waiters.len());
    for waiter in &view.waiters {
        let shape = taken(waiter.shape);
        while !fits(&holding, shape) {
            holding.pop_front();
            ended += 1;
        }
        holding.push_back(shape);
        away.push(ended);
    }
    away
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scene::Scene;
    use std::time::Duration;

    fn queue(shapes: &[Shape]) -> NameView {
        let mut scene = Scene::of("x");
        for (number, shape) in (1..).zip(shapes) {
            scene.claim(number, *shape, Duration::from_secs(9));
        }
        scene.view()
    }

    const W: Shape = Shape::Exclusive;
    const R: Shape = Shape::Shared;

    fn permits(units: u32) -> Shape {
        Shape::Permits { units, of: 3 }
    }

    #[test]
    fn each_waiter_for_a_mutex_is_one_further_away() {
        assert_eq!(hand_overs(&queue(&[W, W, W, W])), [1, 2, 3]);
        assert_eq!(next_together(&queue(&[W, W, W])), 1);
        assert_eq!(hand_overs(&queue(&[W])), [0; 0]);
        assert_eq!(next_together(&queue(&[W])), 0);
    }

    #[test]
    fn readers_behind_a_writer_hold_together_and_the_next_writer_waits_for_all() {
        assert_eq!(hand_overs(&queue(&[W, R, R, W, R])), [1, 1, 3, 4]);
        assert_eq!(next_together(&queue(&[W, R, R, W, R])), 2);
        assert_eq!(hand_overs(&queue(&[R, R, W, R])), [2, 3], "two readers hold");
    }

    #[test]
    fn permits_are_given_back_in_the_order_they_were_taken() {
        assert_eq!(hand_overs(&queue(&[permits(1), permits(2), permits(1), permits(3)])), [1, 3]);
        assert_eq!(next_together(&queue(&[permits(3), permits(2), permits(1), permits(1)])), 2);
    }

    #[test]
    fn what_another_library_takes_is_everything() {
        let mut view = queue(&[W, R, R]);
        view.waiters[0].shape = None;
        assert_eq!(hand_overs(&view), [1, 2]);
    }
}
