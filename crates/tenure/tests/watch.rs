//! A watch tells what changes between two looks, on a clock that the test drives.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::pin::pin;
use std::time::Duration;

use common::{TTL, World, now, still_pending};
use tenure::watch::{ChangeKind, INTERVAL_DEFAULT, INTERVAL_MIN};

#[tokio::test]
async fn what_is_there_at_the_first_look_is_no_change() {
    let world = World::new();
    let client = world.client("a");
    let _old = client.lock("x/old").acquire().await.unwrap();
    let mut watch = client.watch("x/");
    assert_eq!(watch.look().await.unwrap(), 0);
    assert_eq!(watch.names().len(), 1);
    let _other = client.lock("y").acquire().await.unwrap();
    let _new = client.lock("x/new").acquire().await.unwrap();
    let change = world.drive("a change", watch.next()).await.unwrap();
    assert_eq!((change.kind, change.name.as_str()), (ChangeKind::Granted, "x/new"));
    assert_eq!(change.label.as_deref(), Some("a"));
}

#[tokio::test]
async fn from_nothing_on_everything_is_a_change() {
    let world = World::new();
    let client = world.client("a");
    let _held = client.lock("x").acquire().await.unwrap();
    let mut watch = client.watch("").from_empty();
    assert_eq!(watch.look().await.unwrap(), 1);
    assert_eq!(watch.changes().map(|change| change.kind).collect::<Vec<_>>(), [ChangeKind::Granted]);
}

#[tokio::test]
async fn it_looks_once_in_an_interval_and_not_before() {
    let world = World::new();
    let client = world.client("a");
    let mut watch = client.watch("");
    assert_eq!(watch.interval(), INTERVAL_DEFAULT);
    now("the first look", watch.look()).await.unwrap();
    let _held = client.lock("x").acquire().await.unwrap();
    let mut next = pin!(watch.next());
    still_pending(next.as_mut()).await;
    world.pass(INTERVAL_DEFAULT - Duration::from_millis(1)).await;
    still_pending(next.as_mut()).await;
    world.pass(Duration::from_millis(1)).await;
    assert_eq!(now("the second look", next).await.unwrap().name.as_str(), "x");
    assert_eq!(client.watch("").every(Duration::ZERO).interval(), INTERVAL_MIN, "there is a limit");
}

#[tokio::test]
async fn a_call_that_is_dropped_loses_no_change() {
    let world = World::new();
    let client = world.client("a");
    let mut watch = client.watch("");
    watch.look().await.unwrap();
    let _held = (client.lock("x").acquire().await.unwrap(), client.lock("y").acquire().await.unwrap());
    for _ in 0..3 {
        still_pending(pin!(watch.next())).await;
    }
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(world.drive("a change", watch.next()).await.unwrap().name.to_string());
    }
    assert_eq!(seen, ["x", "y"]);
}

#[tokio::test]
async fn a_holder_that_stops_renewing_expires() {
    let world = World::new();
    let client = world.client("a");
    let mut watch = client.watch("");
    let held = client.lock("x").ttl(TTL).no_renewal().acquire().await.unwrap();
    watch.look().await.unwrap();
    let change = world.drive("its end", watch.next()).await.unwrap();
    assert_eq!(change.kind, ChangeKind::Expired);
    assert_eq!(change.held.map(|held| held.as_secs()), Some(TTL.as_secs()));
    drop(held);
}

#[tokio::test]
async fn a_break_that_leaves_the_name_free_is_told_with_who_and_why() {
    let world = World::new();
    let (client, ops) = (world.client("a"), world.client("ops"));
    let mut watch = client.watch("");
    let _held = client.lock("x").ttl(TTL).acquire().await.unwrap();
    watch.look().await.unwrap();
    ops.break_holders("x", None, "it hangs").await.unwrap();
    let change = world.drive("its end", watch.next()).await.unwrap();
    assert_eq!(change.kind, ChangeKind::Broken);
    assert_eq!(change.broken_by, Some(("ops".to_owned(), "it hangs".to_owned())));
    assert!(watch.names().is_empty(), "what is left of it is no name in use");
}
