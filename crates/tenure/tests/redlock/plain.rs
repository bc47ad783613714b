//! The classic layout: what foreign clients have is told apart by what they wrote.

use tenure::Tenure;

use crate::support::{Nodes, PATIENT, answered, patiently};

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_on_fewer_than_half_of_the_nodes_is_held_by_nobody() {
    let nodes = Nodes::start();
    let url = nodes.url_with(&format!("{PATIENT}&layout=plain"));
    let tenure = patiently("a connection", Tenure::connect(&url)).await.unwrap();
    for (index, node) in nodes.nodes().iter().enumerate() {
        let whose = if index < 2 { "one's" } else { "another's" };
        node.cli(&["set", "x", whose, "PX", "60000"]);
    }
    let view = patiently("a look", tenure.inspect("x")).await.unwrap();
    assert_eq!(view.holders.len(), 1, "three of five have another's: {view:?}");
    assert!(answered("an answer", async || tenure.lock("x").try_acquire().await).await.is_none());
    nodes.nodes()[4].cli(&["del", "x"]);
    let view = patiently("a look", tenure.inspect("x")).await.unwrap();
    assert!(view.holders.is_empty(), "two and two: {view:?}");
    nodes.nodes()[3].cli(&["del", "x"]);
    nodes.nodes()[2].cli(&["del", "x"]);
    let guard = patiently("a majority", tenure.lock("x").acquire()).await.unwrap();
    assert_eq!(guard.token(), None);
    guard.release().await.unwrap();
    for node in nodes.nodes() {
        assert!(["one's", ""].contains(&node.cli(&["get", "x"]).as_str()), "{}", node.cli(&["get", "x"]));
    }
}
