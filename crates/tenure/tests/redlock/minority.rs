//! Fewer than half of the nodes are away: everything goes on as if they were there.

use std::time::Duration;

use crate::support::{LONG, Nodes, record, take, until};
use crate::workload::Workload;

const CLIENTS: usize = 4;
const SOME: usize = 15;

#[tokio::test(flavor = "multi_thread")]
async fn one_and_two_nodes_die_and_come_back() {
    let nodes = Nodes::durable();
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    for node in &nodes.nodes()[..2] {
        node.kill();
        workload.more(SOME).await;
    }
    for node in &nodes.nodes()[..2] {
        node.restart();
    }
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_and_two_nodes_hang_and_go_on() {
    let nodes = Nodes::start();
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    for node in &nodes.nodes()[3..] {
        node.pause();
        workload.more(SOME).await;
    }
    for node in &nodes.nodes()[3..] {
        node.resume();
    }
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_and_two_nodes_refuse_connections() {
    let nodes = Nodes::proxied().await;
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    for proxy in [&nodes.proxies()[0], &nodes.proxies()[2]] {
        proxy.refuse(true).await;
        proxy.cut();
        workload.more(SOME).await;
    }
    nodes.heal().await;
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_break_again_and_again() {
    let nodes = Nodes::proxied().await;
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    for turn in 0..10 {
        nodes.proxies()[turn % 5].cut();
        nodes.proxies()[(turn + 2) % 5].cut();
        workload.more(5).await;
    }
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_slow_nodes_slow_nobody_down() {
    let nodes = Nodes::proxied().await;
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    for proxy in &nodes.proxies()[1..3] {
        proxy.delay(Duration::from_millis(80));
    }
    workload.more(2 * SOME).await;
    nodes.heal().await;
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_is_dead_and_two_are_slow() {
    let nodes = Nodes::proxied().await;
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    nodes.proxies()[0].refuse(true).await;
    nodes.proxies()[0].cut();
    for proxy in &nodes.proxies()[3..] {
        proxy.delay(Duration::from_millis(80));
    }
    workload.more(SOME).await;
    nodes.heal().await;
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    nodes.all_take_part(&history.clients[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_missed_the_end_of_a_claim_are_told_when_they_are_back() {
    let nodes = Nodes::proxied().await;
    let client = nodes.client().await;
    let held = take(&client.lock("x").ttl(LONG)).await;
    until("all have it", async || nodes.records("x").iter().all(|record| !record.is_empty())).await;
    let (away, silent) = (&nodes.proxies()[3], &nodes.proxies()[4]);
    away.refuse(true).await;
    away.cut();
    silent.freeze();
    held.release().await.unwrap();
    assert!(!record(&nodes.nodes()[3], "x").is_empty() && !record(&nodes.nodes()[4], "x").is_empty());
    // What was on its way is lost.
    silent.cut();
    nodes.heal().await;
    nodes.no_keys_left().await;
}
