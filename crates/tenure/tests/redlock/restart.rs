//! Nodes that restart, with their data and without.

use std::time::Duration;

use tenure::{ErrorKind, Tenure, Token};
use tenure_testkit::servers::Redis;

use crate::support::{Nodes, Servers, TTL, connect, own, patiently, record, take, until};
use crate::workload::Workload;

const CLIENTS: usize = 3;
const SOME: usize = 15;

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_keep_their_data_may_restart_one_by_one_two_by_two_or_all_at_once() {
    let nodes = Nodes::durable();
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    let servers = nodes.nodes();
    for group in [&servers[..1], &servers[1..3], servers, servers] {
        group.iter().for_each(Redis::kill);
        group.iter().for_each(Redis::restart);
        workload.more(SOME).await;
    }
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_outlives_the_restart_of_all_nodes_with_their_data() {
    let nodes = Nodes::durable();
    let (holder, other) = (nodes.client().await, nodes.client().await);
    let held = take(&holder.lock("x").ttl(Duration::from_secs(20))).await;
    let token = held.token();
    nodes.nodes().iter().for_each(Redis::kill);
    nodes.nodes().iter().for_each(Redis::restart);
    until("the other is back", async || match other.lock("x").try_acquire().await {
        Ok(None) => true,
        Ok(Some(guard)) => panic!("two hold it: {guard:?}"),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
            false
        }
    })
    .await;
    assert!(held.is_held() && held.token() == token);
    patiently("the release", held.release()).await.unwrap();
    let next = take(&other.lock("x").ttl(TTL)).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    // Nodes that were not back yet are told when they are, as long as the client lives.
    nodes.no_keys_left().await;
}

/// One node loses its data, in one way or another, while all work goes on; when it takes part again it knows enough.
async fn one_forgets(forget: impl Fn(&Redis)) {
    let nodes = Nodes::start();
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    let (node, client) = (&nodes.nodes()[0], workload.clients[0].clone());
    let longest = 2 * TTL;
    take(&client.lock("long").ttl(longest)).await.release().await.unwrap();
    until("the node knows of it", async || own(node, "ttl") == longest.as_millis().to_string()).await;
    let idle = take(&client.lock("idle").ttl(TTL)).await;
    let token = idle.token().unwrap();
    idle.release().await.unwrap();

    let before = client.clock().now();
    forget(node);
    until("its clients have found out", async || !own(node, "blank").is_empty()).await;
    workload.more(SOME).await;
    let voted = !record(node, "resource").is_empty();
    // In this order: one that takes part now has done nothing before.
    assert!(!voted || !own(node, "node").is_empty(), "a node without data has voted");
    until("it takes part again", async || !own(node, "node").is_empty()).await;
    let waited = client.clock().now().since(before);
    assert!(waited >= longest, "it takes part after {waited:?}: a claim that it helped to grant may still be trusted");
    let floor: u64 = own(node, "floor").parse().unwrap();
    assert!(Token(floor) >= token, "its floor is {floor}, below {token}");
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_restarts_without_data_waits_before_it_votes() {
    one_forgets(Redis::restart).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_flushed_waits_before_it_votes() {
    one_forgets(|node| assert_eq!(node.cli(&["flushall"]), "OK")).await;
}

/// A token of a client that connects now, and one of a client that was there before.
async fn next_tokens(nodes: &Nodes<impl Servers>, known: &Tenure, name: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let new = connect(&nodes.patient_url()).await;
    for client in [&new, known] {
        let mut guard = None;
        until("a grant", async || {
            guard = client.lock(name).ttl(TTL).try_acquire().await.ok().flatten();
            guard.is_some()
        })
        .await;
        let guard = guard.unwrap();
        tokens.extend(guard.token());
        guard.release().await.unwrap();
    }
    tokens
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_all_lose_everything_are_a_new_fleet_whose_tokens_grow_as_clocks_do() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let mut last = Token(0);
    let forgets: [fn(&Redis); 2] = [Redis::restart, |node| drop(node.cli(&["flushall"]))];
    for forget in forgets {
        let held = take(&client.lock("x").ttl(TTL)).await;
        last = last.max(held.token().unwrap());
        nodes.nodes().iter().for_each(forget);
        patiently("the loss", held.lost()).await;
        drop(held);
        for token in next_tokens(&nodes, &client, "x").await {
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        nodes.all_take_part(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_forgets_is_a_quorum_lost_and_not_a_new_fleet() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let held = take(&client.lock("x").ttl(TTL)).await;
    nodes.nodes()[..3].iter().for_each(Redis::restart);
    let refused = async || match client.lock("y").ttl(TTL).try_acquire().await {
        Err(error) => error.to_string().matches("has lost its data").count() == 3,
        Ok(_) => false,
    };
    until("all three are known to have lost it", refused).await;
    patiently("the loss", held.lost()).await;
    // Two members are too few to know what the others knew: they stay out, however long it lasts.
    for _ in 0..20 {
        let error = patiently("an answer", client.lock("y").ttl(TTL).try_acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
        tokio::time::sleep(TTL / 10).await;
    }
    assert!(nodes.nodes()[..3].iter().all(|node| own(node, "node").is_empty()));
}
