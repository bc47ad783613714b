//! What others see, and what is seen of others.

use std::time::Duration;

use tenure::backend::{Backend, BreakRequest, Event, Shape};
use tenure_testkit::servers::shared;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::{Ear, LONG, claims, connect, name, raw, request, soon, until, until_waiting, waiting};

async fn sequential(raw: &Client, path: &str) -> String {
    let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, number) = raw.create(path, b"10.0.0.1", &options).await.unwrap();
    format!("{path}{number}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_znodes_that_never_nest() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/names")).await, raw(servers).await);
    for (text, node) in [
        ("orders/42", "orders%2F42"),
        ("orders", "orders"),
        ("zookeeper", "%7Aookeeper"),
        (".", "%2E"),
        ("..", "%2E."),
        ("100%", "100%25"),
        ("é", "é"),
        ("🔒", "%F0%9F%94%92"),
        ("a b", "a b"),
    ] {
        let (name, wish) = (name(text), request(LONG));
        client.stands(&name, &wish).await;
        assert_eq!(claims(&raw, &format!("/names/{node}")).await.len(), 1, "{text}");
        let view = client.backend.inspect(&name).await.unwrap();
        assert_eq!(view.holders.len(), 1, "{text}");
    }
    let listed = client.backend.scan("", None, 100).await.unwrap();
    assert_eq!(listed.len(), 9, "{listed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_are_called_as_curator_calls_its_own() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/called")).await, raw(servers).await);
    for (text, shape, kind) in [
        ("e", Shape::Exclusive, "-lock-"),
        ("s", Shape::Shared, "-shared-lock-"),
        ("p", Shape::Permits { units: 2, of: 5 }, "-permits-2-5-lock-"),
    ] {
        let wish = tenure::backend::ClaimRequest { shape, ..request(LONG) };
        client.stands(&name(text), &wish).await;
        let nodes = claims(&raw, &format!("/called/{text}")).await;
        let (uuid, rest) = nodes[0].strip_prefix("_c_").unwrap().split_at(36);
        assert_eq!(uuid.split('-').map(str::len).collect::<Vec<_>>(), [8, 4, 4, 4, 12]);
        assert_eq!(rest, format!("{kind}0000000000"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_other_libraries_are_waited_for_in_turn() {
    let servers = shared::zookeeper();
    let tenure = connect(&servers.url_below("/foreign")).await;
    let raw = raw(servers).await;
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.create("/foreign/x", b"", &options).await.unwrap();
    for prefix in [
        "/foreign/x/_c_0b7e6bd4-6f3c-4f0e-9d4f-0123456789ab-lock-",
        "/foreign/x/0123456789abcdef0123456789abcdef__lock__",
    ] {
        let first = sequential(&raw, prefix).await;
        assert!(tenure.lock("x").ttl(LONG).try_acquire().await.unwrap().is_none());
        let view = tenure.inspect("x").await.unwrap();
        assert_eq!(view.holders.len(), 1);
        let holder = &view.holders[0];
        assert!(holder.owner.is_none() && holder.expires_in.is_none() && holder.token.is_some(), "{view:?}");
        assert!(first.ends_with(holder.label.as_ref().unwrap().rsplit(' ').next().unwrap()), "{view:?}");
        let wait = waiting(&tenure, "x", LONG);
        until_waiting(&tenure, "x", 1).await;
        let behind = sequential(&raw, prefix).await;
        raw.delete(&first, None).await.unwrap();
        let guard = soon("its turn", wait).await.unwrap().unwrap();
        assert_eq!(tenure.inspect("x").await.unwrap().waiters.len(), 1, "the one behind waits");
        guard.release().await.unwrap();
        raw.delete(&behind, None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_is_told_at_once_and_its_note_goes_with_the_ttl() {
    let servers = shared::zookeeper();
    let url = servers.url_below("/notes");
    let (holder, operator, raw) = (Ear::at(&url).await, Ear::at(&url).await, raw(servers).await);
    let (name, held) = (name("x"), request(Duration::from_secs(8)));
    holder.stands(&name, &held).await;
    let ended = operator.backend.break_holders(&name, BreakRequest::all("ops", "deploy")).await.unwrap();
    assert_eq!(ended, 1);
    let told = |event: &Event| {
        matches!(event, Event::Ended { id, loss: tenure::Loss::Broken { by, reason }, .. }
            if *id == held.id && by == "ops" && reason == "deploy")
    };
    until("it is told", async || holder.heard(told)).await;
    assert_eq!(claims(&raw, "/notes/%%notes").await.len(), 1);
    until("the note goes", async || claims(&raw, "/notes/%%notes").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_gone_leaves_nothing_behind() {
    let servers = shared::zookeeper();
    let (tenure, raw) = (connect(&servers.url_below("/nothing")).await, raw(servers).await);
    let ttl = Duration::from_secs(5);
    let guard = tenure.lock("x").ttl(ttl).acquire().await.unwrap();
    let deadline = guard.deadline();
    until("it is renewed", async || guard.deadline() > deadline).await;
    guard.release().await.unwrap();
    tenure.close().await.unwrap();
    drop(tenure);
    until("all is gone", async || claims(&raw, "/nothing").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_not_what_its_name_says_is_waited_for() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/odd")).await, raw(servers).await);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    raw.create("/odd", b"", &options).await.ok();
    raw.create("/odd/x", b"", &options).await.unwrap();
    let odd = sequential(&raw, "/odd/x/_c_0b7e6bd4-6f3c-4f0e-9d4f-0123456789ab-shared-lock-").await;
    let wish = tenure::backend::ClaimRequest { shape: Shape::Shared, ..request(LONG) };
    assert!(client.stands(&name("x"), &wish).await.state.is_err(), "another library's: it takes everything");
    raw.delete(&odd, None).await.unwrap();
    let granted = |event: &Event| matches!(event, Event::Granted { id, .. } if *id == wish.id);
    until("its turn comes", async || client.heard(granted)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_are_nobodys_claim_and_stay() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/data")).await, raw(servers).await);
    let stays = CreateMode::Persistent.with_acls(Acls::anyone_all());
    let mut data = Vec::new();
    raw.create("/data/x", b"", &stays).await.unwrap();
    for node in [
        "_c_0b7e6bd4-6f3c-4f0e-9d4f-0123456789ab-lock-0000000000",
        "first-0000000000",
        "second-0000000001",
        "backup-1700000000",
    ] {
        raw.create(&format!("/data/x/{node}"), b"of somebody", &stays).await.unwrap();
        data.push(node.to_owned());
    }
    let name = name("x");
    assert!(client.backend.inspect(&name).await.unwrap().is_free());
    assert_eq!(client.backend.break_holders(&name, BreakRequest::all("me", "")).await.unwrap(), 0);
    let tries = tenure::backend::ClaimRequest { queue: false, ..request(LONG) };
    let first = client.stands(&name, &tries).await;
    assert!(first.state.is_ok());
    // Between those that hold and those that wait, by a name that tells nothing and by one as claims have.
    for prefix in ["note-", "_c_1b7e6bd4-6f3c-4f0e-9d4f-0123456789ab-lock-"] {
        let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
        let (_, number) = raw.create(&format!("/data/x/{prefix}"), b"", &options).await.unwrap();
        data.push(format!("{prefix}{number}"));
    }
    for shape in [Shape::Exclusive, Shape::Shared] {
        let waits = tenure::backend::ClaimRequest { shape, ..request(LONG) };
        assert!(client.stands(&name, &waits).await.state.is_err());
        let view = client.backend.inspect(&name).await.unwrap();
        assert_eq!((view.holders.len(), view.waiters.len()), (1, 1), "{view:?}");
        assert_eq!(client.backend.break_holders(&name, BreakRequest::all("me", "")).await.unwrap(), 1);
        let granted = |event: &Event| matches!(event, Event::Granted { id, .. } if *id == waits.id);
        until("its turn comes", async || client.heard(granted)).await;
    }
    let nodes = claims(&raw, "/data/x").await;
    assert!(data.iter().all(|node| nodes.contains(node)), "{nodes:?}");
    assert_eq!(nodes.len(), data.len() + 1, "{nodes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_that_outlives_its_session_is_one_all_the_same() {
    let servers = shared::zookeeper();
    let (tenure, raw) = (connect(&servers.url_below("/outlives")).await, raw(servers).await);
    raw.create("/outlives/x", b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await.unwrap();
    // As kazoo makes them with `ephemeral=False`.
    let options = CreateMode::PersistentSequential.with_acls(Acls::anyone_all());
    raw.create("/outlives/x/0123456789abcdef0123456789abcdef__lock__", b"", &options).await.unwrap();
    assert!(tenure.lock("x").ttl(LONG).try_acquire().await.unwrap().is_none());
    let wait = waiting(&tenure, "x", LONG);
    until_waiting(&tenure, "x", 1).await;
    assert_eq!(tenure.break_holders("x", None, "").await.unwrap(), 1);
    soon("its turn", wait).await.unwrap().unwrap().release().await.unwrap();
}
