//! What comes too late: a holder that slept past its deadline, and a claim that was given up before it arrived.

use std::time::Duration;

use tenure::fence::{Fence, Gate, Refused};
use tenure::{ErrorKind, Owner, Shape, Token};

use crate::process::{self, Process};
use crate::support::{KEPT, LONG, Nodes, answered, connect, patiently, take, until};

const SHORT: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_slept_past_its_deadline_writes_in_vain() {
    if process::is_other() {
        return process::play().await;
    }
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let gate = Gate::new(Vec::new());
    let test = "late::a_process_that_slept_past_its_deadline_writes_in_vain";
    let mut sleeper = Process::start(test, &nodes.patient_url(), SHORT);
    let mut last = Token(0);
    for _ in 0..2 {
        sleeper.go_on();
        let said = sleeper.hear("holds");
        let (token, owner) = said.split_once(' ').unwrap();
        let (token, owner) = (Token(token.parse().unwrap()), Owner::new(owner).unwrap());
        let fence = Fence::new(Some(token), &owner, Shape::Exclusive).unwrap();
        gate.write_as(&fence, |writes| writes.push(token)).unwrap();
        sleeper.signal("-STOP");
        let next = take(&client.lock("x").ttl(LONG)).await;
        assert!(last < token && token < next.token().unwrap(), "{last} {token} {:?}", next.token());
        last = next.token().unwrap();
        gate.write(&next, |writes| writes.push(last)).unwrap();
        sleeper.signal("-CONT");
        sleeper.go_on();
        // It knows, and whoever does not care to know is refused.
        assert_eq!(sleeper.hear("late"), "false");
        let late = gate.write_as(&fence, |writes| writes.push(token));
        assert!(matches!(late, Err(Refused::Stale { newer, .. }) if newer == last), "{late:?}");
        assert!(next.is_held());
        gate.write(&next, |writes| writes.push(last)).unwrap();
        next.release().await.unwrap();
    }
    let writes = gate.into_inner();
    assert!(writes.is_sorted() && writes.len() == 6, "{writes:?}");
    sleeper.kill();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_arrives_after_it_was_given_up_is_in_nobodys_way() {
    let nodes = Nodes::proxied().await;
    let slow = connect(&nodes.0.url_with("node_timeout=20ms")).await;
    let quick = connect(&nodes.fleet().url_with("node_timeout=250ms")).await;
    for proxy in &nodes.proxies()[..3] {
        proxy.delay_requests(Duration::from_millis(500));
    }
    for round in 0..3 {
        let name = format!("late{round}");
        let error = patiently("an answer", slow.lock(&name).ttl(LONG).try_acquire()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Quorum, "{error}");
        // What was sent is still on its way.
        let next = answered("an answer", async || quick.lock(&name).ttl(KEPT).try_acquire().await).await;
        let next = next.expect("the next attempt wins at once");
        if round == 1 {
            // It is free again when the late one arrives.
            next.release().await.unwrap();
        } else {
            tokio::time::sleep(Duration::from_millis(600)).await;
            let token = next.token().unwrap().to_string();
            // A node that still had the one given up when it was asked gets it with a renewal, unless the one given
            // up had proposed a higher token there: the clocks of two clients differ a little.
            let only_it = async || {
                let records = nodes.records(&name);
                assert!(next.is_held(), "lost: {records:?}");
                let (mine, others): (Vec<_>, Vec<_>) = records.iter().partition(|record| record.contains(&token));
                mine.len() >= 3 && others.iter().all(|record| record.is_empty())
            };
            until("most nodes have it, and none the one given up", only_it).await;
            next.release().await.unwrap();
        }
        nodes.no_keys_left().await;
    }
    nodes.heal().await;
    nodes.all_take_part(&slow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_minority_is_not_waited_for_and_keeps_nothing() {
    let nodes = Nodes::proxied().await;
    let (a, b) = (nodes.client().await, nodes.client().await);
    for proxy in &nodes.proxies()[3..] {
        proxy.delay(Duration::from_millis(80));
    }
    for _ in 0..20 {
        for client in [&a, &b] {
            // Where a busy machine delays a quick node past the slow ones, the name is free a moment later. What the
            // attempt before left would be in the way for its ttl, which is longer than anybody waits here.
            let guard = take(&client.lock("x").ttl(LONG)).await;
            patiently("the release", guard.release()).await.unwrap();
        }
    }
    until("the slow ones have nothing either", async || nodes.keys_left().is_empty()).await;
}
