//! Metrics, through the `metrics` facade: whoever installs a recorder sees them. The handles are made when a client
//! connects, so that nothing is looked up afterwards; without a recorder each is a branch.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, IntoF64, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::groups::{ByGroup, Groups};
use super::recent::Ended;
use crate::clock::{Clock, Moment};
use crate::error::Loss;
use crate::name::Name;

/// How a lease came to another holder.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandOver {
    /// Within the process.
    Local,
    /// By the store.
    Store,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewal {
    Renewed,
    Failed,
    Gone,
    Broken,
}

impl Renewal {
    pub(crate) const ALL: [Self; 4] = [Self::Renewed, Self::Failed, Self::Gone, Self::Broken];
}

/// What the store was asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation {
    Claim,
    Renew,
    Release,
    Block,
    Inspect,
    Break,
}

/// The metrics of one client.
pub(crate) struct Metrics {
    by_group: ByGroup<OfGroup>,
    /// What all names begin with: no group of its own.
    prefix: Box<str>,
    handovers: [Counter; 2],
    renewals: [Counter; 4],
    margin: Histogram,
    up: Gauge,
    roundtrip: [Histogram; 6],
}

/// Those that are told apart by the group of the name.
pub(crate) struct OfGroup {
    acquired: [Counter; 7],
    wait: [Histogram; 2],
    hold: Histogram,
    lost: [Counter; 5],
    held: Gauge,
    waiting: Gauge,
    held_too_long: Counter,
}

impl Metrics {
    pub(super) fn new(store: &str, groups: Groups, prefix: &str) -> Self {
        describe();
        let store: Arc<str> = store.into();
        let label = |key, value: &'static str| vec![Label::new("store", store.clone()), Label::new(key, value)];
        let only = || vec![Label::new("store", store.clone())];
        let of_group = store.clone();
        let metrics = Self {
            by_group: ByGroup::new(groups, move |group| OfGroup::new(&of_group, group)),
            prefix: prefix.into(),
            handovers: ["local", "store"].map(|kind| counter!("tenure_handovers_total", label("kind", kind))),
            renewals: ["renewed", "failed", "gone", "broken"]
                .map(|result| counter!("tenure_renewals_total", label("result", result))),
            margin: histogram!("tenure_renewal_margin_seconds", only()),
            up: gauge!("tenure_store_up", only()),
            roundtrip: ["claim", "renew", "release", "block", "inspect", "break"]
                .map(|op| histogram!("tenure_store_roundtrip_seconds", label("op", op))),
        };
        metrics.store_is(true);
        metrics
    }

    /// Those of a name.
    pub(crate) fn of(&self, name: &Name) -> Arc<OfGroup> {
        self.by_group.of(name.as_str().strip_prefix(&*self.prefix).unwrap_or_default())
    }

    pub(crate) fn handed_over(&self, by: HandOver) {
        self.handovers[by as usize].increment(1);
    }

    pub(crate) fn renewed(&self, outcome: Renewal, count: usize) {
        self.renewals[outcome as usize].increment(u64::try_from(count).unwrap_or(u64::MAX));
    }

    /// So much of a lease was left when its renewal was answered.
    pub(crate) fn margin(&self, left: Duration) {
        self.margin.record(left);
    }

    /// Whether the store answers.
    pub(crate) fn store_is(&self, up: bool) {
        self.up.set(if up { 1.0 } else { 0.0 });
    }

    /// The store has answered, just now, what it was asked then.
    pub(crate) fn answered(&self, operation: Operation, sent: Moment, clock: &dyn Clock) {
        self.roundtrip[operation as usize].record(Elapsed { since: sent, clock });
    }
}

impl OfGroup {
    fn new(store: &Arc<str>, group: Option<&str>) -> Self {
        let labels = |more: Option<(&'static str, &'static str)>| {
            let mut labels = vec![Label::new("store", store.clone())];
            labels.extend(group.map(|group| Label::new("group", group.to_owned())));
            labels.extend(more.map(|(key, value)| Label::new(key, value)));
            labels
        };
        let label = |key, value| labels(Some((key, value)));
        Self {
            acquired: ["granted", "busy", "timeout", "unreachable", "refused", "deadlock", "cancelled"]
                .map(|result| counter!("tenure_acquire_total", label("result", result))),
            wait: ["false", "true"]
                .map(|contended| histogram!("tenure_acquire_wait_seconds", label("contended", contended))),
            hold: histogram!("tenure_hold_seconds", labels(None)),
            lost: ["expired", "gone", "broken", "max_hold", "session"]
                .map(|reason| counter!("tenure_lost_total", label("reason", reason))),
            held: gauge!("tenure_held", labels(None)),
            waiting: gauge!("tenure_waiting", labels(None)),
            held_too_long: counter!("tenure_held_too_long_total", labels(None)),
        }
    }

    /// Somebody begins to acquire.
    pub(super) fn wished(&self) {
        self.waiting.increment(1.0);
    }

    /// An acquire has come to its end, and was not granted.
    pub(super) fn not_granted(&self, ended: &Ended) {
        self.waiting.decrement(1.0);
        let result = match ended {
            Ended::Busy => 1,
            Ended::TimedOut => 2,
            Ended::Unreachable => 3,
            Ended::Cancelled => 6,
            _ => 4,
        };
        self.acquired[result].increment(1);
    }

    pub(super) fn granted(&self, waited: Duration, contended: bool) {
        self.waiting.decrement(1.0);
        self.held.increment(1.0);
        self.acquired[0].increment(1);
        self.wait[usize::from(contended)].record(waited);
    }

    /// A guard is gone.
    pub(super) fn held(&self, held: Duration) {
        self.held.decrement(1.0);
        self.hold.record(held);
    }

    /// A lease was lost.
    pub(crate) fn lost(&self, loss: &Loss) {
        let reason = match loss {
            Loss::Expired => 0,
            // Acquired again elsewhere: to this guard it is gone.
            Loss::Gone | Loss::TakenOver => 1,
            Loss::Broken { .. } => 2,
            Loss::MaxHold => 3,
            Loss::SessionEnded => 4,
        };
        self.lost[reason].increment(1);
    }

    /// Held longer than `warn_after`.
    pub(crate) fn held_too_long(&self) {
        self.held_too_long.increment(1);
    }
}

/// A writer that came too late was refused at the resource.
pub(crate) fn fence_refused(resource: Cow<'static, str>) {
    counter!("tenure_fence_refused_total", "resource" => resource).increment(1);
}

/// The time since a moment. The clock is read only where somebody records it.
struct Elapsed<'a> {
    since: Moment,
    clock: &'a dyn Clock,
}

impl IntoF64 for Elapsed<'_> {
    fn into_f64(self) -> f64 {
        self.clock.now().since(self.since).as_secs_f64()
    }
}

fn describe() {
    describe_counter!("tenure_acquire_total", Unit::Count, "Acquires that have come to their end, by result");
    describe_histogram!("tenure_acquire_wait_seconds", Unit::Seconds, "Time from the wish to the grant");
    describe_histogram!("tenure_hold_seconds", Unit::Seconds, "Time from the grant until the guard is gone");
    describe_counter!("tenure_handovers_total", Unit::Count, "Leases that passed to one who waited");
    describe_counter!("tenure_lost_total", Unit::Count, "Leases lost while they were held, by reason");
    describe_counter!("tenure_renewals_total", Unit::Count, "Renewals, by result");
    describe_histogram!(
        "tenure_renewal_margin_seconds",
        Unit::Seconds,
        "What was left of a lease when its renewal was answered"
    );
    describe_gauge!("tenure_held", Unit::Count, "Guards that are out now");
    describe_gauge!("tenure_waiting", Unit::Count, "Acquires under way now");
    describe_gauge!("tenure_store_up", Unit::Count, "Whether the store answered last: 1 or 0");
    describe_histogram!("tenure_store_roundtrip_seconds", Unit::Seconds, "Time until the store answers, by operation");
    describe_counter!("tenure_fence_refused_total", Unit::Count, "Operations refused because a newer holder was there");
    describe_counter!("tenure_held_too_long_total", Unit::Count, "Leases held for longer than warn_after");
}
