//! Answers that never come, and nodes that nobody knows of.

use std::time::Duration;

use tenure::Owner;
use tenure::backend::{Backend, BreakRequest, ClaimRequest, ReleaseRequest, RenewRequest};
use tenure_testkit::servers::shared;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::support::{Ear, LONG, behind_a_proxy, claims, name, raw, request, soon, until};

/// How the nodes of a claim begin.
fn begins(request: &ClaimRequest) -> String {
    let id = request.id.to_string();
    format!("_c_{}-{}-{}-", &id[..8], &id[8..12], &id[12..])
}

/// Makes the session that claims of this ttl are in, and the znode of their name: a claim is one request then.
async fn warm_up(client: &Ear, raw: &Client, path: &str, ttl: Duration) {
    let (name, wish) = (name("first"), request(ttl));
    client.stands(&name, &wish).await;
    client.backend.release(&name, ReleaseRequest::of(&wish)).await.unwrap();
    match raw.create(path, b"", &CreateMode::Persistent.with_acls(Acls::anyone_all())).await {
        Ok(_) | Err(zookeeper_client::Error::NodeExists) => {}
        Err(error) => panic!("{error}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_answer_was_lost_is_found_again_and_not_made_twice() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 0, "/answer").await;
    let raw = raw(servers).await;
    let (name, ttl) = (name("x"), Duration::from_secs(20));
    for turn in 0..3 {
        // A session that is cut off twice before the servers were asked about it is given up, on a busy machine.
        let (client, wish) = (Ear::at(&url).await, request(ttl));
        warm_up(&client, &raw, "/answer/x", ttl).await;
        proxy.drop_replies(true);
        let unanswered = tokio::spawn(client.backend.claim(&name, wish.clone()));
        until("it is made", async || claims(&raw, "/answer/x").await.len() == 1).await;
        if turn == 1 {
            // Whoever asked has left.
            unanswered.abort();
        }
        proxy.drop_replies(false);
        proxy.cut();
        let standing = client.stands(&name, &wish).await;
        let nodes = claims(&raw, "/answer/x").await;
        assert_eq!(nodes.len(), 1, "{nodes:?}");
        let (_, stat) = raw.get_data(&format!("/answer/x/{}", nodes[0])).await.unwrap();
        assert_eq!(u64::try_from(stat.czxid).unwrap(), standing.state.unwrap().token.get());
        let released = soon("a release", client.backend.release(&name, ReleaseRequest::of(&wish))).await.unwrap();
        assert_eq!(released, tenure::backend::Released::Yes);
        assert!(claims(&raw, "/answer/x").await.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_finds_a_claim_whose_answer_was_lost() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 1, "/release").await;
    let (client, raw) = (Ear::at(&url).await, raw(servers).await);
    let (name, wish) = (name("x"), request(Duration::from_secs(20)));
    warm_up(&client, &raw, "/release/x", wish.ttl).await;
    proxy.drop_replies(true);
    let unanswered = tokio::spawn(client.backend.claim(&name, wish.clone()));
    until("it is made", async || claims(&raw, "/release/x").await.len() == 1).await;
    unanswered.abort();
    proxy.drop_replies(false);
    proxy.cut();
    // One that is sent into the connection that was cut is not answered.
    let released = async {
        loop {
            match client.backend.release(&name, ReleaseRequest::of(&wish)).await {
                Ok(released) => return released,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    assert_eq!(soon("a release", released).await, tenure::backend::Released::Yes);
    assert!(claims(&raw, "/release/x").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_nobody_asks_for_again_does_not_live_as_long_as_its_process() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 2, "/orphan").await;
    let (client, raw) = (Ear::at(&url).await, raw(servers).await);
    let ttl = Duration::from_secs(6);
    let (kept, lost) = (name("kept"), name("lost"));
    let holds = request(ttl);
    client.stands(&kept, &holds).await;
    warm_up(&client, &raw, "/orphan/lost", ttl).await;
    proxy.drop_replies(true);
    let unanswered = tokio::spawn(client.backend.claim(&lost, request(ttl)));
    until("it is made", async || claims(&raw, "/orphan/lost").await.len() == 1).await;
    unanswered.abort();
    proxy.drop_replies(false);
    proxy.cut();
    // The session lives on for the other claim.
    until("it is removed", async || {
        // While the connection is made anew it is not answered.
        let renewal = RenewRequest { ttl, ..RenewRequest::of(&kept, &holds) };
        let _ = client.backend.renew(vec![renewal], false).await;
        claims(&raw, "/orphan/lost").await.is_empty()
    })
    .await;
    assert_eq!(claims(&raw, "/orphan/kept").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_of_another_session_is_not_taken_for_ones_own() {
    for (chroot, arrives) in [("/past", false), ("/past-too", true)] {
        the_node_of_another_session(chroot, arrives).await;
    }
}

/// `arrives` if the first request of the client takes effect, though nobody waits for its answer.
async fn the_node_of_another_session(chroot: &str, arrives: bool) {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 0, chroot).await;
    let (client, raw) = (Ear::at(&url).await, raw(servers).await);
    let (name, wish) = (name("x"), request(Duration::from_secs(20)));
    // A node as this very claim would have it, in a session that is not the client's.
    let other = Ear::at(&servers.url_below(chroot)).await;
    let before = other.stands(&name, &wish).await;
    let old = claims(&raw, &format!("{chroot}/x")).await;
    assert!(old.len() == 1 && old[0].starts_with(&begins(&wish)), "{old:?}");
    // The client has asked before, so that it looks for what it may have made.
    warm_up(&client, &raw, &format!("{chroot}/y"), wish.ttl).await;
    proxy.freeze();
    tokio::select! {
        biased;
        _ = client.backend.claim(&name, wish.clone()) => panic!("answered"),
        () = std::future::ready(()) => {}
    }
    if arrives {
        proxy.thaw();
    } else {
        proxy.cut();
        proxy.thaw();
    }
    let standing = client.stands(&name, &wish).await;
    assert_ne!(standing.number, before.number);
    let nodes = claims(&raw, &format!("{chroot}/x")).await;
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    assert!(nodes[0] != old[0] && standing.state.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_znode_of_an_idle_name_goes_and_comes_back() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/idle")).await, raw(servers).await);
    let name = name("orders/42");
    let mut last = 0;
    for _ in 0..2 {
        let wish = request(LONG);
        let token = client.stands(&name, &wish).await.state.unwrap().token.get();
        assert!(token > last);
        last = token;
        client.backend.release(&name, ReleaseRequest::of(&wish)).await.unwrap();
        until("the server removes it", async || raw.check_stat("/idle/orders%2F42").await.unwrap().is_none()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_parent_that_is_removed_under_ones_hands_is_made_again() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/hands")).await, raw(servers).await);
    let name = name("x");
    let remover = raw.clone();
    let removing = tokio::spawn(async move {
        loop {
            // It fails as long as there is a claim, as the server's own removal does.
            let _ = remover.delete("/hands/x", None).await;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    });
    let mut last = 0;
    for _ in 0..100 {
        let wish = request(LONG);
        let token = loop {
            match client.backend.claim(&name, wish.clone()).await {
                Ok(answer) => match answer.value {
                    tenure::backend::Claimed::Stands(standing) => break standing.state.unwrap().token.get(),
                    other => panic!("{other:?}"),
                },
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        };
        assert!(token > last);
        last = token;
        client.backend.release(&name, ReleaseRequest::of(&wish)).await.unwrap();
    }
    removing.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_a_claim_is_neither_heeded_nor_touched() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/other")).await, raw(servers).await);
    let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
    for path in ["/other/x", "/other/x/leases", "/other/x/note-1", "/other/x/99999999999999999999"] {
        raw.create(path, b"\xff not json", &options).await.unwrap();
    }
    let (name, wish) = (name("x"), request(LONG));
    assert!(client.stands(&name, &wish).await.state.is_ok());
    client.backend.release(&name, ReleaseRequest::of(&wish)).await.unwrap();
    assert_eq!(claims(&raw, "/other/x").await.len(), 3);
    let nobody = BreakRequest { owner: Some(Owner::random()), ..BreakRequest::all("me", "") };
    let broken = client.backend.break_holders(&name, nobody).await.unwrap();
    assert_eq!(broken, 0);
}
