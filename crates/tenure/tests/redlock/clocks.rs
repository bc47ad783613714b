//! One node's clock is wrong, or steps. That node may end a claim early or late, so leases may overlap for once;
//! tokens grow all the same, and the fence keeps the resource whole.

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
