//! What `explain` tells: serializes as `explain --json` prints it.

use std::time::Duration;

use serde::Serialize;

use super::renewal::Renewal;
use super::{Seen, place, turns};
use crate::deadlocks::Deadlock;
use crate::engine::Tenure;
use crate::machine::{HolderView, NameView, WaiterView};
use crate::name::Name;

/// A name with its diagnosis.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Who holds it and who waits for it.
    #[serde(flatten)]
    pub view: Flat,
    /// How long it was looked whether the holders renew.
    pub looked_ms: u64,
    /// What a new claim would wait for.
    pub wait: Wait,
    /// What a break would do.
    #[serde(rename = "break")]
    pub break_: Break,
    /// The deadlocks that it is part of.
    pub deadlocks: Vec<Deadlock>,
    /// What the store cannot tell.
    pub untold: Vec<&'static str>,
    /// Whether claims wait in the store, in order.
    #[serde(skip)]
    pub in_order: bool,
}

/// As in `show --json`, with more about each claim.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Flat {
    /// The name.
    pub name: Name,
    /// How many may hold it at once: 1, the number of permits, or none when it is shared or free.
    pub capacity: Option<u32>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits for it, in order.
    pub waiters: Vec<Waiter>,
}

/// An owner that holds the name.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Holder {
    /// As `show` tells it.
    #[serde(flatten)]
    pub view: HolderView,
    /// Where it runs, if its label tells.
    pub host: Option<String>,
    /// Its process, if its label tells.
    pub pid: Option<u32>,
    /// Its ttl.
    pub ttl_ms: Option<u64>,
    /// How long ago it last renewed.
    pub renewed_ms: Option<u64>,
    /// Whether it still renews.
    pub renewal: Renewal,
}

/// A claim that waits for it.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Waiter {
    /// As `show` tells it.
    #[serde(flatten)]
    pub view: WaiterView,
    /// How many claims end before it holds; absent where nobody is served in order.
    pub hand_overs: Option<usize>,
}

/// What a new claim's wait would be bounded by.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Wait {
    /// How many claims would end before it holds; absent where nobody is served in order.
    pub hand_overs: Option<usize>,
    /// When the last holder's claim ends if none renews any more; absent if that is not known, or nobody holds.
    pub if_holders_die_ms: Option<u64>,
    /// Whether nothing bounds it: a holder renews, or may.
    pub unbounded: bool,
}

/// What `break` would do.
#[derive(Debug, Serialize)]
#[non_exhaustive]
pub struct Break {
    /// How many owners' claims it would end.
    pub ends: usize,
    /// How many waiters would then hold.
    pub grants: usize,
    /// Why it would be refused.
    pub refused: Option<&'static str>,
}

impl Report {
    pub(super) fn of(seen: Seen, deadlocks: Vec<Deadlock>, tenure: &Tenure) -> Self {
        let in_order = tenure.capabilities().queue;
        let store = tenure.guarantees().store;
        let wait = wait(&seen, in_order);
        let break_ = breaking(&seen.view, store, in_order);
        let untold = untold(&seen, in_order);
        let away = turns::hand_overs(&seen.view);
        let holders = seen.view.holders.into_iter().zip(seen.renewals).map(|(view, renewal)| holder(view, renewal));
        let waiters = seen.view.waiters.into_iter().zip(away);
        let waiters = waiters.map(|(view, away)| Waiter { view, hand_overs: in_order.then_some(away) });
        let view = Flat {
            name: seen.view.name,
            capacity: seen.view.capacity,
            holders: holders.collect(),
            waiters: waiters.collect(),
        };
        Self { view, looked_ms: ms(seen.looked), wait, break_, deadlocks, untold, in_order }
    }
}

fn holder(view: HolderView, renewal: Renewal) -> Holder {
    let place = view.label.as_deref().and_then(place::of).map(|(host, pid)| (host.to_owned(), pid));
    let ttl = view.expires_in.zip(view.renewed).map(|(left, renewed)| left + renewed);
    Holder {
        host: place.as_ref().map(|(host, _)| host.clone()),
        pid: place.map(|(_, pid)| pid),
        ttl_ms: ttl.map(ms),
        renewed_ms: view.renewed.map(ms),
        renewal,
        view,
    }
}

fn wait(seen: &Seen, in_order: bool) -> Wait {
    let view = &seen.view;
    let ends: Option<Vec<Duration>> = view.holders.iter().map(|holder| holder.expires_in).collect();
    let overdue = seen.renewals.iter().all(|renewal| *renewal == Renewal::Overdue);
    Wait {
        hand_overs: in_order.then_some(view.holders.len() + view.waiters.len()),
        if_holders_die_ms: ends.and_then(|ends| ends.into_iter().max()).map(ms),
        unbounded: !(view.is_free() || overdue && view.waiters.is_empty()),
    }
}

fn breaking(view: &NameView, store: &str, in_order: bool) -> Break {
    let refused = refused(view, store);
    let granted = || if in_order { turns::next_together(view) } else { 0 };
    let ends = if refused.is_some() { 0 } else { view.holders.len() };
    Break { ends, grants: if ends > 0 { granted() } else { 0 }, refused }
}

fn untold(seen: &Seen, in_order: bool) -> Vec<&'static str> {
    let view = &seen.view;
    let any = |is: fn(&HolderView) -> bool| view.holders.iter().any(is);
    let facts = [
        (!in_order, "who waits, and in which order: claims ask again and again, and the store has no queue"),
        (!in_order, "deadlocks: they are seen by who waits"),
        (
            any(|holder| holder.owner.is_none()),
            "who holds it: another library's client does, and it leaves no word of itself",
        ),
        (any(|holder| holder.held.is_none()), "since when it is held"),
        (any(|holder| holder.token.is_none()), "a token"),
        (any(|holder| holder.expires_in.is_none()), "when the holder's claim ends if it dies"),
        (any(|holder| holder.renewed.is_none()), "when the holder last renewed"),
        (seen.renewals.contains(&Renewal::Untold), "whether the holder still renews"),
        (view.waiters.iter().any(|waiter| waiter.waited.is_none()), "since when some wait"),
    ];
    facts.into_iter().filter_map(|(untold, what)| untold.then_some(what)).collect()
}

/// Why a store would not end the claims that hold a name.
pub fn refused(view: &NameView, store: &str) -> Option<&'static str> {
    let ends_foreign = matches!(store, "etcd" | "zookeeper");
    let is_foreign = !ends_foreign && view.holders.iter().any(|holder| holder.owner.is_none());
    is_foreign.then_some("a foreign client holds it: only that client, or the store's own tools, can end it")
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
