//! A cluster: masters that go, and the same client that goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::{ErrorKind, Loss};
use tenure_testkit::servers::{Cluster, Redis, shared, wait_until};

use crate::failover::{
    LONG, Tokens, acquire, connect, copied, end, granted, grants_are_told, record, soon, until, until_waiting,
};

pub(crate) fn masters(cluster: &Cluster) -> Vec<&Redis> {
    let up = cluster.nodes().iter().filter(|node| node.answers());
    up.filter(|node| node.cli(&["role"]).starts_with("master")).collect()
}

pub(crate) fn another_master<'a>(cluster: &'a Cluster, than: &Redis) -> &'a Redis {
    masters(cluster).into_iter().find(|node| node.port() != than.port()).expect("another master")
}

/// A name of this master.
pub(crate) fn name_on(cluster: &Cluster, master: &Redis, prefix: &str) -> String {
    let names = (0..1000).map(|number| format!("{prefix}/{number}"));
    names.into_iter().find(|name| cluster.master_of(&record(name)).port() == master.port()).expect("a name")
}

/// Unless told so, every node refuses everything (CLUSTERDOWN) from when a master is known to be gone until its
/// replica has its place: nobody can renew anything then.
fn answer_though_slots_are_missing(cluster: &Cluster) {
    for node in cluster.nodes() {
        node.cli(&["config", "set", "cluster-require-full-coverage", "no"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_spread_over_all_masters_and_listed_together() {
    let cluster = shared::cluster();
    let a = connect(cluster.url()).await;
    let mut held = Vec::new();
    for number in 0..30 {
        held.push(a.lock(format!("spread/{number:02}")).ttl(LONG).acquire().await.unwrap());
    }
    let used: BTreeSet<u16> =
        held.iter().map(|guard| cluster.master_of(&record(guard.name().as_str())).port()).collect();
    assert_eq!(used.len(), 3);
    for guard in &held {
        let key = record(guard.name().as_str());
        assert_eq!(cluster.master_of(&key).cli(&["exists", &key]), "1");
    }
    let listed = a.list("spread/").await.unwrap();
    let names: Vec<String> = listed.iter().map(|view| view.name.to_string()).collect();
    let all: Vec<String> = (0..30).map(|number| format!("spread/{number:02}")).collect();
    assert_eq!(names, all, "all of them, in order, once");
    for guard in held {
        guard.release().await.unwrap();
    }
    assert!(a.list("spread/").await.unwrap().is_empty());
    end([a], &masters(cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grants_are_told_whichever_master_has_the_name() {
    // Its own: all scripts that a master runs are counted.
    let cluster = Cluster::start();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    for master in masters(&cluster) {
        grants_are_told(&a, &b, &name_on(&cluster, master, "told"), master).await;
    }
    end([a, b], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_costs_no_lease_on_another() {
    let cluster = Cluster::start();
    answer_though_slots_are_missing(&cluster);
    let a = connect(cluster.url()).await;
    // Over before a replica has the place of a master that hangs.
    let ttl = Duration::from_secs(4);
    let hung = cluster.master_of(&record("x"));
    let mut held = Vec::new();
    for master in masters(&cluster).into_iter().filter(|master| master.port() != hung.port()) {
        held.push(a.lock(name_on(&cluster, master, "healthy")).ttl(ttl).acquire().await.unwrap());
    }
    let lost = a.lock(name_on(&cluster, hung, "hung")).ttl(ttl).acquire().await.unwrap();
    hung.pause();
    soon("the lease on it is lost", lost.lost()).await;
    for guard in &held {
        assert!(guard.is_held() && guard.remaining() > Duration::ZERO, "{guard:?}");
    }
    // And goes on to be: past the end of what was renewed before the master hung.
    tokio::time::timeout(ttl, held[0].lost()).await.expect_err("it is renewed");
    hung.resume();
    for guard in held {
        soon("a release", guard.release()).await.unwrap();
    }
    drop(lost);
    end([a], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_is_followed_by_its_replica() {
    let cluster = Cluster::hasty();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let mut tokens = Tokens::default();
    let old = cluster.master_of(&record("kept"));
    let replica = cluster.replica_of(old);
    let held = a.lock("kept").ttl(LONG).acquire().await.unwrap();
    let token = tokens.next(&held);
    let waiting = acquire(&b, "kept", LONG);
    until_waiting(&a, "kept", 1).await;
    wait_until("the replica has it all", || {
        // A replica answers with MOVED; what it has is seen by its own count.
        let count = |server: &Redis| server.cli(&["dbsize"]);
        count(old) == count(replica)
    });
    let deadline = held.deadline();
    old.kill();
    wait_until("the replica is the master", || replica.cli(&["role"]).starts_with("master"));
    until("the lease is renewed at once", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == Some(token));
    assert!(!waiting.is_finished(), "granted beside the holder");
    held.release().await.unwrap();
    let next = granted("the waiter's turn", waiting).await;
    tokens.next(&next);
    next.release().await.unwrap();
    grants_are_told(&a, &b, "kept", replica).await;
    let fresh = soon("a new name there", a.lock(name_on(&cluster, replica, "new")).ttl(LONG).acquire()).await.unwrap();
    fresh.release().await.unwrap();
    end([a, b], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_paused_is_followed_by_its_replica() {
    let cluster = Cluster::hasty();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let name = "kept";
    let old = cluster.master_of(&record(name));
    let replica = cluster.replica_of(old);
    let held = a.lock(name).ttl(LONG).acquire().await.unwrap();
    wait_until("the replica has it", || old.cli(&["dbsize"]) == replica.cli(&["dbsize"]));
    old.pause();
    wait_until("the replica is the master", || replica.cli(&["role"]).starts_with("master"));
    // A waiter comes while nobody has told the clients.
    let waiting = acquire(&b, name, LONG);
    until_waiting(&b, name, 1).await;
    held.release().await.unwrap();
    granted("the waiter's turn", waiting).await.release().await.unwrap();
    grants_are_told(&a, &b, name, replica).await;
    old.resume();
    cluster.wait_until_whole();
    end([a, b], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_no_replica_had_is_lost_at_once() {
    let cluster = Cluster::hasty();
    let (a, b) = (connect(cluster.url()).await, connect(cluster.url()).await);
    let mut tokens = Tokens::default();
    let old = cluster.master_of(&record("x"));
    let replica = cluster.replica_of(old);
    // Before: so that what is lost is the lease alone.
    let first = b.lock("x").ttl(LONG).acquire().await.unwrap();
    tokens.next(&first);
    first.release().await.unwrap();
    replica.pause();
    old.cli(&["client", "kill", "type", "replica"]);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    tokens.next(&held);
    let wary = b.lock(name_on(&cluster, old, "wary")).ttl(LONG).min_replicas(1);
    assert_eq!(soon("an answer", wary.acquire()).await.unwrap_err().kind(), ErrorKind::Replicas);
    drop(wary);
    old.kill();
    replica.resume();
    wait_until("the replica is the master", || replica.cli(&["role"]).starts_with("master"));
    assert_eq!(soon("it is reported lost", held.lost()).await, Loss::Gone);
    let next = soon("the next", b.lock("x").ttl(LONG).acquire()).await.unwrap();
    tokens.next(&next);
    next.release().await.unwrap();
    drop(held);
    until("the rest is released", async || a.live_claims() + b.live_claims() == 0).await;
    end([a, b], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_replicas_counts_the_replicas_of_the_names_own_master() {
    let cluster = Cluster::start();
    let a = connect(cluster.url()).await;
    let [lame, sound] = [0, 1].map(|number| name_on(&cluster, masters(&cluster)[number], "r"));
    let wary = |name: &str| a.lock(name).ttl(LONG).min_replicas(1);
    for name in [&lame, &sound] {
        copied(&wary(name)).await.release().await.unwrap();
    }
    let replica = cluster.replica_of(cluster.master_of(&record(&lame)));
    replica.pause();
    let refused = soon("an answer", wary(&lame).acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Replicas, "{refused}");
    copied(&wary(&sound)).await.release().await.unwrap();
    replica.resume();
    copied(&wary(&lame)).await.release().await.unwrap();
    end([a], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_without_a_master_are_out_of_reach_and_the_others_go_on() {
    let cluster = Cluster::hasty();
    answer_though_slots_are_missing(&cluster);
    let a = connect(cluster.url()).await;
    let [gone, there] = [0, 1].map(|number| name_on(&cluster, masters(&cluster)[number], "n"));
    let master = cluster.master_of(&record(&gone));
    cluster.replica_of(master).kill();
    master.kill();
    let out = soon("an answer", a.lock(&gone).try_acquire()).await.unwrap_err();
    assert_eq!(out.kind(), ErrorKind::Unavailable, "{out}");
    let alive: Vec<&Redis> = cluster.nodes().iter().filter(|node| node.answers()).collect();
    let failed = |node: &&Redis| node.cli(&["cluster", "nodes"]).matches("master,fail ").count() == 1;
    wait_until("the others know", || alive.iter().all(failed));
    for _ in 0..3 {
        let out = soon("an answer", a.lock(&gone).try_acquire()).await.unwrap_err();
        assert_eq!(out.kind(), ErrorKind::Unavailable, "{out}");
        soon("a grant elsewhere", a.lock(&there).ttl(LONG).acquire()).await.unwrap().release().await.unwrap();
    }
    let out = soon("an answer", a.lock(&gone).acquire_within(Duration::from_secs(1))).await.unwrap_err();
    assert_eq!(out.kind(), ErrorKind::Unavailable, "{out}");
    master.restart();
    wait_until("it is back", || !alive[0].cli(&["cluster", "nodes"]).contains("master,fail "));
    soon("a grant", a.lock(&gone).ttl(LONG).acquire()).await.unwrap().release().await.unwrap();
    end([a], &masters(&cluster)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_says_so_and_is_waited_for() {
    let cluster = Cluster::hasty();
    let a = connect(cluster.url()).await;
    let [gone, there] = [0, 1].map(|number| name_on(&cluster, masters(&cluster)[number], "n"));
    let master = cluster.master_of(&record(&gone));
    cluster.replica_of(master).kill();
    master.kill();
    let there_master = cluster.master_of(&record(&there));
    wait_until("the cluster is down", || there_master.cli(&["cluster", "info"]).contains("cluster_state:fail"));
    let down = soon("an answer", a.lock(&there).try_acquire()).await.unwrap_err();
    assert_eq!(down.kind(), ErrorKind::Unavailable, "{down}");
    assert!(down.to_string().contains("cluster is down"), "{down}");
    let waiting = acquire(&a, &there, LONG);
    master.restart();
    granted("it is up again", waiting).await.release().await.unwrap();
    end([a], &masters(&cluster)).await;
}
