//! Servers that do not agree on what sessions may be like.

use std::time::Duration;

use tenure::backend::{Backend, ClaimRequest, Event, RenewRequest, Renewed};
use tenure::{ErrorKind, Loss, Name};
use tenure_testkit::servers::{Proxy, Zookeeper};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Ear, claims, connect, name, raw, request, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_all_servers_allow_is_promised() {
    let servers =
        Zookeeper::builder().config_of(1, "maxSessionTimeout", "5000").config_of(2, "minSessionTimeout", "400").start();
    // A server that has just started may be too slow to be heard of; it is asked again by whoever comes.
    until("all are heard of", async || {
        let client = Ear::at(&servers.url()).await;
        let capabilities = client.backend.capabilities();
        let refused = client.backend.claim(&name("x"), request(Duration::from_secs(10))).await.err();
        (capabilities.ttl_min, capabilities.ttl_max) == (Duration::from_millis(400), Duration::from_secs(5))
            && refused.is_some_and(|refused| refused.to_string().contains("maxSessionTimeout is 5s"))
    })
    .await;
    until("the doctor says so", async || {
        let checkup = soon("a checkup", connect(&servers.url()).await.doctor()).await.unwrap();
        checkup.findings.iter().any(|found| found.what.contains("different limits"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ttl_that_nobody_chose_is_one_that_the_servers_allow() {
    for (setting, value, ttl) in [("maxSessionTimeout", "5000", 5), ("tickTime", "6000", 12)] {
        let server = Zookeeper::builder().members(1).config(setting, value).start();
        let tenure = connect(&server.url()).await;
        let guard = soon("a grant", tenure.lock("x").acquire()).await.unwrap();
        let view = tenure.inspect("x").await.unwrap();
        assert_eq!(view.holders[0].expires_in, Some(Duration::from_secs(ttl)), "{setting}");
        soon("a release", guard.release()).await.unwrap();
        let refused = tenure.lock("x").ttl(Duration::from_secs(10)).acquire().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "one that was asked for is refused: {refused}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_a_server_would_end_sooner_is_not_trusted() {
    let servers = Zookeeper::builder().config_of(1, "maxSessionTimeout", "5000").start();
    let address = |member: usize| format!("127.0.0.1:{}", servers.port(member));
    let (first, second) = (Proxy::to(address(0)).await, Switch::to(address(0)).await);
    let client = Ear::at(&format!("zookeeper://{},{}/limits", first.address(), second.address)).await;
    let (name, wish) = (name("x"), request(Duration::from_secs(30)));
    let standing = client.stands(&name, &wish).await;
    assert!(standing.state.is_ok());
    // Now only one server is to be had, and it has come back with another limit.
    second.turn_to(address(1));
    first.refuse(true).await;
    first.cut();
    let lost = |event: &Event| matches!(event, Event::Ended { id, number, loss: Loss::Gone } if *id == wish.id && *number == standing.number);
    until("it is known", async || client.heard(lost)).await;
    until("it is gone", async || renewed(&client, &name, &wish).await == Some(Renewed::Gone)).await;
    let raw = raw(&servers).await;
    until("its node goes", async || claims(&raw, "/limits/x").await.is_empty()).await;
    until("the limit is known", async || client.backend.capabilities().ttl_max == Duration::from_secs(5)).await;
    let short = request(Duration::from_secs(4));
    assert!(client.stands(&name, &short).await.state.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_does_not_go_to_a_server_that_was_not_heard_of() {
    let servers = Zookeeper::builder().config_of(1, "maxSessionTimeout", "5000").start();
    let address = |member: usize| format!("127.0.0.1:{}", servers.port(member));
    let (first, second) = (Proxy::to(address(0)).await, Proxy::to(address(1)).await);
    second.refuse(true).await;
    let client = Ear::at(&format!("zookeeper://{},{}/unheard", first.address(), second.address())).await;
    let (name, wish) = (name("x"), request(Duration::from_secs(30)));
    let standing = client.stands(&name, &wish).await;
    second.refuse(false).await;
    first.refuse(true).await;
    first.cut();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(second.connections(), 0, "it would end the session after five seconds");
    first.refuse(false).await;
    let stands = |renewed: &Renewed| matches!(renewed, Renewed::Stands(found) if found.number == standing.number);
    until("it is renewed", async || renewed(&client, &name, &wish).await.is_some_and(|renewed| stands(&renewed))).await;
    // Whoever makes another session asks again.
    let mut ttl = Duration::from_secs(4);
    until("the other is heard of", async || {
        let other = crate::support::name(&format!("y{}", ttl.as_millis()));
        assert!(client.stands(&other, &request(ttl)).await.state.is_ok());
        ttl += Duration::from_millis(1);
        client.backend.capabilities().ttl_max == Duration::from_secs(5)
    })
    .await;
}

/// What becomes of a claim that is renewed, if that is answered.
async fn renewed(client: &Ear, name: &Name, wish: &ClaimRequest) -> Option<Renewed> {
    let renewal = RenewRequest::of(name, wish);
    soon("a renewal", client.backend.renew(vec![renewal], false)).await.ok()?.value.pop()
}

/// A place where one server is, and then another.
struct Switch {
    address: String,
    to: tokio::sync::watch::Sender<String>,
}

impl Switch {
    async fn to(target: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (to, turned) = tokio::sync::watch::channel(target);
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut turned = turned.clone();
                let target = turned.borrow_and_update().clone();
                tokio::spawn(async move {
                    let Ok(mut server) = TcpStream::connect(target).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = turned.changed() => {}
                    }
                });
            }
        });
        Self { address, to }
    }

    /// Cuts all connections, and makes new ones to another server.
    fn turn_to(&self, target: String) {
        self.to.send(target).unwrap();
    }
}
