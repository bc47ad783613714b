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
