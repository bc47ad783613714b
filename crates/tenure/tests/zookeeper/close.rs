//! What is left of a client that was closed, asked of the server.

use std::time::Duration;

use tenure::Owner;
use tenure_testkit::servers::Zookeeper;

use crate::support::{LONG, connect, until};

/// The sessions that a server has, with their ephemeral nodes below them.
fn sessions(server: &Zookeeper) -> String {
    let told = server.word(0, "dump").unwrap();
    let is_session = |line: &&str| line.trim().starts_with("0x") || line.trim().starts_with('/');
    told.lines().filter(is_session).map(|line| format!("{line}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_client_leaves_no_session_and_no_node() {
    let server = Zookeeper::builder().members(1).usual_ticks().start();
    assert_eq!(sessions(&server), "");
    for ttls in [&[][..], &[10], &[4, 10, 40]] {
        let tenure = connect(&server.url()).await;
        let mut guards = Vec::new();
        for seconds in ttls {
            let lock = tenure.lock(format!("for-{seconds}")).ttl(Duration::from_secs(*seconds));
            guards.push(lock.acquire().await.unwrap());
        }
        for guard in guards {
            let deadline = guard.deadline();
            if guard.remaining() < Duration::from_secs(4) {
                until("it is renewed", async || guard.deadline() > deadline).await;
            }
            guard.release().await.unwrap();
        }
        tenure.close().await.unwrap();
        assert_eq!(sessions(&server), "", "{ttls:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_dropped_closes_its_sessions_but_for_those_that_claims_live_by() {
    let server = Zookeeper::builder().members(1).start();
    let tenure = connect(&server.url()).await;
    tenure.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    drop(tenure);
    until("its sessions are closed", async || sessions(&server).is_empty()).await;

    let (tenure, owner) = (connect(&server.url()).await, Owner::random());
    let lock = tenure.session_as(owner.clone()).lock("left").ttl(LONG).no_renewal().repeatable();
    lock.acquire().await.unwrap().leave();
    drop(lock);
    tenure.close().await.unwrap();
    drop(tenure);
    until("one is left", async || sessions(&server).lines().filter(|line| line.contains("0x")).count() <= 2).await;
    assert!(sessions(&server).contains("/tenure/left/"), "{}", sessions(&server));
    let tenure = connect(&server.url()).await;
    assert!(tenure.release_as("left", &owner).await.unwrap());
}
