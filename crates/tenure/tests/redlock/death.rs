//! Clients that die without a word.

use std::time::Duration;

use crate::process::{self, Process};
use crate::support::{LONG, Nodes, granted, patiently, take, waiters, waits};

/// The ttl of those that die.
const SHORT: Duration = Duration::from_secs(1);
/// The ttl of whoever comes next: while it waits, it asks three times in that time.
const NEXT: Duration = Duration::from_secs(3);
/// How much later than one ttl the next may have it: generous, for a busy machine.
const GRACE: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_killed_is_followed_one_ttl_later() {
    if process::is_other() {
        return process::play().await;
    }
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let test = "death::a_holder_that_is_killed_is_followed_one_ttl_later";
    let mut holder = Process::start(test, &nodes.patient_url(), SHORT);
    holder.go_on();
    holder.hear("holds");
    let next = waits(&client.lock("x").ttl(NEXT));
    waiters(&client, "x", 1).await;
    holder.kill();
    let killed = client.clock().now();
    let guard = granted(next).await;
    let after = client.clock().now().since(killed);
    println!("{after:?} after the holder was killed");
    assert!(after < SHORT + GRACE, "{after:?}");
    guard.release().await.unwrap();
}

/// Somebody waits behind a process that waits behind us, and something befalls that process. For how long the other
/// then waits once it is free.
async fn behind(test: &str, befalls: impl Fn(&mut Process)) -> Duration {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let held = take(&client.lock("x").ttl(LONG)).await;
    let mut first = Process::start(test, &nodes.patient_url(), SHORT);
    first.go_on();
    waiters(&client, "x", 1).await;
    let second = waits(&client.lock("x").ttl(NEXT));
    waiters(&client, "x", 2).await;
    befalls(&mut first);
    held.release().await.unwrap();
    let released = client.clock().now();
    let guard = granted(second).await;
    let after = client.clock().now().since(released);
    guard.release().await.unwrap();
    first.kill();
    after
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_hangs_delays_the_others_only_a_moment() {
    if process::is_other() {
        return process::play().await;
    }
    let test = "death::a_waiter_that_hangs_delays_the_others_only_a_moment";
    let after = behind(test, |first| first.signal("-STOP")).await;
    println!("{after:?} behind a waiter that hangs");
    assert!(after < GRACE, "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_was_killed_delays_nobody() {
    if process::is_other() {
        return process::play().await;
    }
    let test = "death::a_waiter_that_was_killed_delays_nobody";
    let after = behind(test, Process::kill).await;
    println!("{after:?} behind a waiter that was killed");
    assert!(after < GRACE, "{after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_place_of_a_waiter_that_was_killed_ends_by_itself() {
    if process::is_other() {
        return process::play().await;
    }
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let held = take(&client.lock("x").ttl(LONG)).await;
    let test = "death::the_place_of_a_waiter_that_was_killed_ends_by_itself";
    let mut waiter = Process::start(test, &nodes.patient_url(), SHORT);
    waiter.go_on();
    waiters(&client, "x", 1).await;
    waiter.kill();
    waiters(&client, "x", 0).await;
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_ends_leaves_nothing_that_lasts() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let url = nodes.patient_url();
    let life = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let dying = crate::support::connect(&url).await;
            // Forgotten, so that no drop says good-bye.
            std::mem::forget(dying.clone());
            std::mem::forget(take(&dying.lock("x").ttl(SHORT)).await);
            let waiter = waits(&dying.lock("x").ttl(SHORT));
            waiters(&dying, "x", 1).await;
            std::mem::forget(waiter);
        });
    });
    patiently("its end", tokio::task::spawn_blocking(|| life.join().unwrap())).await.unwrap();
    let died = client.clock().now();
    let guard = take(&client.lock("x").ttl(NEXT)).await;
    let after = client.clock().now().since(died);
    assert!(after < SHORT + GRACE, "{after:?}");
    guard.release().await.unwrap();
}
