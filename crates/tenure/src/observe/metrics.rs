//! Metrics, through the `metrics` facade: whoever installs a recorder sees them. The handles are made when a client
//! connects, so that nothing is looked up afterwards; without a recorder each is a branch. What happens with every
//! claim is counted first and told later (`tally`).

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, IntoF64, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use tokio::sync::Notify;

use super::groups::{ByGroup, Groups};
use super::recent::Ended;
use super::tally::{Counts, Due, Tally};
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
    Memo,
}

/// Of operations of a kind that are sent within this time of each other, one is measured: they travel together, and a
/// value costs a recorder some 50 ns, and the clock that is read for it 30 more, which is felt at 100,000 a second.
const MEASURED_EVERY: Duration = Duration::from_millis(1);

/// How often a value is told that changes meanwhile. With the next change it is told again.
const TOLD_MAX: usize = 16;

/// An operation that was sent, and will be told when it is answered.
#[derive(Debug)]
pub(crate) struct Trip {
    operation: Operation,
    sent: Moment,
}

/// The metrics of one client.
pub(crate) struct Metrics {
    due: Arc<Due>,
    by_group: ByGroup<OfGroup>,
    /// What all names begin with: no group of its own.
    prefix: Box<str>,
    handovers: [Counter; 2],
    renewals: [Counter; 4],
    margin: Histogram,
    up: Gauge,
    roundtrip: [Histogram; 7],
    /// When the latest operation of each kind was sent that is measured, in microseconds.
    measured: [AtomicU64; 7],
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
    /// None where nobody records.
    tally: Option<Tally>,
    due: Arc<Due>,
}

impl Metrics {
    pub(super) fn new(store: &str, groups: Groups, prefix: &str, bell: Arc<Notify>) -> Self {
        describe();
        let store: Arc<str> = store.into();
        let label = |key, value: &'static str| vec![Label::new("store", store.clone()), Label::new(key, value)];
        let only = || vec![Label::new("store", store.clone())];
        let due = Arc::new(Due::new(bell));
        let of_group = (store.clone(), due.clone());
        let metrics = Self {
            due,
            by_group: ByGroup::new(groups, move |group| OfGroup::new(&of_group.0, group, of_group.1.clone())),
            prefix: prefix.into(),
            handovers: ["local", "store"].map(|kind| counter!("tenure_handovers_total", label("kind", kind))),
            renewals: ["renewed", "failed", "gone", "broken"]
                .map(|result| counter!("tenure_renewals_total", label("result", result))),
            margin: histogram!("tenure_renewal_margin_seconds", only()),
            up: gauge!("tenure_store_up", only()),
            roundtrip: ["claim", "renew", "release", "block", "inspect", "break", "memo"]
                .map(|op| histogram!("tenure_store_roundtrip_seconds", label("op", op))),
            measured: Default::default(),
        };
        metrics.up.set(1.0);
        metrics
    }

    /// Whether the recorder has not been told all.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_set()
    }

    /// Tells the recorder what was only counted until now.
    pub(crate) fn tell(&self) {
        if !self.due.take() {
            return;
        }
        let groups = self.by_group.all();
        let counts: Vec<Counts> =
            groups.iter().map(|group| group.tally.as_ref().map(Tally::take).unwrap_or_default()).collect();
        let waits = counts.iter().map(|counts| counts.waits.seen()).sum();
        let holds = counts.iter().map(|counts| counts.holds.seen()).sum();
        for (group, counts) in groups.iter().zip(counts) {
            group.tell(counts, waits, holds);
        }
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

    /// Whether the store answers has changed. Others may change it at the same time: it is told until nobody has.
    pub(crate) fn store_is(&self, up: &AtomicBool) {
        for _ in 0..TOLD_MAX {
            let told = up.load(Ordering::Acquire);
            self.up.set(if told { 1.0 } else { 0.0 });
            if up.load(Ordering::Acquire) == told {
                break;
            }
        }
    }

    /// An operation is sent. Whether it is measured is decided now: an answer that takes long must be as likely to be
    /// recorded as any other.
    pub(crate) fn sent(&self, operation: Operation, sent: Moment) -> Option<Trip> {
        let measured = &self.measured[operation as usize];
        let last = measured.load(Ordering::Relaxed);
        if last != 0 && sent.since(Moment(last)) < MEASURED_EVERY {
            return None;
        }
        // Two threads may both get here: then both are measured.
        measured.store(sent.as_micros(), Ordering::Relaxed);
        Some(Trip { operation, sent })
    }

    /// The store has answered just now.
    pub(crate) fn answered(&self, trip: Option<Trip>, clock: &dyn Clock) {
        if let Some(Trip { operation, sent }) = trip {
            self.roundtrip[operation as usize].record(Elapsed { since: sent, clock });
        }
    }
}

impl OfGroup {
    fn new(store: &Arc<str>, group: Option<&str>, due: Arc<Due>) -> Self {
        let labels = |more: Option<(&'static str, &'static str)>| {
            let mut labels = vec![Label::new("store", store.clone())];
            labels.extend(group.map(|group| Label::new("group", group.to_owned())));
            labels.extend(more.map(|(key, value)| Label::new(key, value)));
            labels
        };
        let label = |key, value| labels(Some((key, value)));
        let mut metrics = Self {
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
            tally: None,
            due,
        };
        if metrics.is_recorded() {
            metrics.tally = Some(Tally::default());
        }
        metrics
    }

    /// Whether anybody records what a tally is kept of. Counters do not tell.
    fn is_recorded(&self) -> bool {
        let asked = Cell::new(false);
        self.held.increment(Zero(&asked));
        self.waiting.increment(Zero(&asked));
        // None are recorded: that would be a value.
        for histogram in self.wait.iter().chain([&self.hold]) {
            histogram.record_many(Zero(&asked), 0);
        }
        asked.get()
    }

    /// Somebody begins to acquire.
    pub(super) fn wished(&self) {
        if let Some(tally) = &self.tally {
            tally.wished();
            self.due.set();
        }
    }

    /// Nobody asks any more for what waits on.
    pub(super) fn put_off(&self) {
        self.waiting.decrement(1.0);
    }

    /// An acquire has come to its end, and was not granted.
    pub(super) fn not_granted(&self, ended: &Ended) {
        let result = match ended {
            Ended::Busy => 1,
            Ended::TimedOut => 2,
            Ended::Unreachable => 3,
            Ended::Deadlock => 5,
            Ended::Cancelled => 6,
            _ => 4,
        };
        self.ended(result, None);
    }

    pub(super) fn granted(&self, waited: Duration, contended: bool) {
        self.ended(0, Some((waited, contended)));
    }

    fn ended(&self, result: usize, wait: Option<(Duration, bool)>) {
        let Some(tally) = &self.tally else { return self.acquired[result].increment(1) };
        tally.ended(result, wait);
        self.due.set();
    }

    /// A guard is gone.
    pub(super) fn held(&self, held: Duration) {
        let Some(tally) = &self.tally else { return };
        tally.gone(held);
        self.due.set();
    }

    /// Tells the recorder. What others tell at the same time adds up, in any order. There were so many waits and
    /// holds in all groups.
    fn tell(&self, counts: Counts, waits: u64, holds: u64) {
        self.waiting.increment(counts.waiting());
        self.held.increment(counts.held());
        for (counter, count) in self.acquired.iter().zip(counts.results).filter(|(_, count)| *count > 0) {
            counter.increment(count);
        }
        for ((waited, contended), count) in counts.waits.weighted(waits) {
            self.wait[usize::from(contended)].record_many(waited, count);
        }
        counts.holds.weighted(holds).for_each(|(held, count)| self.hold.record_many(held, count));
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

/// A stale operation was refused at this resource, which is counted by the first segment of its name.
#[cfg(any(feature = "fence-postgres", feature = "fence-redis", feature = "fence-sqlite"))]
pub(crate) fn fence_refused_at(resource: &str) {
    static LABELS: std::sync::LazyLock<ByGroup<String>> =
        std::sync::LazyLock::new(|| ByGroup::new(Groups::First, |group| group.unwrap_or_default().to_owned()));
    fence_refused(LABELS.of(resource).as_str().to_owned().into());
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

/// Nothing, and whether anybody asked for it.
struct Zero<'a>(&'a Cell<bool>);

impl IntoF64 for Zero<'_> {
    fn into_f64(self) -> f64 {
        self.0.set(true);
        0.0
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
    describe_histogram!(
        "tenure_store_roundtrip_seconds",
        Unit::Seconds,
        "Time until the store answers, by operation; of those sent within 1 ms one is measured"
    );
    describe_counter!("tenure_fence_refused_total", Unit::Count, "Operations refused because a newer holder was there");
    describe_counter!("tenure_held_too_long_total", Unit::Count, "Leases held for longer than warn_after");
}
