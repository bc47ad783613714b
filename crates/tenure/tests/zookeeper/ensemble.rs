//! Servers that die, hang and come back.

use std::time::Duration;

use tenure::ErrorKind;
use tenure_testkit::servers::{Zookeeper, shared};

use crate::support::{LONG, connect, soon, until, until_waiting, waiting};

const TTL: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_costs_nobody_a_lock_or_a_place() {
    let servers = Zookeeper::start();
    let url = servers.url();
    let (a, b) = (connect(&url).await, connect(&url).await);
    let held = a.lock("x").ttl(TTL).acquire().await.unwrap();
    let token = held.token();
    let next = waiting(&b, "x", TTL);
    until_waiting(&a, "x", 1).await;
    let leader = servers.leader().unwrap();
    servers.kill(leader);
    let deadline = held.deadline();
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    soon("a release", held.release()).await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    servers.restart(leader);
    assert!(next.is_held());
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hangs_costs_nobody_a_lock_or_a_place() {
    let servers = Zookeeper::start();
    let url = servers.url();
    let (a, b) = (connect(&url).await, connect(&url).await);
    let held = a.lock("x").ttl(TTL).acquire().await.unwrap();
    let token = held.token();
    let next = waiting(&b, "x", TTL);
    until_waiting(&a, "x", 1).await;
    let leader = servers.leader().unwrap();
    servers.pause(leader);
    let deadline = held.deadline();
    until("it is renewed", async || held.deadline() > deadline).await;
    assert!(held.is_held() && held.token() == token);
    soon("a release", held.release()).await.unwrap();
    let next = soon("the waiter's turn", next).await.unwrap().unwrap();
    assert!(next.token() > token);
    servers.resume(leader);
    servers.wait_until_up(leader);
    assert!(next.is_held());
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_is_granted_and_a_lease_is_lost_at_its_deadline() {
    let servers = Zookeeper::start();
    let url = servers.url();
    let a = connect(&url).await;
    let ttl = Duration::from_secs(4);
    let held = a.lock("x").ttl(ttl).acquire().await.unwrap();
    for member in [0, 1] {
        servers.kill(member);
    }
    let refused = soon("an answer", a.lock("y").ttl(ttl).acquire_within(Duration::from_secs(2))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    soon("the loss", held.lost()).await;
    assert!(!held.is_held());
    for member in [0, 1] {
        servers.begin(member);
    }
    for member in 0..3 {
        servers.wait_until_up(member);
    }
    let again = soon("a grant", a.lock("x").ttl(ttl).acquire()).await.unwrap();
    assert!(again.token() > held.token());
    soon("a release", again.release()).await.unwrap();
    let other = soon("a grant", a.lock("y").ttl(ttl).acquire()).await.unwrap();
    soon("a release", other.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_tells_who_leads_and_who_is_away() {
    let tenure = connect(&shared::zookeeper().url()).await;
    let checkup = tenure.doctor().await.unwrap();
    let facts = format!("{:?}", checkup.facts);
    for told in
        ["leader, version", "follower, version", "a write takes", "200ms to 130s", "\"tick\", \"100ms\"", "znodes"]
    {
        assert!(facts.contains(told), "{told} is not in {facts}");
    }
    // How fast it is, is the machine's.
    let slow = |what: &str| what.starts_with("a write takes");
    assert!(checkup.findings.iter().all(|found| slow(&found.what)), "{:?}", checkup.findings);

    let servers = Zookeeper::builder().config("4lw.commands.whitelist", "ruok").start();
    let follower = (0..3).find(|member| servers.word(*member, "ruok").is_ok()).unwrap();
    servers.kill(follower);
    let url = format!("{}?tick=100ms", servers.url());
    let checkup = soon("a checkup", connect(&url).await.doctor()).await.unwrap();
    let findings: Vec<String> = checkup.findings.iter().map(|finding| finding.what.clone()).collect();
    assert!(findings.iter().any(|found| found.contains("1 of 3 servers do not answer")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_waiters_go_one_after_another() {
    let url = shared::zookeeper().url_below("/many");
    let clients = [connect(&url).await, connect(&url).await, connect(&url).await];
    let held = clients[0].lock("x").ttl(LONG).acquire().await.unwrap();
    let mut waits = Vec::new();
    for number in 0..30 {
        let ttl = LONG;
        let lock = clients[number % 3].lock("x").strict_fifo().ttl(ttl);
        waits.push(tokio::spawn(async move { lock.acquire().await }));
        until_waiting(&clients[0], "x", number + 1).await;
    }
    let mut token = held.token();
    soon("a release", held.release()).await.unwrap();
    for wait in waits {
        let guard = soon("its turn", wait).await.unwrap().unwrap();
        assert!(guard.token() > token);
        token = guard.token();
        soon("a release", guard.release()).await.unwrap();
    }
}
