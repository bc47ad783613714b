//! Servers that do not agree on what sessions may be like.

use std::time::Duration;

use tenure::Loss;
use tenure::backend::{Backend, Event, Renewed};
use tenure_testkit::servers::{Proxy, Zookeeper};

use crate::support::{Ear, claims, connect, name, raw, request, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_all_servers_allow_is_promised() {
    let servers =
        Zookeeper::builder().config_of(1, "maxSessionTimeout", "5000").config_of(2, "minSessionTimeout", "400").start();
    let client = Ear::at(&servers.url()).await;
    let capabilities = client.backend.capabilities();
    assert_eq!((capabilities.ttl_min, capabilities.ttl_max), (Duration::from_millis(400), Duration::from_secs(5)));
    let refused = client.backend.claim(&name("x"), request(Duration::from_secs(10))).await.unwrap_err();
    assert!(refused.to_string().contains("maxSessionTimeout is 5s"), "{refused}");
    let checkup = soon("a checkup", connect(&servers.url()).await.doctor()).await.unwrap();
    let findings: Vec<String> = checkup.findings.iter().map(|finding| finding.what.clone()).collect();
    assert!(findings.iter().any(|found| found.contains("different limits")), "{findings:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_a_server_would_end_sooner_is_not_trusted() {
    let servers = Zookeeper::builder().config_of(1, "maxSessionTimeout", "5000").start();
    let address = |member: usize| format!("127.0.0.1:{}", servers.port(member));
    let (first, second) = (Proxy::to(address(0)).await, Proxy::to(address(1)).await);
    second.refuse(true).await;
    let client = Ear::at(&format!("zookeeper://{},{}/limits", first.address(), second.address())).await;
    let (name, wish) = (name("x"), request(Duration::from_secs(30)));
    let standing = client.stands(&name, &wish).await;
    assert!(standing.state.is_ok());
    // Now only the server with the other limit is to be had.
    second.refuse(false).await;
    first.refuse(true).await;
    first.cut();
    let lost = |event: &Event| matches!(event, Event::Ended { id, number, loss: Loss::Gone } if *id == wish.id && *number == standing.number);
    until("it is known", async || client.heard(lost)).await;
    assert_eq!(client.renew(&name, &wish).await, Renewed::Gone);
    let raw = raw(&servers).await;
    until("its node goes", async || claims(&raw, "/limits/x").await.is_empty()).await;
    assert_eq!(client.backend.capabilities().ttl_max, Duration::from_secs(5));
    let short = request(Duration::from_secs(4));
    assert!(client.stands(&name, &short).await.state.is_ok());
}
