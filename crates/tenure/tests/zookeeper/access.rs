//! Who gets in.

use std::sync::Arc;

use tenure::backends::zookeeper::ZookeeperBackend;
use tenure::clock::SystemClock;
use tenure::{Error, ErrorKind};
use tenure_testkit::servers::{Zookeeper, shared};
use zookeeper_client::{Acls, CreateMode};

use crate::support::{LONG, connect, raw, soon, until};

async fn refused(url: &str) -> Error {
    soon("an answer", ZookeeperBackend::open(url, Arc::new(SystemClock))).await.unwrap_err()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_user_made_no_other_may_use() {
    let servers = shared::zookeeper();
    let url = |login: &str| format!("zookeeper://{login}{}/private", servers.servers());
    let tenure = connect(&url("locker:s3cret%2Fwith%40chars@")).await;
    let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    for login in ["", "locker:wrong@", "other:s3cret%2Fwith%40chars@"] {
        let other = connect(&url(login)).await;
        let denied = soon("an answer", other.lock("x").ttl(LONG).acquire()).await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
        assert!(!denied.to_string().contains("s3cret"), "{denied}");
        let denied = other.break_holders("x", None, "no").await.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::Denied, "{denied}");
    }
    assert!(guard.is_held());
    let same = connect(&url("locker:s3cret%2Fwith%40chars@")).await;
    assert_eq!(same.inspect("x").await.unwrap().holders.len(), 1);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chroot_that_is_there_is_used_below_a_node_that_nobody_may_change() {
    let servers = shared::zookeeper();
    let raw = raw(servers).await;
    let (open, closed) = (Acls::anyone_all(), Acls::anyone_read());
    raw.create("/closed", b"", &CreateMode::Persistent.with_acls(open)).await.unwrap();
    raw.create("/closed/app", b"", &CreateMode::Persistent.with_acls(open)).await.unwrap();
    raw.set_acl("/closed", &closed, None).await.unwrap();
    let tenure = connect(&servers.url_below("/closed/app")).await;
    let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    soon("a release", guard.release()).await.unwrap();
    let below = connect(&servers.url_below("/closed/app/made/by/tenure")).await;
    assert!(below.lock("x").ttl(LONG).try_acquire().await.unwrap().is_some());
    assert_eq!(refused(&servers.url_below("/closed/other")).await.kind(), ErrorKind::Denied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_by_sasl_where_servers_ask_for_it() {
    let servers = Zookeeper::builder().members(1).sasl("locker", "s3cret,with=chars").start();
    let url = |login: &str, options: &str| format!("zookeeper://{login}{}/sasl{options}", servers.servers());
    let tenure = connect(&url("locker:s3cret%2Cwith%3Dchars@", "?auth=sasl")).await;
    let ttl = std::time::Duration::from_secs(4);
    let guard = tenure.lock("x").ttl(ttl).acquire().await.unwrap();
    let deadline = guard.deadline();
    until("it is renewed", async || guard.deadline() > deadline).await;
    soon("a release", guard.release()).await.unwrap();
    let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    for (login, options) in [
        ("locker:wrong@", "?auth=sasl"),
        ("other:wrong@", "?auth=sasl"),
        ("locker:s3cret%2Cwith%3Dchars@", ""),
        ("", ""),
    ] {
        let denied = refused(&url(login, options)).await;
        assert_eq!(denied.kind(), ErrorKind::Denied, "{login}{options}: {denied}");
        assert!(denied.to_string().contains("?auth=sasl"), "{denied}");
        assert!(!format!("{denied:?}").contains("s3cret"), "{denied:?}");
    }
    soon("a release", guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_said_by_tls_is_said_to_servers_that_the_authority_knows() {
    let servers = Zookeeper::builder().members(1).tls().start();
    let url = servers.tls_url("/tls");
    let tenure = connect(&url).await;
    let ttl = std::time::Duration::from_secs(4);
    let guard = tenure.lock("x").ttl(ttl).acquire().await.unwrap();
    let deadline = guard.deadline();
    until("it is renewed", async || guard.deadline() > deadline).await;
    soon("a release", guard.release()).await.unwrap();
    let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    let checkup = tenure.doctor().await.unwrap();
    assert!(format!("{:?}", checkup.facts).contains("standalone, version"), "{:?}", checkup.facts);
    let plain = connect(&servers.url_below("/tls")).await;
    assert_eq!(plain.inspect("x").await.unwrap().holders.len(), 1, "the same names");
    // Who has no certificate of its own, or trusts another authority.
    let (without_own, _) = url.split_once("&cert=").unwrap();
    let other = Zookeeper::builder().members(1).tls().start();
    let stranger = other.tls_url("/tls");
    let (_, others) = stranger.split_once('?').unwrap();
    let (place, _) = url.split_once('?').unwrap();
    for (url, kind) in [
        (without_own.to_owned(), ErrorKind::Denied),
        (format!("{place}?{others}"), ErrorKind::Store),
        (place.to_owned(), ErrorKind::Invalid),
    ] {
        let refused = refused(&url).await;
        assert_eq!(refused.kind(), kind, "{url}: {refused}");
    }
    // Two of three hosts may yet come, and speak as the URL says.
    let hosts = place.replacen("/tls", ",127.0.0.1:1,127.0.0.1:2/tls", 1);
    assert_eq!(refused(&hosts).await.kind(), ErrorKind::Unavailable, "{hosts}");
    soon("a release", guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_are_not_there_are_named() {
    let error = refused("zookeeper://127.0.0.1:1,127.0.0.1:2/x").await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:1") && text.contains("127.0.0.1:2"), "{text}");
    let error = refused("zookeeper://u:hidden@127.0.0.1:1/x?sasl=true").await;
    assert!(error.kind() == ErrorKind::Invalid && !format!("{error:?}").contains("hidden"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_server_of_three_is_enough_to_find_the_others_dead() {
    let servers = Zookeeper::start();
    for member in [1, 2] {
        servers.kill(member);
    }
    assert_eq!(refused(&servers.url()).await.kind(), ErrorKind::Unavailable);
    for member in [1, 2] {
        servers.begin(member);
    }
    servers.wait_until_up(1);
    let tenure = connect(&servers.url()).await;
    let guard = soon("a grant", tenure.lock("x").ttl(LONG).acquire()).await.unwrap();
    soon("a release", guard.release()).await.unwrap();
}
