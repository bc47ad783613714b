//! Reconnections, and servers that do not say what they are worth.

use std::time::Duration;

use tenure::ErrorKind;
use tenure::backend::{ClaimRequest, Renewed};
use tenure_testkit::servers::{Proxy, Zookeeper, shared};

use crate::support::{Ear, LONG, behind_a_proxy, connect, name, request, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_never_says_what_it_allows_does_not_keep_a_client_from_its_locks() {
    let servers = Zookeeper::start();
    // One that is down behind these takes each connection, and closes it.
    let mut proxies = Vec::new();
    for member in 0..3 {
        proxies.push(Proxy::to(format!("127.0.0.1:{}", servers.port(member))).await);
    }
    let hosts: Vec<String> = proxies.iter().map(Proxy::address).collect();
    let tenure = connect(&format!("zookeeper://{}/closed", hosts.join(","))).await;
    let ttl = Duration::from_secs(4);
    let held = tenure.lock("x").ttl(ttl).acquire().await.unwrap();
    let follower = (0..3).find(|member| servers.leader() != Some(*member)).unwrap();
    servers.kill(follower);
    proxies.iter().for_each(Proxy::cut);
    soon("the loss", held.lost()).await;
    match soon("an answer", tenure.lock("y").ttl(ttl).try_acquire()).await {
        Ok(guard) => drop(guard),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
    }
    let again = soon("a grant", tenure.lock("x").ttl(ttl).acquire()).await.unwrap();
    let deadline = again.deadline();
    until("it is renewed", async || again.deadline() > deadline).await;
    soon("a release", again.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_reconnect_together_ask_together() {
    const SESSIONS: usize = 16;
    let (proxy, url) = behind_a_proxy(shared::zookeeper(), 0, "/together").await;
    let client = Ear::at(&url).await;
    let mut wishes: Vec<ClaimRequest> = Vec::new();
    for turn in 0..SESSIONS {
        let ttl = LONG + Duration::from_millis(u64::try_from(turn).unwrap());
        wishes.push(request(ttl));
        client.stands(&name(&format!("x{turn}")), &wishes[turn]).await;
    }
    let before = proxy.connections();
    proxy.cut();
    for (turn, wish) in wishes.iter().enumerate() {
        assert!(matches!(client.renew(&name(&format!("x{turn}")), wish).await, Renewed::Stands(_)));
    }
    // One for each session, and a few questions for all.
    let made = proxy.connections() - before;
    assert!(made <= 2 * SESSIONS, "{made} connections");
}
