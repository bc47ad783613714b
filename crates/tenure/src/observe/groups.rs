//! The `group` label of metrics: the first segment of a name. Its values are bounded, for every value of a label is
//! another time series.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

/// How many groups are told apart at most.
const GROUPS_MAX: usize = 64;
/// The group of all names that have none of their own.
const OTHER: &str = "other";

/// Which groups of names are told apart.
#[derive(Clone, Debug, Default)]
pub(crate) enum Groups {
    /// None: there is no such label.
    #[default]
    Off,
    /// These.
    Named(Arc<[Box<str>]>),
    /// The first 64 that are met.
    First,
}

impl Groups {
    /// These, as far as there may be so many.
    pub(crate) fn named<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Self {
        Self::Named(names.into_iter().take(GROUPS_MAX).map(|name| name.as_ref().into()).collect())
    }
}

/// Makes that of a group; of all names where there is none.
type Make<T> = dyn Fn(Option<&str>) -> T + Send + Sync;

/// Something for each group, made when the group is first met.
pub(super) struct ByGroup<T> {
    groups: Groups,
    /// For all names, where groups are off.
    all: Option<Arc<T>>,
    met: RwLock<HashMap<Box<str>, Arc<T>>>,
    make: Box<Make<T>>,
}

impl<T> ByGroup<T> {
    pub(super) fn new(groups: Groups, make: impl Fn(Option<&str>) -> T + Send + Sync + 'static) -> Self {
        let all = matches!(groups, Groups::Off).then(|| Arc::new(make(None)));
        let by_group = Self { groups, all, met: RwLock::default(), make: Box::new(make) };
        if let Groups::Named(names) = &by_group.groups {
            // Known before they are met, so that what never happened is told as none.
            for name in names.iter() {
                by_group.meet(name);
            }
        }
        by_group
    }

    /// That of a name.
    pub(super) fn of(&self, name: &str) -> Arc<T> {
        if let Some(all) = &self.all {
            return all.clone();
        }
        let group = name.split('/').next().unwrap_or_default();
        if let Some(known) = self.known(group) {
            return known;
        }
        match self.groups {
            Groups::First => self.meet(group),
            Groups::Off | Groups::Named(_) => self.meet(OTHER),
        }
    }

    /// Those of all groups there are.
    pub(super) fn all(&self) -> Vec<Arc<T>> {
        let met = self.met.read().unwrap_or_else(PoisonError::into_inner);
        self.all.iter().chain(met.values()).cloned().collect()
    }

    fn known(&self, group: &str) -> Option<Arc<T>> {
        self.met.read().unwrap_or_else(PoisonError::into_inner).get(group).cloned()
    }

    /// That of a group, unless there are too many.
    fn meet(&self, group: &str) -> Arc<T> {
        let mut met = self.met.write().unwrap_or_else(PoisonError::into_inner);
        let others = met.len() - usize::from(met.contains_key(OTHER));
        let group = if met.contains_key(group) || others < GROUPS_MAX { group } else { OTHER };
        met.entry(group.into()).or_insert_with_key(|group| Arc::new((self.make)(Some(group)))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(groups: Groups) -> ByGroup<Option<String>> {
        ByGroup::new(groups, |group| group.map(str::to_owned))
    }

    #[test]
    fn groups_are_off_unless_asked_for() {
        assert_eq!(*made(Groups::Off).of("orders/42"), None);
    }

    #[test]
    fn the_first_64_are_told_apart_and_the_rest_is_other() {
        let made = made(Groups::First);
        let seen: std::collections::HashSet<_> = (0..10_000).map(|n| made.of(&format!("g{n}/x"))).collect();
        assert_eq!(seen.len(), 65);
        assert_eq!(made.of("g63/y").as_deref(), Some("g63"), "a group keeps its own");
        assert_eq!(made.of("g64/y").as_deref(), Some("other"));
    }

    #[test]
    fn a_group_that_is_called_other_does_not_make_room_for_one_more() {
        let made = made(Groups::First);
        made.of("other/x");
        let seen: std::collections::HashSet<_> = (0..1_000).map(|n| made.of(&format!("g{n}"))).collect();
        assert_eq!(seen.len(), 65);
    }

    #[test]
    fn those_that_are_named_are_told_apart_and_the_rest_is_other() {
        let made = made(Groups::named(["orders", "jobs"]));
        let of = |name| made.of(name).as_deref().map(str::to_owned);
        assert_eq!(of("orders/42").as_deref(), Some("orders"));
        assert_eq!(of("jobs").as_deref(), Some("jobs"));
        assert_eq!(of("ordersx/42").as_deref(), Some("other"));
    }
}
