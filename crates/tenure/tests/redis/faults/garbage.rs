//! Keys and messages that are not tenure's.

use std::time::Duration;

use tenure::{Certainty, ErrorKind};

use crate::support::{LONG, Server, granted, patiently, refusal, renewed, waiters, waiting};

const KEY: &str = "tenure:{:x}";

fn dump(server: &Server, key: &str) -> String {
    server.cli(&["eval", "return redis.sha1hex(redis.call('dump', KEYS[1]) or '')", "1", key])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_another_type_is_an_error_and_left_alone() {
    let server = Server::start();
    let client = server.client().await;
    for put in [&["lpush", KEY, "a"][..], &["hset", KEY, "a", "b"], &["zadd", KEY, "1", "a"], &["sadd", KEY, "a"]] {
        server.cli(put);
        let before = dump(&server, KEY);
        let error = refusal(&client.lock("x")).await;
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Store, Certainty::NotApplied), "{error}");
        assert!(!error.is_retryable() && error.to_string().contains("another type"), "{error}");
        let error = patiently("an answer", client.lock("x").acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        for error in [
            client.inspect("x").await.unwrap_err(),
            client.break_holders("x", None, "").await.unwrap_err(),
            client.list("").await.unwrap_err(),
        ] {
            assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        }
        assert_eq!(dump(&server, KEY), before);
        server.cli(&["del", KEY]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_nobody_can_read_is_an_error_and_left_alone() {
    let server = Server::start();
    let client = server.client().await;
    let records = [
        "hello",
        "",
        "foo",
        "f",
        "f12x",
        "1",
        "B",
        "q",
        "1abc",
        "q 1 2 3",
        "1ffffffffffffffff1 2 3 4 5 x",
        "\u{1}\u{2}",
        "ünï",
    ];
    for record in records {
        server.cli(&["set", KEY, record]);
        let error = refusal(&client.lock("x").ttl(LONG)).await;
        assert_eq!(error.kind(), ErrorKind::Store, "{record:?}: {error}");
        assert!(!error.is_retryable(), "{record:?}: {error}");
        let error = patiently("an answer", client.lock("x").ttl(LONG).acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{record:?}: {error}");
        let looked = client.inspect("x").await;
        assert!(looked.is_err(), "{record:?}: {looked:?}");
        assert_eq!(server.cli(&["get", KEY]), record.trim(), "left alone");
        assert_eq!(server.cli(&["keys", "*x*"]), KEY);
    }
    server.cli(&["del", KEY]);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_a_queue_harms_no_longer_than_a_ttl() {
    let server = Server::start();
    let ttl = Duration::from_secs(2);
    let garbage: [&[&str]; 6] = [
        &["hset", "tenure:{:x}claims", "WAITER", "garbage"],
        &["hdel", "tenure:{:x}claims", "WAITER"],
        &["del", "tenure:{:x}claims"],
        &["zadd", "tenure:{:x}order", "5", "nobody"],
        &["set", "tenure:{:x}expiry", "garbage", "px", "2000"],
        &["del", "tenure:{:x}order"],
    ];
    for put in garbage {
        let (a, b) = (server.client().await, server.client().await);
        let held = a.lock("x").ttl(ttl).acquire().await.unwrap();
        let waits = waiting(&b.lock("x").ttl(ttl));
        let waiter = waiters(&a, "x", 1).await.waiters[0].claim.0.to_string();
        let put: Vec<&str> = put.iter().map(|word| if *word == "WAITER" { &waiter } else { *word }).collect();
        server.cli(&put);
        // Done or not, told or not: what counts is that nobody panics, and that the name comes back.
        let _ = a.inspect("x").await;
        let released = patiently("the release", held.release()).await;
        if let Err(error) = &released {
            let kinds = [ErrorKind::Store, ErrorKind::Lost, ErrorKind::Unavailable];
            assert!(kinds.contains(&error.kind()), "{put:?}: {error:?}");
        }
        let next = patiently(&format!("the waiter's end after {put:?}"), waits).await.unwrap();
        if let Err(error) = &next {
            assert_eq!(error.kind(), ErrorKind::Store, "{put:?}: {error:?}");
        }
        drop(next);
        patiently(&format!("the name comes back after {put:?}"), async {
            while !matches!(a.lock("x").ttl(ttl).try_acquire().await, Ok(Some(_))) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_in_an_inbox_is_ignored() {
    let server = Server::start();
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    let (waiter, number) = waiters(&a, "x", 1).await.waiters[0].claim;
    let holder = held.claim_id();
    let channels = server.cli(&["pubsub", "channels", "tenure:inbox:*"]);
    assert_eq!(channels.lines().count(), 2);
    let messages = [
        String::new(),
        "hello".to_owned(),
        "g".to_owned(),
        "g ".to_owned(),
        "b ".to_owned(),
        format!("g {waiter}"),
        format!("g {waiter} {number}"),
        format!("g {waiter} {number} 5 5 x"),
        format!("g {waiter} {} 5 5 5", number + 1),
        format!("g {waiter} -1 99999999999999999999 5 5"),
        format!("b {holder}"),
        format!("b {holder} 1 99 short"),
        format!("b {holder} 1 3 abcdef"),
        format!("z {waiter} {number} 5 5 5"),
        "\u{fffd}\u{0}\u{1b}[2J".to_owned(),
        "x".repeat(1 << 20),
    ];
    for channel in channels.lines() {
        for message in &messages {
            // As an argument it could not hold a NUL.
            let script = "return redis.call('publish', KEYS[1], (string.gsub(ARGV[1], '<0>', '\\0\\255')))";
            let message = message.replace('\0', "<0>");
            let message = if message.len() > 1000 { "x".repeat(100_000) } else { message };
            assert_eq!(server.cli(&["eval", script, "1", channel, &message]), "1");
        }
    }
    renewed(&held).await;
    assert!(!waits.is_finished());
    assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 1);
    held.release().await.unwrap();
    granted(waits).await.release().await.unwrap();
}
