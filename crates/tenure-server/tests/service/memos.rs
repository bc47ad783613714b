//! Memos: written by whoever holds, read by anyone who may, byte by byte.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tenure::backend::{Backend as _, ClaimRequest, Claimed, MemoKind, MemoWrite, MemoWritten};
use tenure::backends::http::HttpBackend;
use tenure::clock::SystemClock;
use tenure::{MEMO_BYTES_MAX, Name, Token};
use tenure_server::MEMO_BODY_BYTES_MAX;
use tenure_testkit::plain_request;

use crate::support::{Client, Look, Reply, and, instance, memory, name, over, redlock, wish};

/// A memo over none, by the owner and claim of `wish`.
fn memo(name: &str, owner: &str, token: u64, text: &[u8]) -> Value {
    json!({ "name": name, "owner": owner, "claim": "1", "token": token, "after": 0, "write": 1, "value": STANDARD.encode(text) })
}

async fn put(client: &Client, body: Value) -> Reply {
    client.call("PUT", "/v1/memo", Some(&body.to_string())).await
}

async fn get(client: &Client, name: &str) -> Reply {
    client.get(&format!("/v1/memo?name={name}")).await
}

fn version(reply: &Reply) -> u64 {
    reply.json()["version"].as_u64().unwrap_or_else(|| panic!("no version: {reply:?}"))
}

over!(what_the_holder_writes_anyone_reads: memory, postgres);

async fn what_the_holder_writes_anyone_reads(store: String) {
    let (one, two) = (instance(&store).await, instance(&store).await);
    let name = name("memo");
    get(&one, &name).await.tells_problem(404, "no_memo");
    let token = one.acquire(wish(&name, "o", 60_000)).await.is(200).token();
    // Markup, and what is no text.
    let bytes = b"<script>alert(1)</script>\0\xff\r\n\r\n";
    let written = put(&two, memo(&name, "o", token, bytes)).await.is(200);
    assert_eq!(written.json()["name"], name.as_str());
    for reply in [get(&one, &name).await, two.get(&format!("/v1/locks/{name}/memo")).await] {
        let reply = reply.is(200);
        assert_eq!(reply.body, bytes);
        let header = |name: &str| reply.headers[name].clone();
        assert_eq!(header("content-type"), "application/octet-stream");
        assert_eq!((header("x-content-type-options"), header("cache-control")), ("nosniff".into(), "no-store".into()));
        assert!(header("content-security-policy").contains("default-src 'none'"));
        assert_eq!(header("tenure-memo-token"), token.to_string());
        assert_eq!(header("tenure-memo-version"), version(&written).to_string());
        assert_eq!(header("tenure-memo-kind"), "user");
        assert!(header("tenure-memo-age-ms").parse::<u64>().unwrap() < 60_000);
    }
    // With the name in the path, and over what is there.
    let next =
        json!({ "owner": "o", "claim": "1", "token": token, "after": version(&written), "write": 2, "value": "" });
    let again = one.call("PUT", &format!("/v1/locks/{name}/memo"), Some(&next.to_string())).await.is(200);
    assert_ne!(version(&again), version(&written));
    assert!(get(&two, &name).await.is(200).body.is_empty());
    one.release(json!({ "name": name, "owner": "o", "claim": "1" })).await.is(200);
    get(&two, &name).await.is(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_is_one_write_and_anything_else_is_another() {
    let at = instance(&memory().await).await;
    let token = at.acquire(wish("x", "o", 60_000)).await.is(200).token();
    let first = memo("x", "o", token, b"one");
    let written = version(&put(&at, first.clone()).await.is(200));
    assert_eq!(version(&put(&at, first.clone()).await.is(200)), written);
    // The number of the write was used before, by a caller that does not count.
    let other = and(first.clone(), json!({ "value": STANDARD.encode("two") }));
    let refused = put(&at, other.clone()).await.tells_problem(412, "changed");
    assert_eq!(version(&refused), written);
    let second = version(&put(&at, and(other, json!({ "after": written }))).await.is(200));
    assert_eq!(get(&at, "x").await.is(200).body, b"two");
    // A late copy of the first.
    assert_eq!(version(&put(&at, first.clone()).await.tells_problem(412, "changed")), second);
    let none = and(memo("y", "o", 1, b""), json!({ "after": 5 }));
    let token = at.acquire(wish("y", "o", 60_000)).await.is(200).token();
    assert_eq!(version(&put(&at, and(none, json!({ "token": token }))).await.tells_problem(412, "changed")), 0);
    at.release(json!({ "name": "x", "owner": "o", "claim": "1" })).await.is(200);
    put(&at, first).await.tells_problem(410, "lost");
    assert_eq!(get(&at, "x").await.is(200).body, b"two");
}

over!(whoever_does_not_hold_is_told_why_and_writes_nothing: memory, postgres);

async fn whoever_does_not_hold_is_told_why_and_writes_nothing(store: String) {
    let at = instance(&store).await;
    let x = name("x");
    put(&at, memo(&x, "o", 1, b"nobody holds")).await.tells_problem(410, "lost");
    let held = at.acquire(wish(&x, "o", 60_000)).await.is(200);
    let token = held.token();
    let waiting = and(wish(&x, "p", 60_000), json!({ "queue": true }));
    at.acquire(waiting).await.is(202);
    put(&at, memo(&x, "p", token, b"waits")).await.tells_problem(409, "not_held");
    put(&at, memo(&x, "q", token, b"stranger")).await.tells_problem(410, "lost");
    put(&at, memo(&x, "o", token + 1, b"another token")).await.tells_problem(409, "not_held");
    // A retry has taken the claim over.
    let again = at.acquire(wish(&x, "o", 60_000)).await.is(200);
    assert_ne!(again.number(), held.number());
    let late = and(memo(&x, "o", token, b"late"), json!({ "number": held.number() }));
    put(&at, late).await.tells_problem(409, "superseded");
    let shared = name("shared");
    let reader = at.acquire(and(wish(&shared, "o", 60_000), json!({ "shared": true }))).await.is(200);
    put(&at, memo(&shared, "o", reader.token(), b"reader")).await.tells_problem(409, "not_held");
    at.delete(&format!("/v1/lock?name={x}&token={token}&reason=test&by=me")).await.is(200);
    let broken = put(&at, memo(&x, "o", token, b"broken")).await.tells_problem(410, "broken").json();
    assert_eq!((&broken["by"], &broken["reason"]), (&json!("me"), &json!("test")), "{broken}");
    for name in [&x, &shared] {
        get(&at, name).await.tells_problem(404, "no_memo");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_recipe_keeps_is_not_erased_by_another() {
    let at = instance(&memory().await).await;
    let token = at.acquire(wish("x", "o", 60_000)).await.is(200).token();
    let card = and(memo("x", "o", token, b"leader"), json!({ "kind": "election", "keep_ms": 60_000 }));
    let written = version(&put(&at, card).await.is(200));
    let refused = put(&at, and(memo("x", "o", token, b"user"), json!({ "after": written }))).await;
    assert_eq!(refused.tells_problem(409, "conflict").json()["memo_kind"], "election");
    assert_eq!(get(&at, "x").await.is(200).headers["tenure-memo-kind"], "election");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_has_no_part_in_it() {
    use crate::support::{TokenFile, instance_with};
    use tenure_server::Right;
    let file = TokenFile::of(&[("a", &[Right::Acquire, Right::Read], &[]), ("b", &[Right::Acquire], &[])]);
    let at = instance_with(&memory().await, |options| options.tokens = Some(file.path.clone())).await;
    let (a, b) = (at.with(file.secret("a")), at.with(file.secret("b")));
    let token = a.acquire(wish("x", "o", 60_000)).await.is(200).token();
    put(&b, memo("x", "o", token, b"the same owner of another user")).await.tells_problem(410, "lost");
    put(&a, memo("x", "o", token, b"mine")).await.is(200);
    get(&b, "x").await.tells_problem(403, "forbidden");
    // The id of a's write is a's own.
    put(&b, memo("x", "o", token, b"mine")).await.tells_problem(410, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memo_of_the_largest_size_is_taken_and_a_larger_one_is_not() {
    let store = memory().await;
    let (at, look) = (instance(&store).await, Look::at(&store).await);
    let token = at.acquire(wish("x", "o", 60_000)).await.is(200).token();
    // All of it slashes, which some escape.
    let largest = vec![0xff; MEMO_BYTES_MAX];
    let body = memo("x", "o", token, &largest).to_string().replace('/', "\\/");
    assert!(body.len() > 2 * MEMO_BYTES_MAX, "each is escaped");
    at.call("PUT", "/v1/memo", Some(&body)).await.is(200);
    assert_eq!(get(&at, "x").await.is(200).body, largest);
    let larger = put(&at, memo("x", "o", token, &vec![0; MEMO_BYTES_MAX + 1])).await.tells_problem(413, "too_large");
    assert_eq!(larger.json()["field"], "value");
    let much = memo("x", "o", token, &vec![0; MEMO_BODY_BYTES_MAX]);
    put(&at, much).await.tells_problem(413, "too_large");
    assert_eq!(look.counts("x").await, (1, 0));
    assert_eq!(get(&at, "x").await.is(200).body, largest);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_says_whether_it_keeps_memos_and_what_time_it_is() {
    let at = instance(&memory().await).await;
    let store = at.get("/v1/store").await.is(200).json();
    assert_eq!(
        (&store["capabilities"]["memos"], &store["capabilities"]["time"]),
        (&json!(true), &json!(true)),
        "{store}"
    );
    assert_eq!(store["guarantees"]["memos"], json!({ "crash": false, "failover": false, "eviction": true }));
    assert!(store["time"].as_str().unwrap().starts_with("20"), "{store}");
    assert!(store["time_us"].as_u64().unwrap() > 1_700_000_000_000_000, "{store}");

    let at = instance(&redlock().await).await;
    let store = at.get("/v1/store").await.is(200).json();
    assert_eq!(
        (&store["capabilities"]["memos"], &store["guarantees"]["memos"]),
        (&json!(false), &Value::Null),
        "{store}"
    );
    get(&at, "x").await.tells_problem(400, "invalid");
    put(&at, memo("x", "o", 1, b"refused")).await.tells_problem(400, "invalid");
}

/// A late copy of its own request takes the claim over while the http store waits, and nobody hears of the new number.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_number_has_changed_unheard_writes_all_the_same() {
    let at = instance(&memory().await).await;
    at.acquire(wish("x", "o", 60_000)).await.is(200);
    let backend = HttpBackend::open(&format!("http://{}", at.address), Arc::new(SystemClock)).await.unwrap();
    let (name, request) = (Name::new("x").unwrap(), ClaimRequest { ttl: Duration::from_secs(60), ..plain_request() });
    let claimed = backend.claim(&name, request.clone()).await.unwrap().value;
    let Claimed::Stands(standing) = claimed else { panic!("{claimed:?}") };
    assert!(standing.state.is_err(), "it waits");
    let copy = wish("x", &request.owner.to_string(), 60_000);
    let copy = and(copy, json!({ "claim": request.id.to_string(), "queue": true }));
    let taken = at.acquire(copy).await.is(202).number();
    assert_ne!(taken, standing.number);
    at.release(json!({ "name": "x", "owner": "o", "claim": "1" })).await.is(200);
    let holder = at.show("x").await["holders"][0].clone();
    assert_eq!(holder["claims"][0]["number"], taken, "{holder}");
    let write = MemoWrite {
        id: request.id,
        owner: request.owner.clone(),
        number: Some(standing.number),
        token: Token(holder["token"].as_u64().unwrap()),
        after: 0,
        write: 7,
        kind: MemoKind::User,
        keep: None,
        bytes: b"mine".as_slice().into(),
    };
    let written = backend.write_memo(&name, write).await.unwrap();
    assert!(matches!(written, MemoWritten::Done { .. }), "{written:?}");
    assert_eq!(get(&at, "x").await.is(200).body, b"mine");
}
