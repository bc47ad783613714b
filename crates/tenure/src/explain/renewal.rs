//! Whether a holder still renews, from two looks at it.

use std::time::Duration;

use crate::machine::{HolderView, NameView};
use serde::Serialize;

/// How long a look lasts at most: a ttl may be a day.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// What an answer may take, and what stores round off.
const SLACK: Duration = Duration::from_millis(200);

/// What two looks tell of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewal {
    /// It renewed between the looks.
    Renewing,
    /// It has not renewed, though it should have.
    Overdue,
    /// It has not renewed, and need not have yet.
    NotDue,
    /// It has not renewed, and nobody knows when it would: another library holds it.
    NotSeen,
    /// The store does not tell.
    Untold,
}

/// What a store's views tell of renewals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Teller {
    /// Whether the expiry in a view is known, and not assumed.
    expiry: bool,
    /// How much the times in a view are rounded.
    rounding: Duration,
}

impl Teller {
    /// Of a store, by the scheme of its URL.
    pub(crate) fn of(store: &str) -> Self {
        Self {
            // ZooKeeper's servers do not tell when they last heard from a session: views assume a full ttl.
            expiry: store != "zookeeper",
            // etcd tells how long a lease lives in whole seconds.
            rounding: if store == "etcd" { Duration::from_secs(1) } else { Duration::ZERO },
        }
    }

    /// How long to look until every holder of this view has renewed, or is overdue.
    pub(super) fn look_for(self, view: &NameView) -> Duration {
        let each = view.holders.iter().map(|holder| self.due_in(holder).unwrap_or_default());
        each.max().unwrap_or_default().min(LOOK_MAX)
    }

    /// How long from this look on a holder that renews may take to do so.
    fn due_in(self, holder: &HolderView) -> Option<Duration> {
        let left = holder.expires_in.filter(|_| self.expiry)?;
        let Some(renewed) = holder.renewed else {
            // It renews while two thirds of its ttl are left: a third of the ttl is half of what is left, or less.
            return Some(left / 2 + SLACK);
        };
        let due = self.due_after(left + renewed);
        // Even if it is overdue by the first look, a second one confirms it.
        Some(due.saturating_sub(renewed).max(SLACK))
    }

    /// The longest time between two renewals of a claim with this ttl: a third of it, and one repetition.
    fn due_after(self, ttl: Duration) -> Duration {
        ttl / 3 + ttl / 9 + SLACK + self.rounding
    }

    /// What each holder of `last` does, given the `first` look and the time from its answer to the last request.
    pub(crate) fn judge(self, first: &NameView, last: &NameView, apart: Duration) -> Vec<Renewal> {
        last.holders
            .iter()
            .map(|holder| self.judge_holder(first.holders.iter().find(|was| is_same(was, holder)), holder, apart))
            .collect()
    }

    fn judge_holder(self, first: Option<&HolderView>, last: &HolderView, apart: Duration) -> Renewal {
        let (Some(left), true) = (last.expires_in, self.expiry) else { return Renewal::Untold };
        // Granted between the looks.
        let Some(first) = first else { return Renewal::NotDue };
        let rounding = self.rounding + Duration::from_millis(1);
        let moved = first.expires_in.is_some_and(|before| left + apart > before + rounding);
        if moved || last.renewed.is_some_and(|renewed| renewed < apart) {
            return Renewal::Renewing;
        }
        let overdue = match last.renewed {
            Some(renewed) => renewed > self.due_after(left + renewed),
            None => first.expires_in.is_some_and(|before| apart > before / 2),
        };
        match overdue {
            _ if last.owner.is_none() => Renewal::NotSeen,
            true => Renewal::Overdue,
            false => Renewal::NotDue,
        }
    }
}

/// Whether two views show the same holder. Those that other libraries left are told apart by what they left.
fn is_same(a: &HolderView, b: &HolderView) -> bool {
    match (a.claims.is_empty(), b.claims.is_empty()) {
        (false, false) => a.claims.iter().any(|claim| b.claims.contains(claim)),
        (true, true) => (&a.owner, &a.label, a.token) == (&b.owner, &b.label, b.token),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Shape;
    use crate::scene::Scene;

    const TTL: Duration = Duration::from_secs(9);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn held() -> Scene {
        let mut scene = Scene::of("x");
        scene.claim(1, Shape::Exclusive, TTL);
        scene
    }

    #[test]
    fn a_renewal_between_two_looks_is_seen_also_if_a_store_tells_no_more_than_the_expiry() {
        for tells in [true, false] {
            let mut scene = held();
            let mut first = scene.pass(ms(1_000)).view();
            let mut last = scene.pass(ms(2_500)).renew(1).pass(ms(10)).view();
            if !tells {
                (first.holders[0].renewed, last.holders[0].renewed) = (None, None);
            }
            assert_eq!(Teller::of("redis").judge(&first, &last, ms(2_510)), [Renewal::Renewing]);
        }
    }

    #[test]
    fn a_holder_that_has_not_renewed_is_overdue_only_after_a_third_of_its_ttl_and_a_repetition() {
        let mut scene = held();
        let first = scene.view();
        let soon = scene.pass(ms(3_900)).view();
        assert_eq!(Teller::of("redis").judge(&first, &soon, ms(3_900)), [Renewal::NotDue]);
        let late = scene.pass(ms(400)).view();
        assert_eq!(Teller::of("redis").judge(&first, &late, ms(4_300)), [Renewal::Overdue]);
    }

    #[test]
    fn what_is_rounded_to_seconds_is_no_renewal() {
        let mut scene = held();
        let mut first = scene.pass(ms(900)).view();
        let mut last = scene.pass(ms(600)).view();
        // As etcd tells them: 8.1 s and 7.5 s.
        (first.holders[0].expires_in, last.holders[0].expires_in) = (Some(ms(8_000)), Some(ms(8_000)));
        (first.holders[0].renewed, last.holders[0].renewed) = (Some(ms(1_000)), Some(ms(1_000)));
        assert_eq!(Teller::of("etcd").judge(&first, &last, ms(600)), [Renewal::NotDue]);
    }

    #[test]
    fn an_expiry_that_is_assumed_tells_nothing() {
        let mut scene = held();
        let view = scene.view();
        assert_eq!(Teller::of("zookeeper").judge(&view, &view, ms(100)), [Renewal::Untold]);
        assert_eq!(Teller::of("zookeeper").look_for(&view), Duration::ZERO);
        let mut eternal = scene.pass(ms(1)).view();
        eternal.holders[0].expires_in = None;
        assert_eq!(Teller::of("redis").judge(&eternal, &eternal, ms(100)), [Renewal::Untold]);
    }

    #[test]
    fn another_librarys_holder_renews_when_it_likes() {
        let mut scene = held();
        let mut first = scene.pass(ms(1_000)).view();
        let mut last = scene.pass(ms(7_000)).view();
        for view in [&mut first, &mut last] {
            (view.holders[0].owner, view.holders[0].renewed) = (None, None);
        }
        assert_eq!(Teller::of("redis").judge(&first, &last, ms(7_000)), [Renewal::NotSeen]);
    }

    #[test]
    fn a_holder_of_the_last_look_alone_is_new() {
        let (mut was, mut is) = (Scene::of("x"), Scene::of("x"));
        was.claim(1, Shape::Exclusive, TTL);
        is.claim(2, Shape::Exclusive, TTL);
        assert_eq!(Teller::of("redis").judge(&was.view(), &is.view(), ms(5_000)), [Renewal::NotDue]);
    }

    #[test]
    fn a_look_lasts_until_a_renewal_is_overdue_and_five_seconds_at_most() {
        let mut scene = held();
        assert_eq!(Teller::of("redis").look_for(&scene.view()), ms(4_200));
        assert_eq!(Teller::of("redis").look_for(&scene.pass(ms(3_000)).view()), ms(1_200));
        assert_eq!(Teller::of("redis").look_for(&scene.pass(ms(5_000)).view()), SLACK, "a second look confirms it");
        let mut day = Scene::of("x");
        day.claim(1, Shape::Exclusive, Duration::from_secs(86_400));
        assert_eq!(Teller::of("redis").look_for(&day.view()), LOOK_MAX);
        assert_eq!(Teller::of("redis").look_for(&Scene::of("x").view()), Duration::ZERO, "nobody holds it");
    }
}
