//! Claims that pass from client to client, as those of commands do: each call comes from a process of its own.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Backend, RenewRequest, Renewed};
use tenure::backends::zookeeper::ZookeeperBackend;
use tenure::{Owner, Token};
use tenure_testkit::ManualClock;
use tenure_testkit::servers::{Zookeeper, shared};

use crate::support::{LONG, connect, name, request, soon, until};

const TICK: Duration = Duration::from_secs(2);

/// `tenure acquire --owner`, by a client of its own: the token, and what is left of the lease.
async fn acquire(url: &str, owner: &Owner, name: &str, ttl: Duration) -> (Token, Duration) {
    let tenure = connect(url).await;
    let lock = tenure.session_as(owner.clone()).lock(name).ttl(ttl).no_renewal().repeatable();
    let guard = soon("a grant", lock.acquire()).await.unwrap();
    let held = (guard.token().unwrap(), guard.remaining());
    guard.leave();
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_repeat_renew_and_release_a_claim_on_a_server_as_most_are() {
    let url = shared::zookeeper_usual().url_below("/commands");
    for seconds in [4, 5, 10, 40] {
        let (ttl, owner) = (Duration::from_secs(seconds), Owner::random());
        let name = format!("for-{seconds}");
        let (token, _) = acquire(&url, &owner, &name, ttl).await;
        let (again, left) = acquire(&url, &owner, &name, ttl).await;
        assert_eq!(again, token, "the claim was made anew: {ttl:?}");
        assert!(left + TICK > ttl, "{left:?} of {ttl:?} is left: it waited for a tick");
        for asked in [None, Some(ttl)] {
            let renewed = soon("a renewal", connect(&url).await.renew_as(&name, &owner, asked)).await.unwrap();
            assert_eq!(renewed.token, Some(token));
            assert!(renewed.expires_in + TICK > ttl, "{:?} of {ttl:?} is left", renewed.expires_in);
        }
        assert!(connect(&url).await.release_as(&name, &owner).await.unwrap());
        assert!(connect(&url).await.inspect(&name).await.unwrap().is_free());
    }
}

/// A client whose clock stands still unless it is driven.
async fn client(servers: &Zookeeper, chroot: &str) -> (ZookeeperBackend, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    (ZookeeperBackend::open(&servers.url_below(chroot), clock.clone()).await.unwrap(), clock)
}

async fn renew(client: &ZookeeperBackend, renewal: &RenewRequest) -> Option<Renewed> {
    soon("a renewal", client.renew(vec![renewal.clone()], false)).await.ok()?.value.pop()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_comes_to_a_client_that_has_no_other_without_time_passing() {
    let servers = shared::zookeeper();
    let (name, wish) = (name("x"), request(LONG));
    let renewal = RenewRequest { ttl: Duration::ZERO, ..RenewRequest::of(&name, &wish) };
    let (first, _) = client(servers, "/no-time").await;
    first.claim(&name, wish).await.unwrap();
    let (second, clock) = client(servers, "/no-time").await;
    second.inspect(&name).await.unwrap();
    // Its session, should it have one for this ttl, is old by now; its clock stands still from here on.
    clock.advance(Duration::from_secs(30));
    let renewed = renew(&second, &renewal).await;
    assert!(matches!(renewed, Some(Renewed::Stands(_))), "{renewed:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_comes_to_a_session_that_others_live_by_once_that_is_known_to_outlive_it() {
    let servers = shared::zookeeper();
    let ttl = Duration::from_secs(20);
    let (name, other, wish, own) = (name("x"), name("own"), request(ttl), request(ttl));
    let renewal = RenewRequest { ttl: Duration::ZERO, ..RenewRequest::of(&name, &wish) };
    let (first, _) = client(servers, "/others").await;
    first.claim(&name, wish).await.unwrap();
    let (second, clock) = client(servers, "/others").await;
    second.claim(&other, own).await.unwrap();
    clock.advance(ttl / 2);
    // No time passes, so nothing can be known of that session: the claim stays where it is.
    let renewed = renew(&second, &renewal).await;
    assert!(!matches!(renewed, Some(Renewed::Stands(_))), "{renewed:?}");
    let driven = tokio::spawn(async move {
        loop {
            clock.advance(Duration::from_millis(1));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    until("it comes", async || matches!(renew(&second, &renewal).await, Some(Renewed::Stands(_)))).await;
    driven.abort();
}
