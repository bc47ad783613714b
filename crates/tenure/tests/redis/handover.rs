//! Who is next, and how it hears of it.

use std::time::Duration;

use tenure::backend::{Backend as _, Claimed};
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure::{Loss, Name, Tenure};
use tenure_testkit::servers::Proxy;

use crate::relay::Relay;
use crate::support::{LONG, Server, dies_after, granted, patiently, request, until, waiters, waiting};
use crate::wire::Monitor;

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_message_is_lost_is_heard_of_at_the_next_renewal() {
    let server = Server::start();
    let relay = Relay::to(&server.address());
    let (a, b) = (server.client().await, Tenure::connect(relay.url()).await.unwrap());
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(Duration::from_secs(9)));
    waiters(&a, "x", 1).await;
    relay.swallow_grants(true);
    held.release().await.unwrap();
    until("the message is lost", async || relay.swallowed() == 1).await;
    let holder = a.inspect("x").await.unwrap().holders[0].claims[0].0;
    let guard = granted(waits).await;
    assert_eq!(guard.claim_id(), holder, "the very grant that was told of");
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_whose_message_goes_down_with_the_connection_is_heard_of_on_the_next_one() {
    let server = Server::start();
    let proxy = Proxy::to(server.address()).await;
    let (a, b) = (server.client().await, Tenure::connect(format!("redis://{}", proxy.address())).await.unwrap());
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    let waiter = waiters(&a, "x", 1).await.waiters[0].claim.0;
    proxy.freeze();
    held.release().await.unwrap();
    until("the grant", async || a.inspect("x").await.unwrap().waiters.is_empty()).await;
    assert!(!waits.is_finished());
    proxy.cut();
    proxy.thaw();
    let guard = granted(waits).await;
    assert_eq!(guard.claim_id(), waiter);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_take_over_in_turn_when_the_holder_has_died_and_do_not_poll_for_it() {
    let server = Server::start();
    let ttl = Duration::from_secs(4);
    dies_after(server.url(), async move |client| {
        std::mem::forget(client.lock("x").ttl(ttl).acquire().await.unwrap());
    })
    .await;
    until("its connections are gone", async || server.connections(true).is_empty()).await;
    let mut clients = Vec::new();
    let mut tasks = Vec::new();
    let mut monitor = Monitor::start(&server);
    for number in 0..3 {
        let client = server.client().await;
        tasks.push(waiting(&client.lock("x").ttl(LONG)));
        clients.push(client);
        waiters(&clients[0], "x", number + 1).await;
    }
    let view = clients[0].inspect("x").await.unwrap();
    assert_eq!(view.holders[0].label.as_deref(), Some("the dead"));
    let mut last = view.holders[0].token;
    monitor.commands();
    for task in tasks {
        let guard = granted(task).await;
        assert!(guard.token() > last);
        last = guard.token();
        guard.release().await.unwrap();
    }
    // Each asks once when the holder must be dead, or hears of its grant before; then it releases.
    let scripts = monitor.commands().into_iter().filter(|command| command == "evalsha").count();
    assert!((4..=9).contains(&scripts), "{scripts} commands");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_died_is_passed_over_and_costs_nobody_its_ttl() {
    let server = Server::start();
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let watching = a.clone();
    dies_after(server.url(), async move |client| {
        let lock = client.lock("x").ttl(LONG);
        let waits = Box::pin(async move { lock.acquire().await });
        std::mem::forget(tokio::spawn(waits));
        waiters(&watching, "x", 1).await;
    })
    .await;
    until("its inbox is gone", async || server.connections(true).len() == 2).await;
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 2).await;
    held.release().await.unwrap();
    // The dead one has ten minutes.
    let guard = granted(waits).await;
    let view = a.inspect("x").await.unwrap();
    assert_eq!(view.waiters[0].label.as_deref(), Some("the dead"), "it kept a place, behind");
    guard.release().await.unwrap();
    server.cli(&["flushall"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_waiter_is_never_passed_over() {
    let ttl = Duration::from_secs(3);
    let server = Server::start().whose_dead_live_for(ttl);
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let watching = a.clone();
    dies_after(server.url(), async move |client| {
        let lock = client.lock("x").ttl(ttl).strict_fifo();
        std::mem::forget(tokio::spawn(async move { lock.acquire().await }));
        waiters(&watching, "x", 1).await;
    })
    .await;
    until("its inbox is gone", async || server.connections(true).len() == 2).await;
    let waits = waiting(&b.lock("x").ttl(LONG));
    until("the living waits too", async || {
        a.inspect("x").await.unwrap().waiters.iter().any(|one| one.label.as_deref() != Some("the dead"))
    })
    .await;
    let dead_waits = a.inspect("x").await.unwrap().waiters.len() == 2;
    let number = a.inspect("x").await.unwrap().waiters[0].claim.1;
    held.release().await.unwrap();
    let view = a.inspect("x").await.unwrap();
    assert!(dead_waits, "the machine is too slow for this test");
    assert_eq!(view.holders[0].label.as_deref(), Some("the dead"));
    assert!(!waits.is_finished());
    let guard = granted(waits).await;
    assert!(guard.token().unwrap().get() > number);
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_are_served_in_the_order_in_which_they_came() {
    let server = Server::start();
    let first = server.client().await;
    let held = first.lock("x").ttl(LONG).acquire().await.unwrap();
    let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..8 {
        let (client, order) = (server.client().await, order.clone());
        let lock = client.lock("x").ttl(LONG);
        tasks.push(tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            order.send((number, guard.token())).unwrap();
            guard.release().await.unwrap();
            drop(client);
        }));
        waiters(&first, "x", number + 1).await;
    }
    held.release().await.unwrap();
    let mut last = None;
    for number in 0..8 {
        let (who, token) = patiently("the next grant", came.recv()).await.unwrap();
        assert_eq!(who, number);
        assert!(token > last);
        last = token;
    }
    for task in tasks {
        patiently("the end of a task", task).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_evicted_hears_it_at_once_and_the_next_is_let_in() {
    let server = Server::start();
    let (a, b) = (server.client().await, server.client_as("an admin").await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 1).await;
    assert_eq!(b.break_holders("x", None, "stuck: \"really\" 100 %").await.unwrap(), 1);
    let loss = patiently("the loss", held.lost()).await;
    assert_eq!(loss, Loss::Broken { by: "an admin".to_owned(), reason: "stuck: \"really\" 100 %".to_owned() });
    let next = granted(waits).await;
    assert!(next.token() > held.token());
    next.release().await.unwrap();
    // The mark that tells the evicted is kept for its ttl.
    server.cli(&["flushall"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_names_are_listed_in_order_whatever_they_are_made_of() {
    let server = Server::start();
    let client = server.client().await;
    let backend = RedisBackend::open(server.url(), std::sync::Arc::new(SystemClock)).await.unwrap();
    let folders = ["a*b/", "a?b/", "[x]/", "[^x-z]/", "back\\slash/", "{br}ace/", "}{/", "-/", "ünï 中/", "plain/"];
    let mut names = Vec::new();
    for folder in folders {
        names.extend((0..200).map(|number| format!("{folder}{number:03}")));
    }
    let claims = names.iter().map(|name| backend.claim(&Name::new(name).unwrap(), request(LONG)));
    for claimed in futures_util::future::join_all(claims).await {
        assert!(matches!(claimed.unwrap().value, Claimed::Stands(standing) if standing.state.is_ok()));
    }
    names.sort();
    let listed = |views: Vec<tenure::machine::NameView>| -> Vec<String> {
        views.iter().map(|view| view.name.to_string()).collect()
    };
    assert_eq!(listed(patiently("the list", client.list("")).await.unwrap()), names);
    for folder in folders {
        let expected: Vec<_> = names.iter().filter(|name| name.starts_with(folder)).cloned().collect();
        assert_eq!(expected.len(), 200);
        assert_eq!(listed(client.list(folder).await.unwrap()), expected, "{folder}");
        assert_eq!(client.list(format!("{folder}19")).await.unwrap().len(), 10, "{folder}");
    }
    assert!(client.list("a").await.unwrap().len() == 400 && client.list("*").await.unwrap().is_empty());
    // Pages of every size put together give the same.
    for page in [1, 7, 256, 1000] {
        let mut after = None;
        let mut found = Vec::new();
        loop {
            let views = backend.scan("[", after.clone(), page).await.unwrap();
            assert!(views.len() <= page);
            let Some(last) = views.last() else { break };
            after = Some(last.name.clone());
            found.extend(listed(views));
        }
        assert_eq!(found.len(), 400, "pages of {page}");
        assert!(found.is_sorted());
    }
    server.cli(&["flushall"]);
}
