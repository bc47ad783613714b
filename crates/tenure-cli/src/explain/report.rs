//! What `explain` tells: serializes as `explain --json` prints it.

use std::time::Duration;

use serde::Serialize;
use tenure::machine::{HolderView, WaiterView};
use tenure::{NameView, Tenure};

use super::renewal::Renewal;
use super::{Seen, place, turns};
use crate::{break_, duration, label};

/// A name with its diagnosis.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    #[serde(flatten)]
    pub(crate) view: Flat,
    /// How long it was looked whether the holders renew.
    pub(crate) looked_ms: u64,
    pub(crate) wait: Wait,
    #[serde(rename = "break")]
    pub(crate) break_: Break,
    /// What the store cannot tell.
    pub(crate) untold: Vec<&'static str>,
    /// Whether claims wait in the store, in order.
    #[serde(skip)]
    pub(crate) in_order: bool,
}

/// As in `show --json`, with more about each claim.
#[derive(Debug, Serialize)]
pub(crate) struct Flat {
    pub(crate) name: tenure::Name,
    pub(crate) capacity: Option<u32>,
    pub(crate) holders: Vec<Holder>,
    pub(crate) waiters: Vec<Waiter>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Holder {
    #[serde(flatten)]
    pub(crate) view: HolderView,
    pub(crate) host: Option<String>,
    pub(crate) pid: Option<u32>,
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) renewed_ms: Option<u64>,
    pub(crate) renewal: Renewal,
}

#[derive(Debug, Serialize)]
pub(crate) struct Waiter {
    #[serde(flatten)]
    pub(crate) view: WaiterView,
    /// How many claims end before it holds; absent where nobody is served in order.
    pub(crate) hand_overs: Option<usize>,
}

/// What a new claim's wait would be bounded by.
#[derive(Debug, Serialize)]
pub(crate) struct Wait {
    /// How many claims would end before it holds; absent where nobody is served in order.
    pub(crate) hand_overs: Option<usize>,
    /// When the last holder's claim ends if none renews any more; absent if that is not known, or nobody holds.
    pub(crate) if_holders_die_ms: Option<u64>,
    /// Whether nothing bounds it: a holder renews, or may.
    pub(crate) unbounded: bool,
}

/// What `break` would do.
#[derive(Debug, Serialize)]
pub(crate) struct Break {
    /// How many owners' claims it would end.
    pub(crate) ends: usize,
    /// How many waiters would then hold.
    pub(crate) grants: usize,
    /// Why it would be refused.
    pub(crate) refused: Option<&'static str>,
}

impl Report {
    pub(crate) fn of(seen: Seen, tenure: &Tenure) -> Self {
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
        Self { view, looked_ms: duration::ms(seen.looked), wait, break_, untold, in_order }
    }

    /// The holders' labels.
    pub(crate) fn labels(&self) -> impl Iterator<Item = String> {
        self.view.holders.iter().map(|holder| label::of_holder(&holder.view))
    }
}

fn holder(view: HolderView, renewal: Renewal) -> Holder {
    let place = view.label.as_deref().and_then(place::of).map(|(host, pid)| (host.to_owned(), pid));
    let ttl = view.expires_in.zip(view.renewed).map(|(left, renewed)| left + renewed);
    Holder {
        host: place.as_ref().map(|(host, _)| host.clone()),
        pid: place.map(|(_, pid)| pid),
        ttl_ms: ttl.map(duration::ms),
        renewed_ms: view.renewed.map(duration::ms),
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
        if_holders_die_ms: ends.and_then(|ends| ends.into_iter().max()).map(duration::ms),
        unbounded: !(view.is_free() || overdue && view.waiters.is_empty()),
    }
}

fn breaking(view: &NameView, store: &str, in_order: bool) -> Break {
    let refused = break_::refused(view, store);
    let granted = || if in_order { turns::next_together(view) } else { 0 };
    let ends = if refused.is_some() { 0 } else { view.holders.len() };
    Break { ends, grants: if ends > 0 { granted() } else { 0 }, refused }
}

fn untold(seen: &Seen, in_order: bool) -> Vec<&'static str> {
    let view = &seen.view;
    let any = |is: fn(&HolderView) -> bool| view.holders.iter().any(is);
    let facts = [
        (!in_order, "who waits, and in which order: claims ask again and again, and the store has no queue"),
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
