//! What took effect is never said to have surely not, however the tries after it fail.

use std::time::Duration;

use tenure::{Certainty, ErrorKind};
use tenure_testkit::servers::{Postgres, Proxy};

use crate::support::{connect, soon, until};

const TTL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_whose_reply_was_held_up_before_connections_were_refused_is_unknown() {
    let server = Postgres::start();
    let proxy = Proxy::to(format!("127.0.0.1:{}", server.port())).await;
    let (direct, through) = (server.port().to_string(), proxy.port().to_string());
    let client = connect(server.url().replace(&direct, &through)).await;
    let direct = connect(server.url()).await;
    for _ in 0..3 {
        // So that all is prepared, and a claim is one request.
        let guard = soon("a grant", client.lock("x").ttl(TTL).acquire()).await.unwrap();
        soon("a release", guard.release()).await.unwrap();
    }
    proxy.drop_replies(true);
    let lock = client.lock("x").ttl(TTL);
    let acquiring = tokio::spawn(async move { lock.acquire_within(TTL + TTL).await.map(drop) });
    until("it is granted", async || !direct.inspect("x").await.unwrap().is_free()).await;
    proxy.refuse(true).await;
    proxy.cut();
    let error = soon("an acquire", acquiring).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown), "{error}");
}
