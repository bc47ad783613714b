//! More than half of the nodes are away: nothing is granted, nothing is left behind, and it is said why.

use std::sync::Arc;
use std::time::Duration;

use tenure::{Error, ErrorKind, Guard, Loss, Tenure};
use tenure_testkit::servers::Redis;
use tokio::task::JoinHandle;

use crate::support::{KEPT, LONG, Nodes, Servers, TTL, patiently, take, until};

/// Every way to ask is refused, and the error names the missing nodes.
async fn refused(client: &Tenure, missing: &[String], why: &[&str]) {
    let told = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
        assert!(error.is_retryable(), "{error}");
        let text = error.to_string();
        let reason = |address: &String| {
            let (_, reason) = text.split_once(&format!("{address}: ")).unwrap_or_else(|| panic!("{address} in {text}"));
            reason.split(';').next().unwrap_or_default().to_owned()
        };
        for address in missing {
            let reason = reason(address);
            assert!(why.iter().any(|why| reason.contains(why)), "{address}: {reason}");
        }
    };
    told(&patiently("an answer", client.lock("y").ttl(LONG).try_acquire()).await.unwrap_err());
    let soon = Duration::from_millis(700);
    told(&patiently("an answer", client.lock("y").ttl(LONG).acquire_within(soon)).await.unwrap_err());
    let inspected = patiently("an answer", client.inspect("y")).await;
    assert_eq!(inspected.unwrap_err().kind(), ErrorKind::Quorum);
}

/// Nothing of these attempts is on the nodes that are there.
async fn nothing_on(nodes: &[Redis]) {
    let left = || {
        let keys = nodes.iter().map(|node| node.cli(&["keys", "tenure:redlock:{:y}*"]));
        keys.filter(|keys| !keys.is_empty()).collect::<Vec<_>>()
    };
    until("nothing is left", async || left().is_empty()).await;
}

/// How it is lost, and how long after its deadline that is told. In a task: what else a test does is not to delay it.
fn lost(holder: &Tenure, guard: &Arc<Guard>) -> JoinHandle<(Loss, Duration)> {
    let (holder, guard) = (holder.clone(), guard.clone());
    tokio::spawn(async move {
        let mut deadline = guard.deadline();
        let mut lost = std::pin::pin!(guard.lost());
        loop {
            match tokio::time::timeout(Duration::from_millis(5), &mut lost).await {
                Ok(loss) => return (loss, holder.clock().now().since(deadline)),
                Err(_) => deadline = deadline.max(guard.deadline()),
            }
        }
    })
}

/// With a lease held, three nodes go; what is asked for is refused, and the lease is lost in time.
async fn without_three<S: Servers>(
    nodes: &Nodes<S>,
    addresses: &[String],
    why: &[&str],
    go: impl AsyncFn(usize),
    come_back: impl AsyncFn(usize),
) {
    let (holder, other) = (nodes.client().await, nodes.client().await);
    let held = Arc::new(take(&holder.lock("x").ttl(KEPT)).await);
    let lost = lost(&holder, &held);
    for index in 0..3 {
        go(index).await;
    }
    refused(&other, &addresses[..3], why).await;
    nothing_on(&nodes.fleet().nodes()[3..]).await;
    let (loss, late) = patiently("the loss", lost).await.unwrap();
    assert_eq!(loss, Loss::Expired);
    assert!(!held.is_held(), "it is trusted after its loss");
    assert!(late < KEPT, "told {late:?} after the deadline");
    let failure = held.renewal_failure().expect("why it could not be renewed");
    assert!(failure.contains("no quorum") && failure.contains(&addresses[0]), "{failure}");

    for index in 0..3 {
        come_back(index).await;
    }
    nodes.all_take_part(&other).await;
    drop(held);
    take(&other.lock("x").ttl(TTL)).await.release().await.unwrap();
    nodes.no_keys_left().await;
}

fn addresses(nodes: &[Redis]) -> Vec<String> {
    nodes.iter().map(Redis::address).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_dead_nodes() {
    let nodes = Nodes::durable();
    let servers = nodes.nodes();
    let why = ["onnection refused", "closed", "broken", "reset", "answer"];
    let (go, come_back) = (async |index: usize| servers[index].kill(), async |index: usize| servers[index].restart());
    without_three(&nodes, &addresses(servers), &why, go, come_back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hung_nodes() {
    let nodes = Nodes::start();
    let servers = nodes.nodes();
    let (go, come_back) = (async |index: usize| servers[index].pause(), async |index: usize| servers[index].resume());
    without_three(&nodes, &addresses(servers), &["answer"], go, come_back).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_that_refuse() {
    let nodes = Nodes::proxied().await;
    let proxies = nodes.proxies();
    let addresses: Vec<String> = proxies.iter().map(tenure_testkit::servers::Proxy::address).collect();
    let go = async |index: usize| {
        proxies[index].refuse(true).await;
        proxies[index].cut();
    };
    let why = ["onnection refused", "closed", "broken", "reset", "answer"];
    without_three(&nodes, &addresses, &why, go, async |index: usize| proxies[index].heal().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_ever_is_told_of_the_quorum_too() {
    let nodes = Nodes::proxied().await;
    let client = nodes.client().await;
    for proxy in &nodes.proxies()[2..] {
        proxy.refuse(true).await;
        proxy.cut();
    }
    let error = patiently("an answer", client.lock("x").ttl(LONG).acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
    nodes.heal().await;
    nodes.no_keys_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_connects_is_told_which_nodes_are_missing() {
    let nodes = Nodes::start();
    nodes.nodes()[..3].iter().for_each(Redis::kill);
    let error = patiently("an answer", Tenure::connect(nodes.patient_url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
    for node in &nodes.nodes()[..3] {
        assert!(error.to_string().contains(&format!("{}: ", node.address())), "{error}");
    }
    nodes.nodes()[..3].iter().for_each(Redis::restart);
    nodes.client().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_on_if_the_nodes_are_back_in_time() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let ttl = Duration::from_secs(6);
    let held = take(&client.lock("x").ttl(ttl)).await;
    let (token, before) = (held.token(), held.deadline());
    nodes.nodes()[..3].iter().for_each(Redis::pause);
    until("a renewal has failed", async || held.renewal_failure().is_some()).await;
    nodes.nodes()[..3].iter().for_each(Redis::resume);
    until("a renewal", async || {
        assert!(held.is_held(), "{:?}", held.renewal_failure());
        held.deadline() > before
    })
    .await;
    assert_eq!(held.token(), token);
    patiently("beyond the first deadline", async {
        while client.clock().now() < before {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert!(held.is_held());
    held.release().await.unwrap();
    nodes.all_take_part(&client).await;
    nodes.no_keys_left().await;
}
