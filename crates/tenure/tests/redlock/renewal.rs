//! What a renewal does, and what it must not.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Backend, BreakRequest, ClaimRequest, Claimed, ReleaseRequest, Released, RenewRequest, Renewed};
use tenure::backends::redlock::RedlockBackend;
use tenure::clock::SystemClock;
use tenure::{Loss, Name};
use tenure_testkit::plain_request;

use crate::support::{KEPT, Nodes, Servers, TTL, answered, key, patiently, record, take, until};

/// A client with nothing of the engine, which asks all nodes and waits for them: nobody asks again for it.
pub(crate) async fn raw(nodes: &Nodes<impl Servers>) -> RedlockBackend {
    let url = nodes.url_with("node_timeout=1s");
    let backend = patiently("a connection", RedlockBackend::open(&url, Arc::new(SystemClock))).await.unwrap();
    let all = name("all");
    // A node that greets late is not asked until it has.
    until("all nodes take part", async || {
        let wish = request(false);
        let answer = answered("a claim", async || backend.claim(&all, wish.clone()).await).await;
        assert!(matches!(answer.value, Claimed::Stands(_)), "{answer:?}");
        let stored = || nodes.records("all").iter().all(|record| record.contains(&wish.id.to_string()));
        let take_part = (0..10).any(|_| stored());
        answered("its end", async || backend.release(&all, ReleaseRequest::of(&wish)).await).await;
        until("none has it", async || nodes.records("all").iter().all(String::is_empty)).await;
        take_part
    })
    .await;
    backend
}

/// What a renewal comes to when enough nodes have answered in time.
async fn renewed(backend: &RedlockBackend, request: &RenewRequest) -> Renewed {
    patiently("an answer", async {
        loop {
            let mut answers = backend.renew(vec![request.clone()], false).await.unwrap().value;
            assert_eq!(answers.len(), 1, "{answers:?}");
            match answers.remove(0) {
                Renewed::Unknown(_) => {}
                renewed => return renewed,
            }
        }
    })
    .await
}

pub(crate) fn request(queue: bool) -> ClaimRequest {
    ClaimRequest { ttl: KEPT, queue, solo: true, ..plain_request() }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_lengthens_the_claim_on_every_node() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let held = take(&client.lock("x").ttl(KEPT)).await;
    let ends = || -> Vec<i64> {
        nodes.nodes().iter().map(|node| node.cli(&["pexpiretime", &key("x")]).parse().unwrap()).collect()
    };
    until("all nodes have it", async || ends().iter().all(|end| *end > 0)).await;
    let mut before = ends();
    for _ in 0..2 {
        until("it ends later everywhere", async || {
            assert!(held.is_held(), "{:?}", held.renewal_failure());
            ends().iter().zip(&before).all(|(end, before)| end > before)
        })
        .await;
        before = ends();
    }
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_missed_the_grant_gets_the_claim_by_a_renewal() {
    let nodes = Nodes::proxied().await;
    let client = nodes.client().await;
    let away = &nodes.proxies()[4];
    away.refuse(true).await;
    away.cut();
    let held = take(&client.lock("x").ttl(KEPT)).await;
    let token = held.token().unwrap().to_string();
    until("four have it", async || nodes.records("x")[..4].iter().all(|record| record.contains(&token))).await;
    assert!(nodes.records("x")[4].is_empty(), "it was reached all the same");
    away.heal().await;
    until("the fifth has it too", async || {
        assert!(held.is_held(), "{:?}", held.renewal_failure());
        nodes.records("x")[4].contains(&token)
    })
    .await;
    held.release().await.unwrap();
    nodes.no_keys_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_claim_is_lost_with_who_and_why() {
    let nodes = Nodes::proxied().await;
    let holder = nodes.client().await;
    let breaker = tenure::Tenure::builder(nodes.fleet().url_with("node_timeout=250ms")).label("the breaker");
    let breaker = breaker.connect().await.unwrap();
    let broken = |loss: &Loss| match loss {
        Loss::Broken { by, reason } => by.contains("the breaker") && reason == "it is stuck",
        _ => false,
    };
    // The holder is told at once.
    let held = take(&holder.lock("x").ttl(Duration::from_secs(600))).await;
    assert_eq!(breaker.break_holders("x", None, "it is stuck").await.unwrap(), 1);
    let loss = patiently("the loss", held.lost()).await;
    assert!(broken(&loss), "{loss:?}");
    drop(held);
    // Or when it asks, if no message gets through to it.
    let held = take(&holder.lock("x").ttl(Duration::from_secs(10))).await;
    for proxy in nodes.proxies() {
        proxy.freeze();
    }
    assert_eq!(breaker.break_holders("x", None, "it is stuck").await.unwrap(), 1);
    for proxy in nodes.proxies() {
        proxy.cut();
    }
    nodes.heal().await;
    let loss = patiently("the loss", held.lost()).await;
    assert!(broken(&loss), "{loss:?}");
    let next = take(&breaker.lock("x").ttl(TTL)).await;
    assert!(next.token() > held.token());
    drop((held, next));
    // The marks of the breaks live as long as the claims would have.
    for node in nodes.nodes() {
        node.cli(&[
            "eval",
            "for _, key in ipairs(redis.call('keys', 'tenure:redlock:*broken:*')) do redis.call('del', key) end",
            "0",
        ]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_renewal_brings_back_what_was_released_or_broken() {
    let nodes = Nodes::start();
    let (backend, other) = (raw(&nodes).await, raw(&nodes).await);
    let x = name("x");
    for broken in [false, true] {
        let request = request(false);
        let answer = answered("a claim", async || backend.claim(&x, request.clone()).await).await;
        let Claimed::Stands(standing) = answer.value else { panic!("{answer:?}") };
        if broken {
            let ended = patiently("a break", other.break_holders(&x, BreakRequest::all("me", "why"))).await;
            assert_eq!(ended.unwrap(), 1);
        } else {
            let released =
                patiently("a release", backend.release(&x, ReleaseRequest::of(&request).with_number(standing.number)))
                    .await;
            assert_eq!(released.unwrap(), Released::Yes);
        }
        until("it is gone everywhere", async || nodes.records("x").iter().all(String::is_empty)).await;
        // By whoever had it, and by others who only know its id.
        for backend in [&backend, &other, &backend] {
            let renewed = renewed(backend, &RenewRequest::of(&x, &request)).await;
            assert!(matches!(renewed, Renewed::Gone | Renewed::Broken { .. }), "{renewed:?}");
            assert!(nodes.records("x").iter().all(String::is_empty), "{:?}", nodes.records("x"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_does_not_take_what_somebody_else_has_by_now() {
    let nodes = Nodes::start();
    let (late, other) = (raw(&nodes).await, raw(&nodes).await);
    let x = name("x");
    let request_late = ClaimRequest { ttl: Duration::from_secs(1), ..request(false) };
    answered("a claim", async || late.claim(&x, request_late.clone()).await).await;
    until("it has run out", async || nodes.records("x").iter().all(String::is_empty)).await;
    let next = request(false);
    let answer = answered("a claim", async || other.claim(&x, next.clone()).await).await;
    assert!(matches!(answer.value, Claimed::Stands(_)), "{answer:?}");
    until("the other has it everywhere", async || nodes.records("x").iter().all(|record| !record.is_empty())).await;
    let held = nodes.records("x");
    let renewed = renewed(&late, &RenewRequest::of(&x, &request_late)).await;
    assert!(matches!(renewed, Renewed::Gone), "{renewed:?}");
    assert_eq!(nodes.records("x"), held);
}

/// As after an outage of a node that outlasts the ttl.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_where_the_claim_ran_out_takes_it_back() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let held = patiently("a free lock", client.lock("x").ttl(KEPT).acquire()).await.unwrap();
    for node in nodes.nodes() {
        // One after the other: what most have is put back.
        until("all nodes have it", async || nodes.records("x").iter().all(|record| !record.is_empty())).await;
        node.cli(&["del", &key("x")]);
        until("the node has it again", async || !record(node, "x").is_empty()).await;
    }
    assert!(held.is_held());
    held.release().await.unwrap();
    until("none has it", async || nodes.records("x").iter().all(String::is_empty)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_its_place_keeps_what_it_holds() {
    let nodes = Nodes::start();
    let backend = raw(&nodes).await;
    let wish = request(true);
    let answer = answered("an answer", async || backend.claim(&name("x"), wish.clone()).await).await;
    assert!(matches!(answer.value, Claimed::Stands(_)), "{answer:?}");
    until("all nodes have it", async || nodes.records("x").iter().all(|record| !record.is_empty())).await;
    patiently("an answer", backend.decline(&name("x"), wish.id)).await.unwrap();
    assert!(nodes.records("x").iter().all(|record| record.contains(&wish.id.to_string())));
    patiently("the end", backend.release(&name("x"), ReleaseRequest::of(&wish))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_may_be_dropped_by_any_thread() {
    let nodes = Nodes::start();
    let client = nodes.client().await;
    let held = patiently("a free lock", client.lock("x").ttl(TTL).acquire()).await.unwrap();
    std::thread::spawn(move || drop(held)).join().unwrap();
    nodes.no_keys_left().await;
}
