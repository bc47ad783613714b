//! Sessions that expire, and claims that go from one to another.

use std::time::Duration;

use tenure::backend::{Backend, ClaimRequest, Event, ReleaseRequest, Released, Renewed};
use tenure::{ErrorKind, Loss, Owner, Tenure};
use tenure_testkit::servers::shared;

use crate::support::{
    Ear, LONG, behind_a_proxy, claims, connect, name, raw, request, soon, until, until_waiting, waiting,
};

const SHORT: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_expired_is_a_loss_and_the_next_claim_has_a_new_one() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 0, "/expiry").await;
    let (a, b) = (connect(&url).await, connect(&servers.url_below("/expiry")).await);
    let held = a.lock("x").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    let token = held.token();
    proxy.freeze();
    let loss = soon("the loss", held.lost()).await;
    assert_eq!(loss, Loss::Expired, "at its own deadline: nobody can tell");
    let next = soon("the next one's turn", b.lock("x").ttl(LONG).acquire()).await.unwrap();
    assert!(next.token() > token);
    proxy.thaw();
    soon("a release", next.release()).await.unwrap();
    let again = soon("a grant", a.lock("x").ttl(Duration::from_secs(5)).acquire()).await.unwrap();
    assert!(again.token() > token && again.is_held());
    let deadline = again.deadline();
    until("it is renewed", async || again.deadline() > deadline).await;
    soon("a release", again.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_is_told_when_its_session_has_expired() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 1, "/told").await;
    let holder = Ear::at(&servers.url_below("/told")).await;
    let waiter = Ear::at(&url).await;
    let (name, held, waits) = (name("x"), request(LONG), request(SHORT));
    holder.stands(&name, &held).await;
    let standing = waiter.stands(&name, &waits).await;
    assert!(standing.state.is_err());
    proxy.freeze();
    let raw = raw(servers).await;
    until("the server ends its session", async || claims(&raw, "/told/x").await.len() == 1).await;
    proxy.thaw();
    let ended = |event: &Event| matches!(event, Event::Ended { id, number, loss: Loss::Gone } if *id == waits.id && *number == standing.number);
    until("it hears", async || waiter.heard(ended)).await;
    assert_eq!(waiter.renew(&name, &waits).await, Renewed::Gone);
    assert!(!waiter.heard(|event| matches!(event, Event::Granted { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_goes_on_in_a_new_session() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 2, "/anew").await;
    let (a, b) = (connect(&servers.url_below("/anew")).await, connect(&url).await);
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let next = waiting(&b, "x", Duration::from_secs(4));
    until_waiting(&a, "x", 1).await;
    proxy.freeze();
    until_waiting(&a, "x", 0).await;
    proxy.thaw();
    until_waiting(&a, "x", 1).await;
    soon("a release", held.release()).await.unwrap();
    let next = soon("its turn", next).await.unwrap().unwrap();
    assert!(next.is_held());
    soon("a release", next.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_cut_cost_no_claim() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 0, "/cut").await;
    let (a, b) = (connect(&servers.url_below("/cut")).await, connect(&url).await);
    let ttl = Duration::from_secs(10);
    for turn in 0..3 {
        let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
        let next = waiting(&b, "x", ttl);
        until_waiting(&a, "x", 1).await;
        proxy.cut();
        soon("a release", held.release()).await.unwrap();
        let next = soon(&format!("the waiter's turn {turn}"), next).await.unwrap().unwrap();
        // Cut again while it is still asked what the new connection is worth, a session would be given up.
        for _ in 0..2 {
            let deadline = next.deadline();
            until("it is renewed", async || next.deadline() > deadline).await;
            proxy.cut();
        }
        soon("a release", next.release()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_outlives_its_process_for_a_ttl_and_another_one_may_keep_it() {
    let servers = shared::zookeeper();
    let url = servers.url_below("/across");
    let ttl = Duration::from_secs(3);
    let (name, claim) = (name("x"), ClaimRequest { attempt: 7, ..request(ttl) });
    let first = Ear::at(&url).await;
    let standing = first.stands(&name, &claim).await;
    drop(first);
    let second = Ear::at(&url).await;
    for _ in 0..6 {
        let Renewed::Stands(renewed) = second.renew(&name, &claim).await else { panic!("it is gone") };
        assert_eq!(
            (renewed.number, renewed.state.unwrap().token),
            (standing.number, standing.state.clone().unwrap().token)
        );
        tokio::time::sleep(ttl / 3).await;
    }
    let third = Ear::at(&url).await;
    assert_eq!(
        third.backend.release(&name, ReleaseRequest::of(&claim).with_number(standing.number + 1)).await.unwrap(),
        Released::NotFound
    );
    assert_eq!(
        third.backend.release(&name, ReleaseRequest::of(&claim).with_number(standing.number)).await.unwrap(),
        Released::Yes
    );
    assert_eq!(second.renew(&name, &claim).await, Renewed::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_its_process_left_ends_with_its_ttl() {
    let servers = shared::zookeeper();
    let url = servers.url_below("/left");
    let (name, claim) = (name("x"), request(Duration::from_secs(4)));
    let (first, raw) = (Ear::at(&url).await, raw(servers).await);
    first.stands(&name, &claim).await;
    drop(first);
    assert_eq!(claims(&raw, "/left/x").await.len(), 1);
    until("it ends", async || claims(&raw, "/left/x").await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_attempt_takes_a_claim_over_and_the_one_before_cannot_end_it() {
    let url = shared::zookeeper().url_below("/attempts");
    let (name, one) = (name("x"), ClaimRequest { attempt: 1, ..request(LONG) });
    let two = ClaimRequest { attempt: 2, ..one.clone() };
    for elsewhere in [false, true] {
        let first = Ear::at(&url).await;
        let before = first.stands(&name, &one).await;
        let other = Ear::at(&url).await;
        let second = if elsewhere { &other } else { &first };
        let after = second.stands(&name, &two).await;
        assert_ne!(after.number, before.number);
        assert_eq!(after.state.clone().unwrap().token, before.state.unwrap().token, "it holds all the time");
        assert_eq!(
            first.backend.release(&name, ReleaseRequest::of(&one).with_number(before.number)).await.unwrap(),
            Released::NotFound
        );
        assert!(matches!(second.renew(&name, &two).await, Renewed::Stands(_)));
        assert_eq!(
            second.backend.release(&name, ReleaseRequest::of(&two).with_number(after.number)).await.unwrap(),
            Released::Yes
        );
        let lost = |event: &Event| matches!(event, Event::Ended { .. });
        assert!(!first.heard(lost) && !other.heard(lost));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_ttl_moves_a_claim_and_keeps_its_place() {
    let servers = shared::zookeeper();
    let client = Ear::at(&servers.url_below("/longer")).await;
    let short = Duration::from_secs(3);
    let (name, held, waits) = (name("x"), request(short), request(LONG));
    let before = client.stands(&name, &held).await;
    client.stands(&name, &waits).await;
    let longer = ClaimRequest { ttl: LONG, ..held.clone() };
    let Renewed::Stands(after) = client.renew(&name, &longer).await else { panic!("it is gone") };
    assert_eq!((after.number, after.ttl, after.state), (before.number, LONG, before.state));
    // Longer than it would live where it was.
    tokio::time::sleep(short * 3 / 2).await;
    assert!(matches!(client.renew(&name, &longer).await, Renewed::Stands(standing) if standing.state.is_ok()));
    assert!(matches!(client.renew(&name, &waits).await, Renewed::Stands(standing) if standing.state.is_err()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_no_session_can_have_is_refused_and_the_setting_named() {
    let url = shared::zookeeper().url_below("/range");
    let client = Ear::at(&url).await;
    let capabilities = client.backend.capabilities();
    assert_eq!((capabilities.ttl_min, capabilities.ttl_max), (Duration::from_millis(200), Duration::from_secs(130)));
    for (ttl, setting) in [(150, "minSessionTimeout is 200ms"), (131_000, "maxSessionTimeout is 130s")] {
        let refused = client.backend.claim(&name("x"), request(Duration::from_millis(ttl))).await.unwrap_err();
        assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains(setting), "{refused}");
    }
    let tenure = connect(&url).await;
    let refused = tenure.lock("x").ttl(Duration::from_secs(600)).acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_different_processes_share_a_claim() {
    let url = shared::zookeeper().url_below("/commands");
    let owner = Owner::new("deploy@web-1").unwrap();
    let taken: Tenure = connect(&url).await;
    let lock = taken.session_as(owner.clone()).lock("x").ttl(Duration::from_secs(20)).no_renewal().repeatable();
    let lease = lock.acquire().await.unwrap().leave();
    drop((lock, taken));
    let kept = connect(&url).await;
    let renewed = kept.renew_as("x", &owner, None).await.unwrap();
    assert_eq!(renewed.token, lease.token);
    drop(kept);
    let ended = connect(&url).await;
    assert!(ended.release_as("x", &owner).await.unwrap());
    assert!(!ended.release_as("x", &owner).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_claim_asked_for_by_two_clients_at_once_is_one_claim() {
    let servers = shared::zookeeper();
    let url = servers.url_below("/twice");
    let (one, two, raw) = (Ear::at(&url).await, Ear::at(&url).await, raw(servers).await);
    for turn in 0..20 {
        let name = name(&format!("x{turn}"));
        let wish = ClaimRequest { attempt: 7, ..request(LONG) };
        let (first, second) = tokio::join!(one.stands(&name, &wish), two.stands(&name, &wish));
        assert!(first.state.is_ok() && second.state.is_ok(), "{first:?} {second:?}");
        let nodes = claims(&raw, &format!("/twice/x{turn}")).await;
        assert_eq!(nodes.len(), 1, "{nodes:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttls_that_are_used_no_more_make_room_for_others() {
    let client = Ear::at(&shared::zookeeper().url_below("/ttls")).await;
    let name = name("x");
    for millis in 0..40 {
        let wish = request(LONG + Duration::from_millis(millis));
        client.stands(&name, &wish).await;
        client.backend.release(&name, ReleaseRequest::of(&wish)).await.unwrap();
    }
    let mut taken = 0;
    let claim = |millis| client.backend.claim(&name, request(LONG + Duration::from_millis(millis)));
    // A session that nobody uses is in use for the moment it takes to look after it.
    until("there is room for all", async || {
        taken += u64::from(claim(taken).await.is_ok());
        taken == 32
    })
    .await;
    let refused = claim(taken).await.unwrap_err();
    assert!(refused.kind() == ErrorKind::Invalid && refused.to_string().contains("32 different ttls"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_who_need_a_session_that_cannot_be_had_are_told_together() {
    let (proxy, url) = behind_a_proxy(shared::zookeeper(), 1, "/away").await;
    let client = Ear::at(&url).await;
    let (name, ttl) = (name("x"), Duration::from_secs(4));
    proxy.refuse(true).await;
    proxy.cut();
    let asked: Vec<_> = (0..8).map(|_| tokio::spawn(client.backend.claim(&name, request(ttl)))).collect();
    let answers = async {
        for answer in asked {
            let refused = answer.await.unwrap().unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        }
    };
    // Each by itself would try for eight seconds, after all before it.
    soon("an answer to all", answers).await;
    proxy.refuse(false).await;
    assert!(client.stands(&name, &request(ttl)).await.state.is_ok());
}
