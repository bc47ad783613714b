//! What these tests share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::backend::{Backend, ClaimRequest, Claimed, Event, RenewRequest, Renewed, Standing};
use tenure::backends::zookeeper::ZookeeperBackend;
use tenure::clock::SystemClock;
use tenure::{Guard, Name, Tenure};
use tenure_testkit::plain_request;
use tenure_testkit::servers::{Proxy, Zookeeper};
use zookeeper_client::Client;

pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) async fn connect(url: &str) -> Tenure {
    Tenure::connect(url).await.unwrap()
}

/// Waits for what a server or another task does, for at most a minute.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

pub(crate) fn waiting(tenure: &Tenure, name: &str, ttl: Duration) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    let lock = tenure.lock(name).ttl(ttl);
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) async fn until_waiting(tenure: &Tenure, name: &str, count: usize) {
    until("they wait", async || tenure.inspect(name).await.is_ok_and(|view| view.waiters.len() == count)).await;
}

/// A client of the servers without tenure.
pub(crate) async fn raw(servers: &Zookeeper) -> Client {
    Client::connector().with_session_timeout(Duration::from_secs(30)).connect(&servers.servers()).await.unwrap()
}

/// The claims of a name, as znodes.
pub(crate) async fn claims(raw: &Client, path: &str) -> Vec<String> {
    raw.sync(path).await.unwrap();
    match raw.list_children(path).await {
        Ok(mut children) => {
            children.sort();
            children
        }
        Err(zookeeper_client::Error::NoNode) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// A backend, and what it tells.
pub(crate) struct Ear {
    pub(crate) backend: ZookeeperBackend,
    pub(crate) heard: Arc<Mutex<Vec<Event>>>,
}

impl Ear {
    pub(crate) async fn at(url: &str) -> Self {
        let backend = ZookeeperBackend::open(url, Arc::new(SystemClock)).await.unwrap();
        let heard = Arc::<Mutex<Vec<Event>>>::default();
        let hears = heard.clone();
        backend.listen(Arc::new(move |event| hears.lock().unwrap().push(event)));
        Self { backend, heard }
    }

    /// Claims, and claims again where that was not answered.
    pub(crate) async fn stands(&self, name: &Name, request: &ClaimRequest) -> Standing {
        let claimed = async {
            loop {
                match self.backend.claim(name, request.clone()).await {
                    Ok(answer) => return answer.value,
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
            }
        };
        match soon("a claim", claimed).await {
            Claimed::Stands(standing) => standing,
            other => panic!("{other:?}"),
        }
    }

    /// Renews, and again where it was not known what became of the claim.
    pub(crate) async fn renew(&self, name: &Name, request: &ClaimRequest) -> Renewed {
        let renewal = RenewRequest::of(name, request);
        let renewed = async {
            loop {
                match self.backend.renew(vec![renewal.clone()], false).await {
                    Ok(mut answer) => match answer.value.remove(0) {
                        Renewed::Unknown(_) => {}
                        known => return known,
                    },
                    Err(error) => assert!(error.is_retryable(), "{error}"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        soon("a renewal", renewed).await
    }

    pub(crate) fn heard(&self, wanted: impl Fn(&Event) -> bool) -> bool {
        self.heard.lock().unwrap().iter().any(wanted)
    }
}

pub(crate) fn request(ttl: Duration) -> ClaimRequest {
    ClaimRequest { ttl, ..plain_request() }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A proxy in front of one server, and the URL by which a client goes through it.
pub(crate) async fn behind_a_proxy(servers: &Zookeeper, member: usize, chroot: &str) -> (Proxy, String) {
    let proxy = Proxy::to(format!("127.0.0.1:{}", servers.port(member))).await;
    let url = format!("zookeeper://{}{chroot}", proxy.address());
    (proxy, url)
}
