//! What these tests share.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Backend as _, ClaimRequest, Claimed, RenewRequest, Renewed, Shape, Standing};
use tenure::backends::etcd::EtcdBackend;
use tenure::clock::Clock;
use tenure::{ClaimId, Guard, Name, Owner, Tenure};
use tenure_testkit::servers::Etcd;

/// Longer than any test waits.
pub(crate) const LONG: Duration = Duration::from_secs(600);

pub(crate) async fn connect(url: &str) -> Tenure {
    soon("connecting", Tenure::connect(url)).await.unwrap()
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

/// A task that waits for a name.
pub(crate) fn waiting(tenure: &Tenure, name: &str, ttl: Duration) -> tokio::task::JoinHandle<tenure::Result<Guard>> {
    let lock = tenure.lock(name).ttl(ttl);
    tokio::spawn(async move { lock.acquire().await })
}

pub(crate) async fn until_waiting(tenure: &Tenure, name: &str, count: usize) {
    until("they wait", async || tenure.inspect(name).await.is_ok_and(|view| view.waiters.len() == count)).await;
}

/// What a task that waited was given.
pub(crate) async fn turn(waiting: tokio::task::JoinHandle<tenure::Result<Guard>>) -> Guard {
    soon("the waiter's turn", waiting).await.unwrap().unwrap()
}

/// All leases, as etcdctl prints them.
pub(crate) fn leases(etcd: &Etcd) -> Vec<String> {
    let told = etcd.etcdctl(&["lease", "list"]);
    told.lines().skip(1).map(str::to_owned).collect()
}

/// Whether a key is there.
pub(crate) fn has_key(etcd: &Etcd, key: &str) -> bool {
    !etcd.etcdctl(&["get", "--keys-only", key]).is_empty()
}

/// Puts a value that is too long for a command line.
pub(crate) fn put_long(etcd: &Etcd, key: &str, value: &[u8]) {
    let mut put = etcd.etcdctl_command(&["put", key]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(value).unwrap();
    assert!(put.wait().unwrap().success());
}

/// A client below the engine, which renews and repeats nothing by itself.
pub(crate) async fn store(etcd: &Etcd, clock: Arc<dyn Clock>) -> EtcdBackend {
    soon("connecting", EtcdBackend::open(&etcd.url(), clock)).await.unwrap()
}

/// A claim that nobody else can join, and that waits for its turn.
pub(crate) fn request(ttl: Duration) -> ClaimRequest {
    ClaimRequest {
        id: ClaimId::random(),
        owner: Owner::random(),
        label: "a test".into(),
        shape: Shape::Exclusive,
        ttl,
        queue: true,
        block: 1,
        strict: false,
        inbox: "".into(),
        within: Vec::new(),
        reenter: None,
        solo: true,
        attempt: 0,
        presumed: Duration::ZERO,
    }
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

pub(crate) async fn stands(store: &EtcdBackend, of: &str, request: &ClaimRequest) -> Standing {
    let answer = soon("a claim's answer", store.claim(&name(of), request.clone())).await.unwrap();
    let Claimed::Stands(standing) = answer.value else { panic!("{:?}", answer.value) };
    standing
}

pub(crate) fn renewal(of: &str, request: &ClaimRequest) -> RenewRequest {
    RenewRequest::of(&name(of), request)
}

pub(crate) async fn renewed(store: &EtcdBackend, of: &str, request: &ClaimRequest) -> Renewed {
    let answer = soon("a renewal's answer", store.renew(vec![renewal(of, request)], false)).await.unwrap();
    answer.value.into_iter().next().unwrap()
}
