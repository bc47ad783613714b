//! Whatever is dropped, wherever it was: nothing of it stays on any node.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use tenure::Tenure;

use crate::support::{LONG, Nodes, TTL, patiently, take, until};

/// More often than any acquire here is polled.
const POLLS_MAX: usize = 24;

/// Drops a future at the await after so many.
async fn dropped_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Drops an acquire at each of its awaits, and the guard of one that came to an end.
async fn drop_everywhere(client: &Tenure, name: &str) -> (usize, usize) {
    let (mut dropped, mut done) = (0, 0);
    for polls in 0..POLLS_MAX {
        // Fresh names, so that none is in the way of the next.
        let lock = client.lock(format!("{name}{polls}")).ttl(LONG);
        match patiently("an answer", dropped_after(polls, lock.acquire_within(TTL))).await {
            None => dropped += 1,
            Some(guard) => {
                drop(guard);
                done += 1;
            }
        }
    }
    (dropped, done)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_may_be_dropped_at_any_await() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let (dropped, done) = drop_everywhere(&client, "x").await;
    assert!(dropped > 0 && done > 0, "{dropped} dropped, {done} done");
    nodes.no_keys_left().await;
    assert_eq!(client.live_claims(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_may_be_dropped_while_it_waits() {
    let nodes = Nodes::start();
    let (holder, client) = (nodes.client().await, nodes.client().await);
    let held = take(&holder.lock("x").ttl(LONG)).await;
    for polls in 0..POLLS_MAX / 2 {
        let lock = client.lock("x").ttl(LONG);
        let cut = dropped_after(polls, lock.acquire_within(Duration::from_millis(300)));
        if let Some(Ok(guard)) = patiently("an answer", cut).await {
            panic!("{guard:?} beside another")
        }
    }
    until("nobody waits", async || holder.inspect("x").await.is_ok_and(|view| view.waiters.is_empty())).await;
    assert!(held.is_held());
    held.release().await.unwrap();
    nodes.no_keys_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_may_be_dropped_on_a_bad_network() {
    let nodes = Nodes::proxied().await;
    let client = nodes.client().await;
    for proxy in &nodes.proxies()[..3] {
        proxy.delay(Duration::from_millis(20));
    }
    let (dropped, done) = drop_everywhere(&client, "slow").await;
    assert!(dropped > 0 && done > 0, "{dropped} dropped, {done} done");
    nodes.heal().await;
    nodes.no_keys_left().await;

    // Requests take effect on two nodes, and nobody hears of it.
    for proxy in &nodes.proxies()[3..] {
        proxy.drop_replies(true);
    }
    drop_everywhere(&client, "silent").await;
    for proxy in &nodes.proxies()[3..] {
        // Replies that went missing would be missed on their connection for good.
        proxy.cut();
    }
    nodes.heal().await;
    nodes.no_keys_left().await;

    // And on most of them: nothing is granted, and nothing stays.
    for proxy in &nodes.proxies()[1..] {
        proxy.drop_replies(true);
    }
    for polls in 0..POLLS_MAX / 4 {
        let lock = client.lock(format!("lost{polls}")).ttl(LONG);
        let cut = dropped_after(polls, lock.acquire_within(Duration::from_millis(100)));
        assert!(!matches!(patiently("an answer", cut).await, Some(Ok(_))));
    }
    for proxy in &nodes.proxies()[1..] {
        proxy.cut();
    }
    nodes.heal().await;
    nodes.all_take_part(&client).await;
    nodes.no_keys_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_may_be_aborted_and_guards_dropped_at_any_time() {
    let nodes = Nodes::start();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(nodes.client().await);
    }
    for round in 0..5_u64 {
        let tasks: Vec<_> = (0..32_usize)
            .map(|index| {
                let lock = clients[index % clients.len()].lock("x").ttl(LONG);
                tokio::spawn(async move {
                    while let Ok(guard) = lock.acquire().await {
                        tokio::task::yield_now().await;
                        drop(guard);
                    }
                })
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(20 * round)).await;
        for task in tasks {
            task.abort();
            let _ = patiently("the end of a task", task).await;
        }
        let guard = take(&clients[0].lock("x").ttl(LONG)).await;
        guard.release().await.unwrap();
    }
    nodes.no_keys_left().await;
}
