//! Memos of a lock that asks for replicas.

use std::sync::Arc;

use tenure::backend::{Backend as _, Claimed, MemoKind, MemoWrite, MemoWritten, Replicas};
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure::{Certainty, ErrorKind, Name};
use tenure_testkit::plain_request;

use crate::failover::{LONG, copied, end, soon, until};
use crate::memos::{memo_key, reads};
use crate::replicas::Replicated;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_waits_for_as_many_replicas_as_its_lock() {
    let servers = Replicated::start();
    let client = servers.connect().await;
    let held = copied(&client.lock("x").ttl(LONG).min_replicas(2)).await;
    let has = |text: &str| servers.replicas.iter().all(|replica| replica.cli(&["get", &memo_key("x")]).ends_with(text));
    soon("replicas that are not too slow", async {
        while let Err(error) = held.write_memo("one").await {
            assert_eq!(error.kind(), ErrorKind::Replicas, "{error}");
        }
    })
    .await;
    assert!(has("one"));
    servers.pause();
    let error = soon("an answer", held.write_memo("two")).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Replicas, Certainty::Unknown), "{error}");
    assert!(error.to_string().contains("only 0 replicas"), "{error}");
    servers.resume();
    reads(&client, "x", "two").await;
    until("the replicas have it", async || has("two")).await;
    held.release().await.unwrap();
    end([client], &[&servers.master]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_lacks_the_memo_confirms_none() {
    let servers = Replicated::start();
    let backend = RedisBackend::open(servers.master.url(), Arc::new(SystemClock)).await.unwrap();
    let (name, claim) = (Name::new("x").unwrap(), plain_request());
    let claimed = backend.claim(&name, claim.clone()).await.unwrap().value;
    let Claimed::Stands(standing) = claimed else { panic!("{claimed:?}") };
    let token = standing.state.unwrap().token;
    let mut write = MemoWrite {
        id: claim.id,
        owner: claim.owner,
        number: None,
        token,
        after: 0,
        write: 7,
        kind: MemoKind::User,
        keep: None,
        bytes: Arc::from(&b"one"[..]),
    };
    let written = backend.write_memo(&name, write.clone()).await.unwrap();
    let MemoWritten::Done { version } = written else { panic!("{written:?}") };
    write.after = version;
    let confirm = || backend.confirm_memo(&name, write.clone(), Replicas::AtLeast(2));
    until("the replicas have it", async || confirm().await.unwrap().is_enough()).await;
    // As on a master that has the claim, but was promoted before it had the memo.
    assert_eq!(servers.master.cli(&["del", &memo_key("x")]), "1");
    let error = soon("an answer", confirm()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(servers.master.cli(&["exists", &memo_key("x")]), "0", "it is left as it is");
}
