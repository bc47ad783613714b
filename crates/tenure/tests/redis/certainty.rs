//! What took effect is never said to have surely not, however the tries after it fail.

use std::time::Duration;

use tenure::{Certainty, ErrorKind, Tenure};
use tenure_testkit::servers::Proxy;

use crate::support::{Server, patiently, until};

const TTL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn an_operation_whose_reply_was_held_up_before_connections_were_refused_is_unknown() {
    let server = Server::start().whose_dead_live_for(TTL);
    let proxy = Proxy::to(server.address()).await;
    let (direct, client) =
        (server.client().await, Tenure::connect(format!("redis://{}", proxy.address())).await.unwrap());
    let guard = client.lock("x").ttl(TTL).acquire().await.unwrap();
    proxy.drop_replies(true);
    let releasing = tokio::spawn(guard.release());
    until("it is released", async || direct.inspect("x").await.unwrap().is_free()).await;
    proxy.refuse(true).await;
    proxy.cut();
    let error = patiently("a release", releasing).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown), "{error}");

    proxy.heal().await;
    drop(patiently("a grant", client.lock("x").ttl(TTL).acquire()).await.unwrap());
    until("it is free", async || direct.inspect("y").await.unwrap().is_free()).await;
    proxy.drop_replies(true);
    let lock = client.lock("y").ttl(TTL);
    let acquiring = tokio::spawn(async move { lock.acquire_within(TTL + TTL).await.map(drop) });
    until("it is granted", async || !direct.inspect("y").await.unwrap().is_free()).await;
    proxy.refuse(true).await;
    proxy.cut();
    let error = patiently("an acquire", acquiring).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown), "{error}");
}

#[test]
fn a_client_whose_runtime_has_ended_says_so_at_once() {
    let server = Server::start().whose_dead_live_for(TTL);
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (ends, other) = (runtime(), runtime());
    let (client, guards) = ends.block_on(async {
        let client = server.client().await;
        let a = client.lock("a").ttl(TTL).acquire().await.unwrap();
        (client.clone(), [a, client.lock("b").ttl(TTL).acquire().await.unwrap()])
    });
    let [released, dropped] = guards;
    let waits = client.lock("a").ttl(TTL).strict_fifo();
    let waits = other.spawn(async move { waits.acquire().await.map(drop) });
    other.block_on(until("it waits", async || client.inspect("a").await.unwrap().waiters.len() == 1));
    drop(ends);
    other.block_on(async {
        let is_closed = |outcome: Result<(), tenure::Error>| assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Closed);
        is_closed(patiently("the waiting task", waits).await.unwrap());
        is_closed(patiently("an acquire", client.lock("x").acquire()).await.map(drop));
        is_closed(patiently("a look", client.inspect("x")).await.map(drop));
        is_closed(patiently("a release", released.release()).await);
    });
    drop(dropped);
}
