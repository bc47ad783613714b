//! Whoever waits is told by the nodes when to ask, the longest waiting first.

use std::sync::Arc;

use tenure::backend::{Backend as _, ClaimRequest, Claimed, Event, ReleaseRequest, Released};
use tenure::backends::redlock::RedlockBackend;
use tenure::{ClaimId, Owner};
use tenure_testkit::servers::{Fleet, Redis, wait_until};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::renewal::{name, raw, request};
use crate::support::{LIMIT, Nodes, answered, patiently, until};

/// A client, and the claims it was told to try again with.
struct Client {
    backend: RedlockBackend,
    told: UnboundedReceiver<ClaimId>,
}

impl Client {
    async fn new(nodes: &Nodes<Fleet>) -> Self {
        let backend = raw(nodes).await;
        let (sender, told) = unbounded_channel();
        backend.listen(Arc::new(move |event| {
            if let Event::TryNow { id, name, .. } = event {
                assert_eq!(name.as_str(), "x");
                let _ = sender.send(id);
            }
        }));
        Self { backend, told }
    }

    async fn ask(&self, request: &ClaimRequest) -> bool {
        let answer = answered("an answer", async || self.backend.claim(&name("x"), request.clone()).await).await;
        matches!(answer.value, Claimed::Stands(_))
    }

    /// Takes it as soon as it is free.
    async fn take(&self) -> ClaimId {
        let request = lasting(false);
        until("it is free", async || self.ask(&request).await).await;
        request.id
    }

    /// Asks, is refused, and waits from then on.
    async fn wait(&self) -> ClaimRequest {
        let request = lasting(true);
        assert!(!self.ask(&request).await, "it is free");
        request
    }

    async fn release(&self, id: ClaimId) -> Released {
        answered("the end", async || self.backend.release(&name("x"), ReleaseRequest::new(Owner::random(), id)).await)
            .await
    }

    async fn is_told(&mut self, id: ClaimId) {
        let told = patiently("the word that it is free", self.told.recv()).await;
        assert_eq!(told, Some(id));
    }
}

/// Longer than the test takes: nobody renews it.
fn lasting(queue: bool) -> ClaimRequest {
    ClaimRequest { ttl: LIMIT, ..request(queue) }
}

fn all_listen(nodes: &Nodes<Fleet>, clients: usize) {
    let listening = |node: &Redis| node.cli(&["pubsub", "channels", "tenure:inbox:*"]).lines().count();
    wait_until("all clients listen", || nodes.nodes().iter().all(|node| listening(node) == clients));
}

fn listed(nodes: &Nodes<Fleet>, count: usize) -> bool {
    nodes.nodes().iter().all(|node| node.cli(&["zcard", "tenure:redlock:{:x}waiters"]) == count.to_string())
}

/// How many scripts a node has run.
fn scripts_run(node: &Redis) -> u64 {
    let stats = node.cli(&["info", "commandstats"]);
    let calls = |command: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    };
    calls("evalsha") + calls("eval")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hand_over_costs_one_word_and_one_claim() {
    let nodes = Nodes::start();
    let (mut a, mut b) = (Client::new(&nodes).await, Client::new(&nodes).await);
    all_listen(&nodes, 2);
    let mut held = a.take().await;
    let mut scripts = 0;
    for _ in 0..10 {
        let waiting = b.wait().await;
        until("it waits on all nodes", async || listed(&nodes, 1)).await;
        let before = scripts_run(&nodes.nodes()[0]);
        assert_eq!(a.release(held).await, Released::Yes);
        b.is_told(waiting.id).await;
        assert!(b.ask(&waiting).await, "kept for somebody else");
        until("all nodes have it", async || {
            nodes.records("x").iter().all(|record| record.contains(&waiting.id.to_string()))
        })
        .await;
        scripts += scripts_run(&nodes.nodes()[0]) - before;
        held = waiting.id;
        std::mem::swap(&mut a, &mut b);
    }
    println!("{scripts} scripts for 10 hand-overs");
    assert_eq!(scripts, 20, "a release and a claim each");
    a.release(held).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_passes_its_turn_on() {
    let nodes = Nodes::start();
    let (holder, mut first, mut second) =
        (Client::new(&nodes).await, Client::new(&nodes).await, Client::new(&nodes).await);
    all_listen(&nodes, 3);
    // Before it is told, and after.
    for told in [false, true] {
        let held = holder.take().await;
        let (waits_first, waits_second) = (first.wait().await, second.wait().await);
        until("both wait on all nodes", async || listed(&nodes, 2)).await;
        if told {
            holder.release(held).await;
            first.is_told(waits_first.id).await;
        }
        first.release(waits_first.id).await;
        if !told {
            until("one waits", async || listed(&nodes, 1)).await;
            holder.release(held).await;
        }
        second.is_told(waits_second.id).await;
        until("it is free", async || second.ask(&waits_second).await).await;
        second.release(waits_second.id).await;
        nodes.no_keys_left().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_gone_is_passed_over() {
    let nodes = Nodes::start();
    let (holder, first, mut second) = (Client::new(&nodes).await, Client::new(&nodes).await, Client::new(&nodes).await);
    all_listen(&nodes, 3);
    let held = holder.take().await;
    first.wait().await;
    let waits_second = second.wait().await;
    until("both wait on all nodes", async || listed(&nodes, 2)).await;
    drop(first);
    all_listen(&nodes, 2);
    holder.release(held).await;
    second.is_told(waits_second.id).await;
    assert!(second.ask(&waits_second).await, "kept for the dead");
    second.release(waits_second.id).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_was_too_late_is_told_again() {
    let nodes = Nodes::start();
    let (holder, mut waiter) = (Client::new(&nodes).await, Client::new(&nodes).await);
    all_listen(&nodes, 2);
    let mut held = holder.take().await;
    let waiting = waiter.wait().await;
    for _ in 0..5 {
        until("it waits on all nodes", async || listed(&nodes, 1)).await;
        holder.release(held).await;
        waiter.is_told(waiting.id).await;
        // It dawdles, and somebody else has it when it asks.
        held = holder.take().await;
        assert!(!waiter.ask(&waiting).await, "two have it");
    }
    holder.release(held).await;
    waiter.release(waiting.id).await;
}
