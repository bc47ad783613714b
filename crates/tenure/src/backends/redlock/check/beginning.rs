//! A new fleet whose first client dies while it lets the nodes in, at every point of it.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tenure_testkit::servers::Fleet as Servers;

use super::super::RedlockBackend;
use super::super::wire;
use crate::backend::Backend as _;
use crate::backends::redis::node::{Dialect, Node};
use crate::backends::redis::place::Place;
use crate::backends::redis::script::BALLOT_KEYS;
use crate::backends::redis::url::Settings;
use crate::clock::SystemClock;
use crate::name::Name;

/// Longer than anything takes; a wait that gets here has failed.
const LIMIT: Duration = Duration::from_secs(30);

fn nodes(servers: &Servers) -> Vec<Arc<Node>> {
    let settings = Arc::new(Settings::parse(&servers.url()).unwrap());
    let runtime = tokio::runtime::Handle::current();
    let node = |address: &crate::backends::redis::url::Address| {
        let place = Place::at(&settings, address.clone());
        Node::new(place, Dialect::Ballots, Arc::default(), Arc::new(SystemClock), runtime.clone())
    };
    settings.addresses.iter().map(node).collect()
}

/// What a client leaves behind that said hello to all nodes and ended when it had let these in.
async fn half_made(nodes: &[Arc<Node>], let_in: impl Fn(usize) -> bool) {
    let mut names = Vec::new();
    for node in nodes {
        node.command(redis::cmd("FLUSHALL")).await.unwrap();
        let reply = node.call_and_keep(wire::hello(rand::random()), false).await.unwrap();
        names.push(wire::greeting(&reply.values[0]).unwrap().hello.blank.unwrap());
    }
    let fleet = names.iter().fold(0, |sum, name| sum ^ name);
    for (index, node) in nodes.iter().enumerate().filter(|(index, _)| let_in(*index)) {
        let floor = Some(crate::token::Token(1));
        let work = wire::admit(names[index], floor, fleet, nodes.len(), &names);
        assert_eq!(node.call_and_keep(work, false).await.unwrap().values[0], Value::Int(1));
    }
}

async fn members(nodes: &[Arc<Node>]) -> usize {
    let mut members = 0;
    for node in nodes {
        let mut command = redis::cmd("HGET");
        command.arg(BALLOT_KEYS[0]).arg("fleet");
        members += usize::from(node.command(command).await.unwrap() != Value::Nil);
    }
    members
}

/// The next client finds a quorum at once, gets a lock, and lets in all nodes.
async fn is_finished(servers: &Servers, nodes: &[Arc<Node>], case: &str) {
    let opened =
        tokio::time::timeout(LIMIT, RedlockBackend::open(&servers.url_with(super::PATIENT), Arc::new(SystemClock)))
            .await;
    let backend = opened.expect("an answer").unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(members(nodes).await, nodes.len(), "{case}");
    let name = Name::new("x").unwrap();
    let request = super::request(crate::owner::ClaimId(7), Duration::from_secs(30));
    let answer = backend.claim(&name, request).await.unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(matches!(answer.value, crate::backend::Claimed::Stands(_)), "{case}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_that_a_client_has_half_begun_is_finished_by_the_next() {
    for size in [3, 4, 5] {
        let servers = Servers::start(size);
        let nodes = nodes(&servers);
        for let_in in 0..1_u32 << size {
            half_made(&nodes, |index| let_in & 1 << index != 0).await;
            is_finished(&servers, &nodes, &format!("{size} nodes, let in: {let_in:0size$b}")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_may_die_at_any_point_of_its_connecting() {
    let servers = Servers::start(3);
    let nodes = nodes(&servers);
    for polls in 0.. {
        for node in &nodes {
            node.command(redis::cmd("FLUSHALL")).await.unwrap();
        }
        let url = servers.url();
        let mut opening = Box::pin(RedlockBackend::open(&url, Arc::new(SystemClock)));
        let mut left = polls;
        let opened = std::future::poll_fn(|context| match opening.as_mut().poll(context) {
            std::task::Poll::Ready(opened) => std::task::Poll::Ready(Some(opened)),
            std::task::Poll::Pending if left == 0 => std::task::Poll::Ready(None),
            std::task::Poll::Pending => {
                left -= 1;
                std::task::Poll::Pending
            }
        });
        let opened = tokio::time::timeout(LIMIT, opened).await.expect("an answer");
        drop(opening);
        is_finished(&servers, &nodes, &format!("left after {polls} polls")).await;
        if opened.is_some() {
            return;
        }
    }
}

/// A node that has served is not taken for one that was never let in: nobody knows what it has granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_lost_its_data_is_not_let_in_like_a_new_one() {
    let servers = Servers::start(3);
    let nodes = nodes(&servers);
    half_made(&nodes, |_| true).await;
    for node in &nodes[1..] {
        node.command(redis::cmd("FLUSHALL")).await.unwrap();
    }
    let opened =
        tokio::time::timeout(LIMIT, RedlockBackend::open(&servers.url_with(super::PATIENT), Arc::new(SystemClock)))
            .await;
    assert_eq!(opened.expect("an answer").unwrap_err().kind(), crate::ErrorKind::Quorum);
    assert_eq!(members(&nodes).await, 1);
}
