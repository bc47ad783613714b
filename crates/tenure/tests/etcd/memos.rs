//! Memos: keys beside those of the queues, their leases, and answers that never come; and etcd's time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tenure::backend::{Backend as _, ClaimRequest, Memo, MemoKind, MemoWrite, MemoWritten};
use tenure::backends::etcd::EtcdBackend;
use tenure::clock::SystemClock;
use tenure::{Certainty, Token};
use tenure_testkit::servers::{Etcd, Proxy, shared};

use crate::support::{LONG, connect, has_key, leases, name, request, soon, stands, store, until};

fn write_of(holds: &ClaimRequest, token: Token, text: &str) -> MemoWrite {
    MemoWrite {
        id: holds.id,
        owner: holds.owner.clone(),
        number: None,
        token,
        after: 0,
        write: u64::from_str_radix(&tenure::ClaimId::random().to_string(), 16).unwrap(),
        kind: MemoKind::User,
        keep: None,
        bytes: text.as_bytes().into(),
    }
}

async fn reads(store: &EtcdBackend, of: &str) -> Option<Memo> {
    soon("a memo", store.memo(&name(of))).await.unwrap()
}

async fn writes(store: &EtcdBackend, of: &str, write: &MemoWrite) -> u64 {
    match soon("a memo's answer", store.write_memo(&name(of), write.clone())).await.unwrap() {
        MemoWritten::Done { version } => version,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_answer_was_lost_is_one_write_when_it_is_repeated() {
    let etcd = shared::etcd();
    let proxy = Proxy::to(etcd.address(0)).await;
    let url = etcd.url_of([proxy.address()].into_iter(), "");
    let a = soon("connecting", EtcdBackend::open(&url, Arc::new(SystemClock))).await.unwrap();
    let b = store(etcd, Arc::new(SystemClock)).await;
    let holds = request(LONG);
    let token = stands(&a, "memo-lost", &holds).await.state.unwrap().token;
    let write = write_of(&holds, token, "once");
    // Its answer is on its way for a while, and never arrives.
    a.time().await.unwrap();
    proxy.delay_replies(Duration::from_secs(1));
    let unanswered = tokio::spawn(a.write_memo(&name("memo-lost"), write.clone()));
    until("it is written", async || reads(&b, "memo-lost").await.is_some()).await;
    proxy.cut();
    proxy.delay_replies(Duration::ZERO);
    let error = soon("the failure", unanswered).await.unwrap().unwrap_err();
    assert_eq!(error.certainty(), Certainty::Unknown, "{error}");
    let written = reads(&b, "memo-lost").await.unwrap();
    let again = async {
        loop {
            match a.write_memo(&name("memo-lost"), write.clone()).await {
                Ok(answer) => return answer,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    assert_eq!(soon("the same write", again).await, MemoWritten::Done { version: written.version });
    assert_eq!(reads(&b, "memo-lost").await.unwrap().version, written.version, "no second write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_lives_by_no_lease_but_its_own() {
    // All leases are looked at, so it is nobody else's.
    let etcd = Etcd::builder().members(1).start();
    let a = store(&etcd, Arc::new(SystemClock)).await;
    let holds = request(LONG);
    let token = stands(&a, "memo-lease", &holds).await.state.unwrap().token;
    let before = leases(&etcd);
    let short = MemoWrite { keep: Some(LONG), ..write_of(&holds, token, "for a while") };
    let version = writes(&a, "memo-lease", &short).await;
    let own: Vec<String> = leases(&etcd).into_iter().filter(|lease| !before.contains(lease)).collect();
    assert_eq!(own.len(), 1, "{own:?}");
    for lease in &before {
        etcd.etcdctl(&["lease", "revoke", lease]);
    }
    let memo = reads(&a, "memo-lease").await.expect("its writer's lease is gone, not the memo");
    assert_eq!((memo.version, memo.token), (version, token));
    let refused = MemoWrite { after: version, ..write_of(&holds, token, "late") };
    let answer = soon("an answer", a.write_memo(&name("memo-lease"), refused)).await.unwrap();
    assert_eq!(answer, MemoWritten::NotHolder, "its key is gone");

    let next = request(LONG);
    let token = stands(&a, "memo-lease", &next).await.state.unwrap().token;
    let kept = MemoWrite { after: version, ..write_of(&next, token, "for ever") };
    writes(&a, "memo-lease", &kept).await;
    // Nobody else ends the lease of the memo that was written over.
    until("that lease is given back", async || !leases(&etcd).contains(&own[0])).await;
    for lease in leases(&etcd) {
        etcd.etcdctl(&["lease", "revoke", &lease]);
    }
    assert_eq!(&*reads(&a, "memo-lease").await.unwrap().bytes, b"for ever", "it has no lease at all");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_is_no_lock_to_anybody_who_looks() {
    let etcd = Etcd::builder().members(1).start();
    let tenure = connect(&etcd.url()).await;
    for name in ["memo/listed", "memo/listed/below", "memo"] {
        let guard = tenure.lock(name).ttl(LONG).acquire().await.unwrap();
        guard.write_memo_for("kept", LONG).await.unwrap();
        let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", &format!("{name}/")]);
        let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
        assert_eq!(keys.len(), 1, "the claim, and nothing else that others would wait for: {keys:?}");
        assert_eq!(tenure.list("").await.unwrap().len(), 1);
        guard.release().await.unwrap();
    }
    assert!(tenure.list("").await.unwrap().is_empty());
    for name in ["memo/listed", "memo"] {
        assert!(tenure.inspect(name).await.unwrap().is_free());
        let held = etcd.etcdctl(&["lock", name, "true"]);
        assert!(held.is_empty(), "etcdctl has the name at once: {held}");
        assert_eq!(&*tenure.memo(name).await.unwrap().unwrap().bytes, b"kept");
    }
    assert!(!has_key(&etcd, "memo/listed"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_with_rights_on_the_prefix_alone_writes_memos_and_is_told_the_time_within_tls_too() {
    for tls in [false, true] {
        let etcd = Etcd::builder().members(1).login("locker", "secret", "/locks/");
        let etcd = if tls { etcd.tls() } else { etcd }.start();
        let tenure = connect(&etcd.url()).await;
        let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
        guard.write_memo_for("one", LONG).await.unwrap();
        guard.write_memo("two").await.unwrap();
        let memo = tenure.memo("x").await.unwrap().unwrap();
        assert_eq!((&*memo.bytes, Some(memo.token)), (&b"two"[..], guard.token()));
        let clock = Arc::new(SystemClock);
        let store = soon("connecting", EtcdBackend::open(&etcd.url(), clock)).await.unwrap();
        let told = soon("the time", store.time()).await.unwrap();
        let own = SystemTime::now();
        let apart = own.duration_since(told).unwrap_or_else(|ahead| ahead.duration());
        assert!(apart < Duration::from_secs(120), "{told:?}, and here {own:?}: it runs on this machine");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_tells_whether_old_revisions_are_dropped() {
    let etcd = Etcd::builder().members(1).start();
    let store = store(&etcd, Arc::new(SystemClock)).await;
    let told = async || {
        let checkup = soon("a checkup", store.examine()).await.unwrap();
        let fact = checkup.facts.into_iter().find(|(name, _)| name == "revisions");
        fact.expect("it looks at them").1
    };
    for _ in 0..3 {
        etcd.etcdctl(&["put", "data", "x"]);
    }
    assert!(told().await.contains("are kept"), "nothing was compacted");
    etcd.etcdctl(&["compact", "3"]);
    assert_eq!(told().await, "old ones are dropped");
}
