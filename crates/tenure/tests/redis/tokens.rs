//! Tokens grow, whatever a server forgets and whatever its clock does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Guard, Loss, Tenure};
use tenure_testkit::servers::{Redis, Sentinel, wait_until};

use crate::failover::{LONG, Tokens, connect, end, lose, record, soon};

/// A Redis whose clock the test sets.
fn shifted() -> Redis {
    Redis::builder().shifted_clock().start()
}

async fn grant(tenure: &Tenure, name: &str) -> Guard {
    soon("a grant", tenure.lock(name).ttl(LONG).acquire()).await.unwrap()
}

/// Takes a name alone, in a session, and in a crowd of local tasks with blocks of tokens; every token is above the one
/// before it.
async fn take(tenure: &Tenure, name: &str, tokens: &mut Tokens) {
    let alone = grant(tenure, name).await;
    tokens.next(&alone);
    alone.release().await.unwrap();
    let own = soon("a grant", tenure.session().lock(name).ttl(LONG).acquire()).await.unwrap();
    tokens.next(&own);
    own.release().await.unwrap();
    // Each notes its token while it holds; they hand whole blocks on among themselves.
    let given = Arc::new(Mutex::new(Vec::new()));
    let crowd = (0..40).map(|_| {
        let (lock, given) = (tenure.lock(name).ttl(LONG), given.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            given.lock().unwrap().push(guard.token().unwrap());
            guard.release().await.unwrap();
        })
    });
    for task in crowd.collect::<Vec<_>>() {
        soon("somebody's turn", task).await.unwrap();
    }
    for token in given.lock().unwrap().iter() {
        tokens.above(*token);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_across_a_restart_that_forgets_and_across_a_flush() {
    let server = Redis::start();
    let mut tokens = Tokens::default();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    take(&a, "x", &mut tokens).await;
    take(&b, "x", &mut tokens).await;
    server.restart();
    take(&b, "x", &mut tokens).await;
    take(&a, "x", &mut tokens).await;
    let held = grant(&a, "x").await;
    tokens.next(&held);
    assert_eq!(server.cli(&["flushall"]), "OK");
    take(&b, "x", &mut tokens).await;
    assert!(held.is_held(), "nobody has told it: only the tokens protect");
    server.cli(&["client", "kill", "type", "pubsub"]);
    assert_eq!(soon("it is told at its next renewal", held.lost()).await, Loss::Gone);
    server.restart();
    let late = connect(server.url()).await;
    take(&late, "x", &mut tokens).await;
    drop(held);
    end([a, b, late], &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_across_failovers() {
    let sentinel = Sentinel::start();
    let mut tokens = Tokens::default();
    let (a, b) = (connect(sentinel.url()).await, connect(sentinel.url()).await);
    take(&a, "x", &mut tokens).await;
    sentinel.failover();
    // Until the old master is told, it grants to whoever is still connected to it, and that is lost.
    sentinel.wait_until_whole();
    take(&b, "x", &mut tokens).await;
    take(&a, "x", &mut tokens).await;
    sentinel.wait_until_whole();
    // The last ones no replica has heard of, and neither has who comes later.
    lose(&sentinel, async || take(&a, "x", &mut tokens).await).await;
    let late = connect(sentinel.url()).await;
    take(&late, "x", &mut tokens).await;
    take(&b, "x", &mut tokens).await;
    take(&a, "x", &mut tokens).await;
    end([a, b, late], &[sentinel.master()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_the_servers_clock_steps_back() {
    let server = shifted();
    let mut tokens = [Tokens::default(), Tokens::default(), Tokens::default()];
    let a = connect(server.url()).await;
    take(&a, "x", &mut tokens[0]).await;
    let held = grant(&a, "held").await;
    tokens[1].next(&held);
    let block = grant(&a, "once").await;
    tokens[2].next(&block);
    block.release().await.unwrap();
    server.shift_clock(-60);
    // A client that has seen nothing: the server alone must know.
    let b = connect(server.url()).await;
    for client in [&b, &a, &b] {
        take(client, "x", &mut tokens[0]).await;
        take(client, "once", &mut tokens[2]).await;
    }
    assert!(held.is_held());
    held.release().await.unwrap();
    take(&b, "held", &mut tokens[1]).await;
    end([a, b], &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_has_seen_counts_if_a_forgetful_server_is_a_little_behind() {
    let server = shifted();
    let mut tokens = Tokens::default();
    let a = connect(server.url()).await;
    take(&a, "x", &mut tokens).await;
    server.kill();
    server.shift_clock(-5);
    server.restart();
    assert!((-7..=-3).contains(&server.clock_ahead()));
    take(&a, "x", &mut tokens).await;
    // What it was given there counts for whoever comes.
    let b = connect(server.url()).await;
    take(&b, "x", &mut tokens).await;
    end([a, b], &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_client_has_seen_does_not_count_if_it_is_far_ahead() {
    let server = shifted();
    server.shift_clock(60);
    let a = connect(server.url()).await;
    let ahead = grant(&a, "x").await;
    let token = ahead.token().unwrap();
    ahead.release().await.unwrap();
    server.kill();
    server.shift_clock(0);
    server.restart();
    // No clock from the future poisons a server that does not know it.
    let now = grant(&a, "x").await;
    assert!(now.token().unwrap() < token);
    now.release().await.unwrap();
    let again = grant(&a, "x").await;
    assert!(again.token().unwrap() < token);
    again.release().await.unwrap();
    end([a], &[&server]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_in_the_store_and_only_tokens_protect() {
    let server = shifted();
    let (a, b) = (connect(server.url()).await, connect(server.url()).await);
    let mut tokens = Tokens::default();
    let lock = a.lock("x").ttl(Duration::from_secs(50));
    let held = soon("a grant", lock.acquire()).await.unwrap();
    drop(lock);
    let token = tokens.next(&held);
    let deadline = held.deadline();
    server.shift_clock(60);
    wait_until("the store has forgotten it", || server.cli(&["exists", &record("x")]) == "0");
    let next = grant(&b, "x").await;
    tokens.next(&next);
    assert!(held.is_held() && held.token() == Some(token) && held.deadline() == deadline, "two leases: as documented");
    server.cli(&["client", "kill", "type", "pubsub"]);
    assert_eq!(soon("it is told at its next renewal", held.lost()).await, Loss::Gone);
    assert!(next.is_held());
    next.release().await.unwrap();
    drop(held);
    take(&a, "x", &mut tokens).await;
    end([a, b], &[&server]).await;
}
