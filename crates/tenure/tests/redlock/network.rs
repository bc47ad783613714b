//! Packets that are lost, in a network of the test's own.

use tenure_testkit::servers::{Fleet, OwnNetwork, Proxy, in_own_network_async};

use crate::support::{Nodes, until};
use crate::workload::Workload;

const CLIENTS: usize = 3;
const SOME: usize = 15;

/// Clients go through ports that the test does not use itself.
async fn with_two_ports_at_fault(network: &OwnNetwork, fault: impl Fn(u16)) {
    let nodes = Nodes(Fleet::proxied(5).await);
    let workload = Workload::begin(&nodes.patient_url(), CLIENTS).await;
    workload.more(SOME).await;
    for proxy in &nodes.proxies()[..2] {
        fault(proxy.port());
        workload.more(SOME).await;
        assert!(network.hits(proxy.port()) > 0, "the fault hits nothing");
    }
    network.heal();
    workload.more(SOME).await;
    let history = workload.end().await.excludes();
    // Where only one side heard that a connection had ended, the other keeps its half for ever.
    nodes.proxies()[..2].iter().for_each(Proxy::cut);
    nodes.all_take_part(&history.clients[0]).await;
}

#[test]
fn requests_arrive_and_replies_are_lost() {
    in_own_network_async(async |network| {
        with_two_ports_at_fault(network, |port| network.drop_replies(port)).await;
    });
}

#[test]
fn whatever_is_sent_is_lost() {
    in_own_network_async(async |network| {
        with_two_ports_at_fault(network, |port| network.drop_requests(port)).await;
    });
}

#[test]
fn whoever_sends_is_reset() {
    in_own_network_async(async |network| {
        with_two_ports_at_fault(network, |port| network.reset(port)).await;
    });
}

#[test]
fn a_third_of_the_packets_is_lost_on_the_way_to_two_nodes() {
    in_own_network_async(async |network| {
        with_two_ports_at_fault(network, |port| network.lose(port, 30)).await;
    });
}

#[test]
fn a_tenth_of_the_packets_is_lost_on_the_way_to_every_node() {
    in_own_network_async(async |network| {
        let nodes = Nodes(Fleet::proxied(5).await);
        let workload = Workload::begin(&nodes.0.url_with("node_timeout=1s"), CLIENTS).await;
        workload.more(SOME).await;
        for proxy in nodes.proxies() {
            network.lose(proxy.port(), 10);
        }
        until("packets to every node are lost", async || {
            workload.more(1).await;
            nodes.proxies().iter().all(|proxy| network.hits(proxy.port()) > 0)
        })
        .await;
        network.heal();
        workload.more(SOME).await;
        let history = workload.end().await.excludes();
        nodes.all_take_part(&history.clients[0]).await;
    });
}
