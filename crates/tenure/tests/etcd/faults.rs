//! Members that die, hang and cannot reach each other.

use std::time::Duration;

use tenure::ErrorKind;
use tenure_testkit::servers::{Etcd, Proxy};

use crate::support::{LONG, connect, soon, turn, until, until_waiting, waiting};

const TTL: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_costs_nobody_a_lock_or_a_place() {
    let etcd = Etcd::start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("x").ttl(TTL).acquire().await.unwrap();
    let (token, deadline) = (held.token(), held.deadline());
    let next = waiting(&b, "x", TTL);
    until_waiting(&a, "x", 1).await;
    let leader = etcd.leader();
    etcd.kill(leader);
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    soon("a release", held.release()).await.unwrap();
    let next = turn(next).await;
    assert!(next.token() > token);
    etcd.restart(leader);
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_costs_nobody_a_lock_or_a_place() {
    let etcd = Etcd::start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("x").ttl(TTL).acquire().await.unwrap();
    let deadline = held.deadline();
    let next = waiting(&b, "x", TTL);
    until_waiting(&a, "x", 1).await;
    let leader = etcd.leader();
    etcd.pause(leader);
    until("it is renewed", async || held.deadline() > deadline).await;
    soon("a release", held.release()).await.unwrap();
    let next = turn(next).await;
    etcd.resume(leader);
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_bound_to_the_leader_that_hangs_goes_to_another_member() {
    let etcd = Etcd::start();
    let leader = etcd.leader();
    // The first of the URL or not: whichever member it uses, that one hangs.
    let a = connect(&etcd.url()).await;
    let held = a.lock("x").ttl(TTL).acquire().await.unwrap();
    for member in 0..etcd.size() {
        let deadline = held.deadline();
        etcd.pause(member);
        until("it is renewed", async || held.deadline() > deadline).await;
        etcd.resume(member);
    }
    assert!(held.is_held(), "the leader was {leader}");
    soon("a release", held.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_granted_and_leases_are_lost_at_their_deadline() {
    let etcd = Etcd::start();
    let a = connect(&etcd.url()).await;
    let held = a.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let leader = etcd.leader();
    let others: Vec<usize> = (0..etcd.size()).filter(|member| *member != leader).collect();
    others.iter().for_each(|member| etcd.kill(*member));
    soon("the loss", held.lost()).await;
    assert!(!held.is_held());
    let refused = a.lock("y").acquire_within(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    others.iter().for_each(|member| etcd.start_again(*member));
    let again = soon("a grant", a.lock("x").ttl(TTL).acquire()).await.unwrap();
    assert!(again.token() > held.token());
    soon("a release", again.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_without_a_majority_goes_on_waiting_and_gets_its_turn() {
    let etcd = Etcd::start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let next = waiting(&b, "x", Duration::from_secs(3));
    until_waiting(&a, "x", 1).await;
    for member in 0..etcd.size() {
        etcd.kill(member);
    }
    soon("the loss", held.lost()).await;
    for member in 0..etcd.size() {
        etcd.start_again(member);
    }
    let next = turn(next).await;
    assert!(next.token() > held.token());
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_compacted_while_a_claim_waited_does_not_keep_it_waiting() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x", Duration::from_secs(6));
    until_waiting(&a, "x", 1).await;
    // More revisions than one, all compacted away.
    for number in 0..20 {
        etcd.etcdctl(&["put", "elsewhere", &number.to_string()]);
    }
    let told = etcd.etcdctl(&["get", "elsewhere", "-w", "json"]);
    let revision = told.split("\"revision\":").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    etcd.etcdctl(&["compact", revision]);
    held.release().await.unwrap();
    soon("a release", turn(next).await.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_hears_nothing_costs_a_delay_and_no_more() {
    let etcd = Etcd::builder().members(1).start();
    let proxy = Proxy::to(etcd.address(0)).await;
    let a = connect(&etcd.url()).await;
    let b = connect(&etcd.url_of([proxy.address()].into_iter(), "")).await;
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x", Duration::from_secs(9));
    until_waiting(&a, "x", 1).await;
    proxy.freeze();
    held.release().await.unwrap();
    // Its requests go unanswered too, so it opens another connection, which is as frozen; then the network heals.
    until("it tries again", async || proxy.connections() > 1).await;
    proxy.thaw();
    soon("a release", turn(next).await.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_never_come_leave_nothing_behind() {
    let etcd = Etcd::builder().members(1).start();
    let proxy = Proxy::to(etcd.address(0)).await;
    let a = connect(&etcd.url()).await;
    let b = connect(&etcd.url_of([proxy.address()].into_iter(), "")).await;
    // Connected, with a lease of its own.
    b.lock("warm").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    for number in 0..4 {
        let name = format!("x{number}");
        proxy.drop_replies(true);
        let failed = b.lock(&name).ttl(TTL).acquire_within(Duration::from_millis(300)).await.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::Unavailable, "{failed}");
        proxy.drop_replies(false);
        proxy.cut();
        until("it is cleaned up", async || a.inspect(&name).await.unwrap().is_free()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_the_doctor_tells_who_answers() {
    let etcd = Etcd::start();
    (1..etcd.size()).for_each(|member| etcd.kill(member));
    until("the last one has no leader", async || {
        let told = soon("a look", Box::pin(tenure::examine(etcd.url()))).await.unwrap();
        let quorum = told.findings.iter().any(|finding| finding.what.starts_with("no member answers for the cluster"));
        quorum && told.facts.iter().any(|(what, told)| what.starts_with("member") && told.contains("without a leader"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_of_different_clusters_are_told_and_never_mixed() {
    let (one, other) = (Etcd::builder().members(1).start(), Etcd::builder().members(1).start());
    let both = format!("{},{}", one.url(), other.url().trim_start_matches("etcd://"));
    let told = soon("a look", Box::pin(tenure::examine(&both))).await.unwrap();
    assert!(told.findings.iter().any(|finding| finding.what.contains("different clusters")), "{told:?}");
    let client = connect(&both).await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let first = if one.etcdctl(&["get", "--prefix", "--keys-only", "x"]).is_empty() { &other } else { &one };
    first.kill(0);
    let refused = client.lock("y").ttl(TTL).acquire_within(Duration::from_secs(1)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "the other cluster is another one: {refused}");
    first.start_again(0);
    soon("a release", held.release()).await.unwrap();
}
