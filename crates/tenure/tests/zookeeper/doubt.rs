//! Reconnections, and servers that do not say what they are worth.

use std::time::Duration;

use tenure::ErrorKind;
use tenure_testkit::servers::{Proxy, Zookeeper};

use crate::support::{connect, soon, until};

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
