//! One node's clock is wrong, or steps. That node may end a claim early or late, so leases may overlap for once;
//! tokens grow all the same, and the fence keeps the resource whole.

use std::sync::Arc;

use tenure::Tenure;
use tenure::backends::redlock::RedlockBackend;
use tenure::clock::{Clock, Moment, SystemClock, Timer};
use tenure_testkit::servers::{Fleet, Redis};

use crate::support::{KEPT, Nodes, TTL, answered, take, until};
use crate::workload::Workload;

const CLIENTS: usize = 3;
const SOME: usize = 15;

fn with_clocks() -> Nodes<Fleet> {
    Nodes(Fleet::builder(5).each(tenure_testkit::servers::Builder::shifted_clock).start())
}

/// How many keys have run out on this node.
fn expired(node: &Redis) -> u64 {
    let stats = node.cli(&["info", "stats"]);
    let count = stats.lines().find_map(|line| line.trim_end().strip_prefix("expired_keys:"));
    count.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_wrong_before_does_not_count() {
    for seconds in [60, -60] {
        let nodes = with_clocks();
        nodes.nodes()[0].shift_clock(seconds);
        let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
        workload.more(SOME).await;
        // Four nodes are left: one more may go.
        nodes.nodes()[1].pause();
        workload.more(SOME).await;
        nodes.nodes()[1].resume();
        let history = workload.end().await.excludes();
        nodes.nodes()[0].shift_clock(0);
        nodes.all_take_part(&history.clients[0]).await;
        // What a clock that was ahead has written ends when it has caught up.
        nodes.nodes()[0].shift_clock(120);
    }
}

/// A client's clock whose wall time is an hour behind.
#[derive(Debug)]
struct Slow(SystemClock);

impl Clock for Slow {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn wall_micros(&self) -> u64 {
        self.0.wall_micros() - 3_600_000_000
    }

    fn timer(&self) -> Box<dyn Timer> {
        self.0.timer()
    }
}

/// Tokens are what the nodes' clocks say, not the client's: one whose clock is behind proposes no old ones.
#[tokio::test(flavor = "multi_thread")]
async fn a_contender_whose_own_clock_is_slow_proposes_the_nodes_time() {
    /// How late a clock may be read, and more, in microseconds.
    const LATE: u64 = 5_000_000;
    let nodes = Nodes(Fleet::start(5));
    let first = nodes.client().await;
    let floor = || nodes.nodes()[0].cli(&["hget", "tenure:redlock", "floor"]).parse::<u64>().unwrap();
    let begun = floor();
    // As if the fleet had begun earlier: a token that is merely above what the nodes have would show.
    for node in nodes.nodes() {
        node.cli(&["hset", "tenure:redlock", "floor", &(begun - 2 * LATE).to_string()]);
    }
    assert_eq!(floor(), begun - 2 * LATE);
    let clock = Arc::new(Slow(SystemClock));
    let backend = RedlockBackend::open(&nodes.patient_url(), clock.clone()).await.unwrap();
    let slow = Tenure::over(Arc::new(backend), clock, "slow");
    let held = take(&slow.lock("x").ttl(KEPT)).await;
    assert!(held.token().unwrap().0 > begun - LATE, "{:?}, and the fleet began at {begun}", held.token());
    held.release().await.unwrap();
    drop(first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_may_step_at_any_time() {
    let nodes = with_clocks();
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    for seconds in [60, 0, -60, 0, 60, -60, 0] {
        nodes.nodes()[2].shift_clock(seconds);
        workload.more(SOME).await;
    }
    let history = workload.end().await;
    println!("{} leases overlapped", history.overlaps());
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_the_step_of_one_clock() {
    let nodes = with_clocks();
    let (holder, other) = (nodes.client().await, nodes.client().await);
    for seconds in [60, 0, -60, 0] {
        let held = take(&holder.lock("x").ttl(KEPT)).await;
        if seconds == 60 {
            until("all have it", async || nodes.records("x").iter().all(|record| !record.is_empty())).await;
        }
        let (before, ended) = (held.deadline(), expired(&nodes.nodes()[4]));
        nodes.nodes()[4].shift_clock(seconds);
        if seconds == 60 {
            // A renewal may have put it back by now.
            until("the step ends the claim there", async || expired(&nodes.nodes()[4]) > ended).await;
        }
        // Two renewals: one may have been under way.
        for _ in 0..2 {
            let now = held.deadline();
            until("a renewal", async || {
                assert!(held.is_held(), "{:?}", held.renewal_failure());
                held.deadline() > now
            })
            .await;
        }
        assert!(held.deadline() > before);
        assert!(answered("an answer", async || other.lock("x").ttl(KEPT).try_acquire().await).await.is_none());
        held.release().await.unwrap();
    }
    // A token from a clock that is ahead would be above those that come now.
    let held = take(&other.lock("x").ttl(TTL)).await;
    let server = nodes.nodes()[0].cli(&["time"]);
    let now: u64 = server.lines().next().unwrap().parse().unwrap();
    assert!(held.token().unwrap().get() < (now + 10) * 1_000_000, "{:?} at {now}", held.token());
    held.release().await.unwrap();
    nodes.all_take_part(&holder).await;
}
