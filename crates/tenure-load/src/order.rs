//! What a contestant is told, and what it answers: one JSON object each. `bench/README.md` is the text of this
//! protocol.

use serde::{Deserialize, Serialize};

/// The one argument of a contestant.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Order {
    /// Say which locks there are.
    List,
    /// Acquire and release what nobody else wants.
    Pairs(Pairs),
    /// Acquire and release what everybody wants.
    Hot(Hot),
    /// Acquire and keep until killed.
    Hold(One),
    /// Acquire once.
    Take(One),
    /// Hold many.
    Leases(Leases),
    /// Hold many, and lose them all.
    Outage(Outage),
}

impl Order {
    /// Which lock on which store; `None` for [`Order::List`].
    pub fn target(&self) -> Option<&Target> {
        match self {
            Self::List => None,
            Self::Pairs(pairs) => Some(&pairs.target),
            Self::Hot(hot) => Some(&hot.target),
            Self::Hold(one) | Self::Take(one) => Some(&one.target),
            Self::Leases(leases) => Some(&leases.target),
            Self::Outage(outage) => Some(&outage.target),
        }
    }
}

/// Which lock on which store.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Target {
    /// The name of a [`Listing`].
    pub peer: String,
    /// The kind of store.
    pub store: String,
    /// Where it is: one server, or each of a fleet.
    pub urls: Vec<String>,
    /// The lease to ask for.
    pub ttl_ms: u64,
}

/// Uncontended pairs.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Pairs {
    /// Which lock on which store.
    #[serde(flatten)]
    pub target: Target,
    /// How many tasks.
    pub tasks: usize,
    /// How many names each task has.
    pub names: usize,
    /// What all names begin with.
    pub prefix: String,
    /// How long to go on before counting.
    pub warmup_s: f64,
    /// How long to count.
    pub seconds: f64,
}

/// One name that all want.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Hot {
    /// Which lock on which store.
    #[serde(flatten)]
    pub target: Target,
    /// How many tasks.
    pub tasks: usize,
    /// What all want.
    pub name: String,
    /// What names of one's own begin with.
    pub prefix: String,
    /// How many pairs on a name of one's own come first.
    pub warmup_pairs: usize,
    /// How long to go on.
    pub seconds: f64,
}

/// One name, once.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct One {
    /// Which lock on which store.
    #[serde(flatten)]
    pub target: Target,
    /// What to acquire.
    pub name: String,
}

/// Many leases.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Leases {
    /// Which lock on which store.
    #[serde(flatten)]
    pub target: Target,
    /// How many.
    pub leases: usize,
    /// What all names begin with.
    pub prefix: String,
    /// How long to measure, once all are held.
    pub seconds: f64,
}

/// Many leases that are lost together.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Outage {
    /// Which lock on which store.
    #[serde(flatten)]
    pub target: Target,
    /// How many.
    pub leases: usize,
    /// How many of them have a task that waits for the loss.
    pub watched: usize,
    /// What all names begin with.
    pub prefix: String,
}

/// A lock that a contestant has.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Listing {
    /// What orders call it.
    pub peer: String,
    /// The kind of store.
    pub store: String,
    /// Where the library comes from.
    pub library: String,
    /// Its version.
    pub version: String,
    /// What differs from its defaults, and the defaults that matter.
    pub settings: String,
    /// Whether it renews by itself what is held.
    pub renews: bool,
}

/// What [`Order::Pairs`] came to. Times are of a whole pair.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct PairsResult {
    /// How many ended after the warm-up and before the end.
    pub pairs: u64,
    /// How many ended at all, those of the warm-up among them: what the store has done.
    pub all: u64,
    /// How long was counted.
    pub seconds: f64,
    /// The median; null if there was no pair.
    pub p50_us: Option<f64>,
    /// What 99 of 100 did not exceed.
    pub p99_us: Option<f64>,
    /// The longest.
    pub max_us: Option<f64>,
    /// User and system time of the process in the counted time.
    pub cpu_s: f64,
}

/// What [`Order::Hot`] came to.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq)]
pub struct HotResult {
    /// Every acquisition, however many there are: when (µs since the start time), after how long a wait (µs), by
    /// which task.
    pub turns: Vec<(u64, u64, usize)>,
    /// The waits under way at the end: of which task, how long by then (µs).
    pub waiting: Vec<(usize, u64)>,
    /// User and system time of the process from the start time to the end.
    pub cpu_s: f64,
}

/// What [`Order::Take`] came to.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct TakeResult {
    /// When it was acquired, in microseconds since the Unix epoch.
    pub got_us: u64,
}

/// What [`Order::Leases`] came to.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct LeasesResult {
    /// How many were taken.
    pub leases: usize,
    /// CPU of the process, in percent of one core.
    pub cpu_percent: f64,
    /// Growth of its resident memory since before the first lease, for each.
    pub bytes_per_lease: f64,
    /// How many were still held at the end.
    pub held: usize,
}

/// What [`Order::Outage`] came to. A lateness below zero is a loss that was told before the lease's deadline.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct OutageResult {
    /// How many were taken.
    pub leases: usize,
    /// How many losses were waited for.
    pub watched: usize,
    /// How many of these were told after the deadline.
    pub late: usize,
    /// How much later than the deadline the task ran that waited for the loss: the median.
    pub late_p50_ms: f64,
    /// What 99 of 100 did not exceed.
    pub late_p99_ms: f64,
    /// The latest.
    pub late_max_ms: f64,
    /// How long the process waited for a processor that others had, from shortly before the first deadline until the
    /// last loss was told: more than that it cannot be late by others' fault.
    pub cpu_wait_ms: f64,
    /// User and system time of the process from the outage until the last loss was told.
    pub cpu_s: f64,
    /// The same until a ttl and a second later: what the client still tries has ended by then.
    pub cpu_calm_s: f64,
    /// How many said at the end that they are held.
    pub held: usize,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with_target(mut order: Value) -> Value {
        let target = json!({ "peer": "p", "store": "redis", "urls": ["redis://127.0.0.1:1"], "ttl_ms": 10000 });
        order.as_object_mut().unwrap().extend(target.as_object().unwrap().clone());
        order
    }

    #[test]
    fn orders_are_written_as_the_protocol_has_them() {
        for order in [
            with_target(
                json!({ "do": "pairs", "tasks": 16, "names": 100, "prefix": "b", "warmup_s": 1.0, "seconds": 5.0 }),
            ),
            with_target(
                json!({ "do": "hot", "tasks": 1, "name": "b/hot", "prefix": "b", "warmup_pairs": 200, "seconds": 5.0 }),
            ),
            with_target(json!({ "do": "hold", "name": "b/x" })),
            with_target(json!({ "do": "take", "name": "b/x" })),
            with_target(json!({ "do": "leases", "leases": 1000, "prefix": "b", "seconds": 10.0 })),
            with_target(json!({ "do": "outage", "leases": 1000, "watched": 100, "prefix": "b" })),
            json!({ "do": "list" }),
        ] {
            let read: Order = serde_json::from_str(&order.to_string()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), order);
        }
    }

    #[test]
    fn whole_seconds_are_seconds_too() {
        let order = with_target(json!({ "do": "leases", "leases": 1, "prefix": "b", "seconds": 10 }));
        let Ok(Order::Leases(leases)) = serde_json::from_value(order) else { panic!("no leases") };
        assert_eq!(leases.seconds, 10.0);
    }

    #[test]
    fn turns_are_lists_of_numbers() {
        let result = HotResult { turns: vec![(7, 5, 0)], waiting: vec![(1, 9)], cpu_s: 0.5 };
        let written = serde_json::to_value(result).unwrap();
        assert_eq!(written, json!({ "turns": [[7, 5, 0]], "waiting": [[1, 9]], "cpu_s": 0.5 }));
    }
}
