//! Memos: znodes beside those of the names, what they outlive, and answers that never come; and the servers' time.

use std::time::{Duration, SystemTime};

use tenure::backend::{Backend as _, ClaimRequest, Memo, MemoKind, MemoWrite, MemoWritten, ReleaseRequest};
use tenure::{Certainty, Token};
use tenure_testkit::servers::shared;

use crate::support::{Ear, LONG, behind_a_proxy, claims, connect, name, raw, request, soon, until};

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

async fn reads(client: &Ear, of: &str) -> Option<Memo> {
    soon("a memo", client.backend.memo(&name(of))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_answer_was_lost_is_one_write_when_it_is_repeated() {
    let servers = shared::zookeeper();
    let (proxy, url) = behind_a_proxy(servers, 0, "/memo-lost").await;
    let (a, b) = (Ear::at(&url).await, Ear::at(&servers.url_below("/memo-lost")).await);
    let holds = request(Duration::from_secs(20));
    let token = a.stands(&name("x"), &holds).await.state.unwrap().token;
    let first = write_of(&holds, token, "first");
    let written = soon("a write", a.backend.write_memo(&name("x"), first)).await.unwrap();
    let MemoWritten::Done { version } = written else { panic!("{written:?}") };
    // Its answer is on its way for a while, and never arrives.
    let write = MemoWrite { after: version, ..write_of(&holds, token, "once") };
    a.backend.time().await.unwrap();
    proxy.delay_replies(Duration::from_millis(500));
    let unanswered = tokio::spawn(a.backend.write_memo(&name("x"), write.clone()));
    until("it is written", async || reads(&b, "x").await.is_some_and(|memo| memo.version != version)).await;
    proxy.cut();
    proxy.delay_replies(Duration::ZERO);
    let error = soon("the failure", unanswered).await.unwrap().unwrap_err();
    assert_eq!(error.certainty(), Certainty::Unknown, "{error}");
    let written = reads(&b, "x").await.unwrap();
    let again = async {
        loop {
            match a.backend.write_memo(&name("x"), write.clone()).await {
                Ok(answer) => return answer,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
    };
    assert_eq!(soon("the same write", again).await, MemoWritten::Done { version: written.version });
    assert_eq!(reads(&b, "x").await.unwrap().version, written.version, "no second write");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_outlives_the_session_of_its_writer_and_is_no_lock_to_anybody_who_looks() {
    let servers = shared::zookeeper();
    let (tenure, raw) = (connect(&servers.url_below("/memo-seen")).await, raw(servers).await);
    let guard = tenure.lock("orders/42").ttl(LONG).acquire().await.unwrap();
    let version = guard.write_memo("kept").await.unwrap();
    let nodes = claims(&raw, "/memo-seen/orders%2F42").await;
    assert!(nodes.len() == 1 && nodes[0].contains("-lock-"), "what Curator sees is as it was: {nodes:?}");
    assert_eq!(tenure.list("").await.unwrap().len(), 1);
    let path = "/memo-seen/%%memos/df/orders%2F42";
    let (value, stat) = raw.get_data(path).await.unwrap();
    assert_eq!((stat.ephemeral_owner, u64::try_from(stat.mzxid).unwrap()), (0, version));
    assert!(value.ends_with(b"\nkept"), "{}", String::from_utf8_lossy(&value));
    guard.release().await.unwrap();
    tenure.close().await.unwrap();

    let other = connect(&servers.url_below("/memo-seen")).await;
    assert!(other.list("").await.unwrap().is_empty());
    let memo = other.memo("orders/42").await.unwrap().unwrap();
    assert_eq!((memo.version, &*memo.bytes), (version, &b"kept"[..]));
    let guard = other.lock("orders/42").ttl(LONG).acquire().await.unwrap();
    assert!(guard.write_memo("goes on").await.unwrap() > version);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_version_comes_again_once_a_memo_was_removed() {
    let servers = shared::zookeeper();
    let (client, raw) = (Ear::at(&servers.url_below("/memo-version")).await, raw(servers).await);
    let holds = request(LONG);
    let token = client.stands(&name("orders/42"), &holds).await.state.unwrap().token;
    let mut versions = Vec::new();
    for _ in 0..3 {
        let write = write_of(&holds, token, "again");
        let written = soon("a write", client.backend.write_memo(&name("orders/42"), write.clone())).await.unwrap();
        let MemoWritten::Done { version } = written else { panic!("{written:?}") };
        versions.push(version);
        raw.delete("/memo-version/%%memos/df/orders%2F42", None).await.unwrap();
        let late = MemoWrite { after: version, ..write_of(&holds, token, "late") };
        let answer = soon("an answer", client.backend.write_memo(&name("orders/42"), late)).await.unwrap();
        assert_eq!(answer, MemoWritten::Changed(None), "it is gone, and is not put back");
    }
    assert!(versions.is_sorted() && versions[0] < versions[1] && versions[1] < versions[2], "{versions:?}");
    client.backend.release(&name("orders/42"), ReleaseRequest::of(&holds)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_is_that_of_a_server() {
    let client = Ear::at(&shared::zookeeper().url_below("/memo-time")).await;
    let told = soon("the time", client.backend.time()).await.unwrap();
    let own = SystemTime::now();
    let apart = own.duration_since(told).unwrap_or_else(|ahead| ahead.duration());
    assert!(apart < Duration::from_secs(120), "{told:?}, and here {own:?}: it runs on this machine");
}
