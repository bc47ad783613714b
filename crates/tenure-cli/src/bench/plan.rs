//! What is measured, and for how long.

use tenure::Owner;
use tenure_load::order::{Hot, Leases, Order, Pairs, Target};

use crate::args::Bench;
use crate::failure::Failure;
use crate::store::Store;

const SECONDS: f64 = 5.0;
const SECONDS_QUICK: f64 = 1.0;
const TTL_MS: u64 = 10_000;
/// The watchdog renews every third of the ttl.
const RENEWAL_S: f64 = TTL_MS as f64 / 3000.0;
/// Of what is measured, before pairs are counted.
const WARM_UP: f64 = 0.2;
/// Before the hot name.
const WARM_UP_PAIRS: usize = 200;
const NAMES: usize = 10;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) tasks: Vec<usize>,
    pub(super) processes: Vec<usize>,
    /// Several were asked for, but no other process can see the store.
    pub(super) lacks_processes: bool,
    pub(super) leases: Vec<usize>,
    pub(super) seconds: f64,
    target: Target,
    prefix: String,
}

impl Plan {
    pub(super) fn new(args: Bench, store: &Store) -> Result<Self, Failure> {
        let chosen = |list: Vec<usize>| list.into_iter().filter(|number| *number > 0).collect::<Vec<_>>();
        let (tasks, processes, leases) = (chosen(args.tasks), chosen(args.processes), chosen(args.leases));
        if tasks.is_empty() && processes.is_empty() && leases.is_empty() {
            return Err(Failure::usage("nothing is left to measure: --tasks, --processes and --leases are all 0"));
        }
        let url = store.url().to_owned();
        let target = Target { peer: "tenure".to_owned(), store: "url".to_owned(), urls: vec![url], ttl_ms: TTL_MS };
        let mut random = Owner::random().to_string();
        random.truncate(12);
        Ok(Self {
            lacks_processes: store.is_alone() && !processes.is_empty(),
            processes: if store.is_alone() { Vec::new() } else { processes },
            tasks,
            leases,
            seconds: args.seconds.unwrap_or(if args.quick { SECONDS_QUICK } else { SECONDS }),
            target,
            prefix: format!("tenure-bench-{random}/"),
        })
    }

    /// What every name begins with.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// How many measurements there are.
    pub(super) fn steps(&self) -> usize {
        self.tasks.len() + self.processes.len() + self.leases.len()
    }

    pub(super) fn pairs(&self, tasks: usize) -> Order {
        Order::Pairs(Pairs {
            target: self.target.clone(),
            tasks,
            names: NAMES,
            prefix: format!("{}pairs", self.prefix),
            warmup_s: self.seconds * WARM_UP,
            seconds: self.seconds,
        })
    }

    /// The name is another each time: nobody is to find what the measurement before has left in the store for it.
    pub(super) fn hot(&self, measurement: usize) -> Order {
        Order::Hot(Hot {
            target: self.target.clone(),
            tasks: 1,
            name: format!("{}hot/{measurement}", self.prefix),
            prefix: format!("{}own", self.prefix),
            warmup_pairs: WARM_UP_PAIRS,
            seconds: self.seconds,
        })
    }

    /// For as long as all leases are renewed once, twice, ...: part of a round would be more or less than its share.
    pub(super) fn held(&self, leases: usize) -> Order {
        Order::Leases(Leases {
            target: self.target.clone(),
            leases,
            prefix: format!("{}leases", self.prefix),
            seconds: (self.seconds / RENEWAL_S).ceil() * RENEWAL_S,
        })
    }
}
