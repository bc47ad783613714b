//! Memos: what is special about them in Redis. What every store does with them is in the conformance suite.

use std::time::Duration;

use tenure::{Certainty, ErrorKind, Memo, Tenure};

use crate::failover::{LONG, connect, record, soon, until};
use crate::support::{Server, patiently};

pub(crate) fn memo_key(name: &str) -> String {
    record(name) + "memo"
}

/// The memo of a name, asked for until there is an answer.
pub(crate) async fn read(tenure: &Tenure, name: &str) -> Option<Memo> {
    soon("a memo is read", async {
        loop {
            match tenure.memo(name).await {
                Ok(memo) => return memo,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    })
    .await
}

pub(crate) async fn reads(tenure: &Tenure, name: &str, text: &str) -> Memo {
    let memo = read(tenure, name).await.unwrap_or_else(|| panic!("the memo of {name} is lost"));
    assert_eq!(String::from_utf8_lossy(&memo.bytes), text);
    memo
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memo_has_a_key_of_its_own_that_ends_a_minute_after_it_or_never() {
    let server = Server::start();
    let client = server.client().await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let lives = || server.cli(&["pttl", &memo_key("x")]).parse::<i64>().unwrap();
    held.write_memo("for ever").await.unwrap();
    assert_eq!(lives(), -1);
    let version = held.write_memo_for("for a moment", Duration::from_millis(1)).await.unwrap();
    assert!((1..=60_002).contains(&lives()), "{}", lives());
    until("it has ended", async || client.memo("x").await.unwrap().is_none()).await;
    assert_eq!(server.cli(&["exists", &memo_key("x")]), "1", "its version is known");
    let next = held.write_memo("for ever again").await.unwrap();
    assert!(next > version, "{next} after {version}");
    assert_eq!(lives(), -1);
    held.release().await.unwrap();
    reads(&client, "x", "for ever again").await;
    assert!(client.list("").await.unwrap().is_empty(), "a memo alone is no name in use");
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_grow_though_the_servers_clock_steps_back() {
    let server = Server::start();
    let client = server.client().await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let first = held.write_memo("one").await.unwrap();
    // As if that had been an hour later, by a clock that was set right since.
    let later = first + 3_600_000_000;
    let memo = server.cli(&["get", &memo_key("x")]).replace(&first.to_string(), &later.to_string());
    assert_eq!(server.cli(&["set", &memo_key("x"), &memo]), "OK");
    assert_eq!(held.write_memo("two").await.unwrap(), later + 1);
    let memo = reads(&client, "x", "two").await;
    assert!(memo.age < Duration::from_secs(60), "{memo:?}");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_a_memo_is_refused_and_the_old_one_is_read() {
    let server = Server::start();
    let client = server.client().await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    held.write_memo("one").await.unwrap();
    assert_eq!(server.cli(&["config", "set", "maxmemory", "1"]), "OK");
    let error = patiently("an answer", held.write_memo("two")).await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Store, Certainty::NotApplied), "{error}");
    assert!(error.to_string().contains("memory"), "{error}");
    assert!(held.is_held());
    reads(&client, "x", "one").await;
    assert_eq!(server.cli(&["config", "set", "maxmemory", "0"]), "OK");
    held.write_memo("two").await.unwrap();
    reads(&client, "x", "two").await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_a_replica_tells_no_memo() {
    let server = Server::start();
    let client = server.client().await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    held.write_memo("one").await.unwrap();
    held.release().await.unwrap();
    // Of a master that is nowhere: it keeps what it has, and would tell it.
    assert_eq!(server.cli(&["replicaof", "127.0.0.1", "1"]), "OK");
    let error = patiently("an answer", client.memo("x")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert_eq!(server.cli(&["replicaof", "no", "one"]), "OK");
    reads(&client, "x", "one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_no_memo_of_ours_is_left_alone() {
    let server = Server::start();
    let client = server.client().await;
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    for (value, says) in [("note 7 ab 1 1 - x", "upgrade"), ("1", "not tenure's")] {
        server.cli(&["set", &memo_key("x"), value]);
        for error in [client.memo("x").await.unwrap_err(), held.write_memo("x").await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        }
        let error = client.memo("x").await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(server.cli(&["get", &memo_key("x")]), value);
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn other_libraries_layouts_keep_no_memos() {
    let server = Server::start();
    for layout in ["plain", "redisson"] {
        let client = connect(format!("{}?layout={layout}", server.url())).await;
        assert!(!client.capabilities().memos && client.guarantees().memos.is_none());
        let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
        for error in [held.write_memo("x").await.unwrap_err(), client.memo("x").await.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("memos"), "{error}");
        }
        held.release().await.unwrap();
    }
}
