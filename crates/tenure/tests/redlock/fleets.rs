//! Servers that are named twice, or belong elsewhere.

use tenure::{ErrorKind, Tenure};
use tenure_testkit::servers::{Fleet, Redis};

use crate::support::{Nodes, PATIENT, TTL, own, patiently, record, take, until};

fn url(nodes: &[&Redis]) -> String {
    let addresses: Vec<String> = nodes.iter().map(|node| node.address()).collect();
    format!("redlock://{}?{PATIENT}", addresses.join(","))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_has_one_vote_however_often_it_is_named() {
    let nodes = Nodes(Fleet::start(3));
    let [a, b, c] = nodes.nodes() else { unreachable!() };
    let by_another_name = url(&[a, b, a]).replacen("127.0.0.1", "localhost", 1);
    for url in [url(&[a, b, a]), by_another_name.clone()] {
        let error = patiently("an answer", Tenure::connect(&url)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(&a.port().to_string()), "{error}");
    }
    // Also where all three take part already.
    patiently("a connection", Tenure::connect(url(&[a, b, c]))).await.unwrap();
    let error = patiently("an answer", Tenure::connect(&by_another_name)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_of_a_fleet_is_no_fleet() {
    let nodes = Nodes::start();
    drop(nodes.client().await);
    let some: Vec<&Redis> = nodes.nodes()[..3].iter().collect();
    let error = patiently("an answer", Tenure::connect(url(&some))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
    assert!(error.to_string().contains("fleet of 5 nodes, not of 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_of_another_fleet_do_not_vote() {
    let (ours, theirs) = (Nodes::start(), Nodes::start());
    drop((ours.client().await, theirs.client().await));
    let fleet_of = |node: &Redis| own(node, "fleet");
    assert_ne!(fleet_of(&ours.nodes()[0]), fleet_of(&theirs.nodes()[0]));
    let mixed: Vec<&Redis> = ours.nodes()[..3].iter().chain(&theirs.nodes()[3..]).collect();
    let client = patiently("a connection", Tenure::connect(url(&mixed))).await.unwrap();
    let held = take(&client.lock("x").ttl(TTL)).await;
    until("ours have it", async || ours.nodes()[..3].iter().all(|node| !record(node, "x").is_empty())).await;
    assert!(theirs.records("x").iter().all(String::is_empty), "{:?}", theirs.records("x"));
    held.release().await.unwrap();
    // One of ours is not enough any more.
    ours.nodes()[0].pause();
    let error = patiently("an answer", client.lock("x").ttl(TTL).try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
    assert!(error.to_string().contains("another fleet"), "{error}");
    ours.nodes()[0].resume();
    patiently("a free lock", client.lock("x").ttl(TTL).acquire()).await.unwrap().release().await.unwrap();
}

/// An address may be given to another server while nobody looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_not_the_one_before_does_not_vote() {
    let nodes = Nodes(Fleet::start(3));
    let client = nodes.client().await;
    take(&client.lock("x").ttl(TTL)).await.release().await.unwrap();
    nodes.nodes()[0].cli(&["hset", "tenure:redlock", "node", "another"]);
    nodes.nodes()[1].pause();
    let error = patiently("an answer", client.lock("x").ttl(TTL).try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
    assert!(error.to_string().contains("another server"), "{error}");
    nodes.nodes()[1].resume();
    patiently("a free lock", client.lock("x").ttl(TTL).acquire()).await.unwrap().release().await.unwrap();
}
