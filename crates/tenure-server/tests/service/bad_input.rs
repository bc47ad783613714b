//! What is wrong is refused by the name of its field, in one shape, and nothing of it is done.

use std::collections::HashSet;

use serde_json::{Value, json};
use tenure_server::{BODY_BYTES_MAX, RENEWAL_BYTES_MAX, RENEWALS_MAX, Tokens};

use crate::support::{Client, Look, and, instance, memory, redis};

/// Wrong fields of an acquire, beside a fine name and ttl, and the field that is named.
fn wrong_acquires() -> Vec<(Value, &'static str)> {
    let long = "x".repeat(129);
    let mut wrong = vec![
        (json!({ "tll_ms": 5 }), "tll_ms"),
        (json!({ "Owner": "a" }), "Owner"),
        (json!({ "queue": 1 }), "queue"),
        (json!({ "queue": "true" }), "queue"),
        (json!({ "shared": 1 }), "shared"),
        (json!({ "shared": true, "capacity": 2 }), "shared"),
        (json!({ "units": 1 }), "units"),
        (json!({ "units": 0, "capacity": 2 }), "units"),
        (json!({ "units": 3, "capacity": 2 }), "units"),
        (json!({ "units": -1, "capacity": 2 }), "units"),
        (json!({ "units": 4_294_967_296_u64, "capacity": 2 }), "units"),
        (json!({ "capacity": 0 }), "capacity"),
        (json!({ "capacity": -1 }), "capacity"),
        (json!({ "label": "x".repeat(257) }), "label"),
        (json!({ "label": "a\nb" }), "label"),
        (json!({ "label": 1 }), "label"),
        (json!({ "owner": "" }), "owner"),
        (json!({ "owner": "a b" }), "owner"),
        (json!({ "owner": "é" }), "owner"),
        (json!({ "owner": long }), "owner"),
        (json!({ "owner": 5 }), "owner"),
        (json!({ "claim": "" }), "claim"),
        (json!({ "claim": "a b" }), "claim"),
        (json!({ "claim": long }), "claim"),
        (json!({ "claim": {} }), "claim"),
        (json!({ "reenter": -1 }), "reenter"),
        (json!({ "reenter": "x" }), "reenter"),
        (json!({ "number": -1 }), "number"),
        (json!({ "number": 1.5 }), "number"),
        (json!({ "within": "x" }), "within"),
        (json!({ "within": [1] }), "within[0]"),
        (json!({ "within": [""] }), "within"),
        (json!({ "within": vec!["x"; 17] }), "within"),
    ];
    for (field, most) in [("ttl_ms", 86_400_000_u64), ("wait_ms", 50_000), ("presumed_ms", 86_400_000)] {
        for value in [json!(-1), json!(most + 1), json!(u64::MAX), json!(1e30), json!("5"), json!(1.5), json!([])] {
            wrong.push((json!({ field: value }), field));
        }
    }
    for value in [json!(0), json!(99), Value::Null] {
        wrong.push((json!({ "ttl_ms": value }), "ttl_ms"));
    }
    wrong
}

fn wrong_names() -> Vec<Value> {
    vec![json!(""), json!("x".repeat(513)), json!("a\u{0}b"), json!("a\nb"), json!(5), json!(["x"])]
}

/// Refused as a bad field, which is named.
async fn refused(client: &Client, method: &str, path: &str, body: Option<&str>, field: &str) {
    let reply = client.call(method, path, body).await;
    let shown = format!("{method} {path} {:.200}", body.unwrap_or_default());
    assert_eq!((reply.status, reply.json()["field"].as_str()), (400, Some(field)), "{shown}: {reply:?}");
    reply.tells_problem(400, "invalid");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_fields_of_claims_are_named_and_nothing_is_done() {
    let store = memory().await;
    let at = instance(&store).await;
    let fine = json!({ "ttl_ms": 10_000 });
    let named = and(fine.clone(), json!({ "name": "x" }));
    for (wrong, field) in wrong_acquires() {
        refused(&at, "POST", "/v1/acquire", Some(&and(named.clone(), wrong.clone()).to_string()), field).await;
        refused(&at, "POST", "/v1/locks/x/acquire", Some(&and(fine.clone(), wrong).to_string()), field).await;
    }
    for name in wrong_names() {
        let body = and(fine.clone(), json!({ "name": name })).to_string();
        refused(&at, "POST", "/v1/acquire", Some(&body), "name").await;
    }
    refused(&at, "POST", "/v1/acquire", Some(&fine.to_string()), "name").await;
    refused(&at, "POST", "/v1/acquire", Some(r#"{"name":"x"}"#), "ttl_ms").await;
    refused(&at, "POST", "/v1/acquire", Some(r#"{"name":"x","ttl_ms":1000,"ttl_ms":2000}"#), "ttl_ms").await;
    refused(&at, "POST", "/v1/locks/x/acquire", Some(&named.to_string()), "name").await;

    let many = |count: usize| json!({ "locks": vec![json!({ "name": "x", "owner": "o" }); count] });
    for (body, field) in [
        (json!({}), "name"),
        (json!({ "name": "x" }), "owner"),
        (json!({ "owner": "o" }), "name"),
        (json!({ "name": "x", "owner": "" }), "owner"),
        (json!({ "name": "x", "owner": "o", "claim": "" }), "claim"),
        (json!({ "name": "x", "owner": "o", "ttl_ms": 0 }), "ttl_ms"),
        (json!({ "name": "x", "owner": "o", "ttl_ms": -1 }), "ttl_ms"),
        (json!({ "name": "x", "owner": "o", "ttl_ms": 86_400_001 }), "ttl_ms"),
        (json!({ "name": "x", "owner": "o", "ttl": 5 }), "ttl"),
        (json!({ "locks": {} }), "locks"),
        (and(many(1), json!({ "name": "x" })), "name"),
        (and(many(1), json!({ "owner": "x" })), "owner"),
        (and(many(1), json!({ "ttl_ms": 1 })), "ttl_ms"),
        (many(RENEWALS_MAX + 1), "locks"),
        (json!({ "locks": [{ "name": "x" }] }), "locks[0].owner"),
        (json!({ "locks": [{ "name": "x", "owner": "o" }, { "name": "", "owner": "o" }] }), "locks[1].name"),
        (json!({ "locks": [{ "name": "x", "owner": "o", "ttl_ms": 0 }] }), "locks[0].ttl_ms"),
        (json!({ "locks": [{ "name": "x", "owner": "o", "ttl": 5 }] }), "locks[0].ttl"),
    ] {
        refused(&at, "POST", "/v1/renew", Some(&body.to_string()), field).await;
    }
    refused(&at, "POST", "/v1/locks/x/renew", Some(&many(1).to_string()), "locks").await;
    refused(&at, "POST", "/v1/locks/x/renew", Some("{}"), "owner").await;

    for (body, field) in [
        (json!({ "owner": "o", "claim": "1" }), "name"),
        (json!({ "name": "x" }), "owner"),
        (json!({ "name": "x", "owner": "o" }), "token"),
        (json!({ "name": "x", "owner": "o", "token": -1 }), "token"),
        (json!({ "name": "x", "owner": "o", "token": "1" }), "token"),
        (json!({ "name": "x", "owner": "o", "number": 1e30 }), "number"),
        (json!({ "name": "x", "owner": "o", "claim": "1", "waiting_only": 1 }), "waiting_only"),
        (json!({ "name": "x", "owner": "o", "cliam": "1" }), "cliam"),
    ] {
        refused(&at, "POST", "/v1/release", Some(&body.to_string()), field).await;
    }
    let memo = json!({ "name": "x", "owner": "o", "claim": "1", "token": 1, "after": 0, "write": 1, "value": "eA==" });
    for field in ["name", "owner", "token", "after", "write", "value"] {
        let mut without = memo.clone();
        without.as_object_mut().unwrap().remove(field);
        refused(&at, "PUT", "/v1/memo", Some(&without.to_string()), field).await;
    }
    for (wrong, field) in [
        (json!({ "value": "eA" }), "value"),
        (json!({ "value": "e A==" }), "value"),
        (json!({ "value": "eA==\n" }), "value"),
        (json!({ "value": "e-_=" }), "value"),
        (json!({ "value": "é" }), "value"),
        (json!({ "value": [1] }), "value"),
        (json!({ "kind": "" }), "kind"),
        (json!({ "kind": "User" }), "kind"),
        (json!({ "kind": 1 }), "kind"),
        (json!({ "keep_ms": 0 }), "keep_ms"),
        (json!({ "keep_ms": -1 }), "keep_ms"),
        (json!({ "keep_ms": u64::MAX }), "keep_ms"),
        (json!({ "keep": 5 }), "keep"),
        (json!({ "after": -1 }), "after"),
        (json!({ "after": "1" }), "after"),
        (json!({ "write": 1.5 }), "write"),
        (json!({ "write": 1e30 }), "write"),
        (json!({ "token": Value::Null }), "token"),
        (json!({ "number": -1 }), "number"),
        (json!({ "owner": "a b" }), "owner"),
        (json!({ "claim": "" }), "claim"),
    ] {
        refused(&at, "PUT", "/v1/memo", Some(&and(memo.clone(), wrong).to_string()), field).await;
    }
    refused(&at, "PUT", "/v1/locks/x/memo", Some(&memo.to_string()), "name").await;
    for body in ["", "[]", "{", "null"] {
        refused(&at, "PUT", "/v1/memo", Some(body), "body").await;
        refused(&at, "PUT", "/v1/locks/x/memo", Some(body), "body").await;
    }
    refused(&at, "POST", "/v1/acquire", Some(&format!("{named} {{}}")), "body").await;
    for path in ["acquire", "renew", "release"] {
        for body in ["", "[]", "{", "null", "5", "\u{feff}{}"] {
            refused(&at, "POST", &format!("/v1/{path}"), Some(body), "body").await;
            refused(&at, "POST", &format!("/v1/locks/x/{path}"), Some(body), "body").await;
        }
    }
    nothing_is_there(&at).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_queries_are_named_and_nothing_is_broken() {
    let store = redis().await;
    let (at, look) = (instance(&store).await, Look::at(&store).await);
    let name = crate::support::name("kept");
    let held = at.acquire(json!({ "name": name, "ttl_ms": 60_000 })).await.is(200);
    let long = "x".repeat(257);
    for (query, field) in [
        (String::new(), "token"),
        ("?token=".to_owned(), "token"),
        ("?token=-1".to_owned(), "token"),
        ("?token=x".to_owned(), "token"),
        ("?token=1e9".to_owned(), "token"),
        ("?token=99999999999999999999".to_owned(), "token"),
        (format!("?token={}&tokn=1", held.token()), "tokn"),
        (format!("?token={}&token=1", held.token()), "token"),
        (format!("?token={}&owner=", held.token()), "owner"),
        (format!("?token={}&owner=a%20b", held.token()), "owner"),
        (format!("?token={}&reason={long}", held.token()), "reason"),
        (format!("?token={}&by=a%0Ab", held.token()), "by"),
    ] {
        refused(&at, "DELETE", &format!("/v1/locks/{name}{query}"), None, field).await;
        let more = query.strip_prefix('?').unwrap_or_default();
        refused(&at, "DELETE", &format!("/v1/lock?name={name}&{more}"), None, field).await;
    }
    refused(&at, "DELETE", &format!("/v1/lock?token={}", held.token()), None, "name").await;
    for (path, field) in [
        ("/v1/locks?limit=0", "limit"),
        ("/v1/locks?limit=1001", "limit"),
        ("/v1/locks?limit=-1", "limit"),
        ("/v1/locks?limit=x", "limit"),
        ("/v1/locks?after=%00", "after"),
        ("/v1/locks?prefx=a", "prefx"),
        ("/v1/lock", "name"),
        ("/v1/lock?name=", "name"),
        ("/v1/lock?nam=x", "nam"),
        ("/v1/memo", "name"),
        ("/v1/memo?name=", "name"),
        ("/v1/memo?name=x&nam=x", "nam"),
        ("/v1/memo?name=%ff", "name"),
        ("/v1/explain", "name"),
        ("/v1/explain?name=", "name"),
        ("/v1/events?prefx=a", "prefx"),
        ("/v1/lock?name=%ff", "name"),
        ("/v1/lock?name=a%2", "name"),
        ("/v1/explain?name=%C3", "name"),
        ("/v1/locks?prefix=%ff", "prefix"),
        ("/v1/locks?after=%zz", "after"),
        ("/v1/locks?%ff=1", "query"),
    ] {
        refused(&at, "GET", path, None, field).await;
    }
    assert_eq!(look.tokens(&name).await, [held.token()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_in_paths_that_are_none_are_refused() {
    let at = instance(&memory().await).await;
    let long = "x".repeat(513);
    let acquire = json!({ "ttl_ms": 10_000 }).to_string();
    let release = json!({ "owner": "o", "claim": "1" }).to_string();
    let memo = json!({ "owner": "o", "token": 1, "after": 0, "write": 1, "value": "" }).to_string();
    refused(&at, "POST", "/v1/locks//acquire", Some(&acquire), "name").await;
    at.get("/v1/locks/").await.tells_problem(404, "not_found");
    for name in ["%", "%2", "%zz", "a%2", "%00", "a%00b", "%0A", "%ff", "%C3", "%7F", &long] {
        refused(&at, "POST", &format!("/v1/locks/{name}/acquire"), Some(&acquire), "name").await;
        refused(&at, "POST", &format!("/v1/locks/{name}/renew"), Some(&release), "name").await;
        refused(&at, "POST", &format!("/v1/locks/{name}/release"), Some(&release), "name").await;
        refused(&at, "GET", &format!("/v1/locks/{name}"), None, "name").await;
        refused(&at, "GET", &format!("/v1/locks/{name}/explain"), None, "name").await;
        refused(&at, "GET", &format!("/v1/locks/{name}/memo"), None, "name").await;
        refused(&at, "PUT", &format!("/v1/locks/{name}/memo"), Some(&memo), "name").await;
        refused(&at, "DELETE", &format!("/v1/locks/{name}?token=1"), None, "name").await;
    }
    nothing_is_there(&at).await;
    // What is a name, is one: decoded once, and nothing folded.
    for (encoded, name) in [("a%2Fb", "a/b"), ("%2E%2E", ".."), ("a%252Fb", "a%2Fb"), ("%C3%BF", "ÿ"), ("a+b", "a+b")]
    {
        let held = at.call("POST", &format!("/v1/locks/{encoded}/acquire"), Some(&acquire)).await;
        assert_eq!(held.is(200).json()["name"], name);
        assert_eq!(at.get(&format!("/v1/locks/{encoded}")).await.is(200).json()["holders"][0]["units"], 1);
    }
    let there: HashSet<String> = names(&at).await.into_iter().collect();
    let wanted: HashSet<String> = ["a/b", "..", "a%2Fb", "ÿ", "a+b"].map(str::to_owned).into();
    assert_eq!(there, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_served_is_said_in_the_same_shape() {
    let at = instance(&memory().await).await;
    let acquire = json!({ "name": "x", "ttl_ms": 10_000 }).to_string();
    for (method, path) in [
        ("GET", "/v2"),
        ("GET", "/v1"),
        ("POST", "/v1/acquire/"),
        ("POST", "/v1/locks/a/b/acquire"),
        ("POST", "/v1/locks/x/frob"),
        ("GET", "/assets/nothing"),
        ("GET", "/%2e%2e/etc/passwd"),
        ("GET", "/assets/..%2fCargo.toml"),
    ] {
        at.call(method, path, Some(&acquire)).await.tells_problem(404, "not_found");
    }
    for (method, path) in [
        ("GET", "/v1/acquire"),
        ("PUT", "/v1/acquire"),
        ("GET", "/v1/renew"),
        ("DELETE", "/v1/release"),
        ("POST", "/v1/locks"),
        ("POST", "/v1/lock"),
        ("PATCH", "/v1/locks/x"),
        ("GET", "/v1/locks/x/acquire"),
        ("DELETE", "/v1/locks/x/release"),
        ("POST", "/v1/memo"),
        ("DELETE", "/v1/locks/x/memo"),
        ("POST", "/v1/events"),
        ("POST", "/metrics"),
        ("DELETE", "/healthz"),
        ("OPTIONS", "/v1/acquire"),
    ] {
        at.call(method, path, Some(&acquire)).await.tells_problem(405, "not_allowed");
    }
    nothing_is_there(&at).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_too_large_or_of_another_kind_are_refused() {
    let at = instance(&memory().await).await;
    let fill = |bytes: usize| {
        let body = json!({ "name": "x", "ttl_ms": 10_000, "label": "" }).to_string();
        body.replace("\"\"", &format!("\"{}\"", "a".repeat(bytes)))
    };
    for path in ["/v1/acquire", "/v1/locks/x/acquire", "/v1/release", "/v1/locks/x/renew"] {
        at.call("POST", path, Some(&fill(BODY_BYTES_MAX))).await.tells_problem(413, "too_large");
    }
    at.call("POST", "/v1/renew", Some(&fill(RENEWAL_BYTES_MAX))).await.tells_problem(413, "too_large");

    let body = json!({ "name": "x", "ttl_ms": 10_000 }).to_string();
    let of_kind =
        |kind: &str| at.request("POST", "/v1/acquire", Some(&body)).replace("content-type: application/json\r\n", kind);
    for kind in [
        "",
        "content-type: text/plain\r\n",
        "content-type: application/x-www-form-urlencoded\r\n",
        "content-type: multipart/form-data; boundary=application/json\r\n",
        "content-type: application/jsonp\r\n",
    ] {
        let mut connection = at.open().await;
        connection.send(of_kind(kind).as_bytes()).await;
        connection.reply().await.tells_problem(415, "unsupported");
    }
    nothing_is_there(&at).await;
    let mut connection = at.open().await;
    connection.send(of_kind("content-type: Application/JSON; charset=utf-8\r\n").as_bytes()).await;
    assert!(connection.reply().await.is(200).headers.contains_key("x-request-id"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_others_reach_nothing() {
    let at = instance(&memory().await).await;
    let body = json!({ "name": "x", "ttl_ms": 10_000 }).to_string();
    let fine = at.request("POST", "/v1/acquire", Some(&body));
    for (request, status) in [
        (fine.replace("host: 127.0.0.1", "host: evil.example"), 421),
        (fine.replace("host: 127.0.0.1", "host: 127.0.0.1.evil.example:7420"), 421),
        (fine.replace("host: 127.0.0.1", "host: 127.0.0.1\r\norigin: http://evil.example"), 403),
        (fine.replace("host: 127.0.0.1", "host: 127.0.0.1\r\norigin: null"), 403),
        (fine.replace("host: 127.0.0.1", "host: 127.0.0.1\r\nsec-fetch-site: cross-site"), 403),
    ] {
        let mut connection = at.open().await;
        connection.send(request.as_bytes()).await;
        let reply = connection.reply().await.is(status);
        assert!(reply.json()["message"].is_string() && reply.headers.contains_key("x-request-id"), "{reply:?}");
        assert!(!reply.headers.contains_key("access-control-allow-origin"), "{reply:?}");
    }
    nothing_is_there(&at).await;
    let mut connection = at.open().await;
    let own = fine.replace("host: 127.0.0.1", "host: 127.0.0.1:80\r\norigin: http://127.0.0.1:80");
    connection.send(own.as_bytes()).await;
    connection.reply().await.is(200);
}

#[test]
fn a_file_of_tokens_that_is_missing_is_named() {
    assert!(Tokens::read(std::path::Path::new("no/such/file")).unwrap_err().contains("no/such/file"));
}

async fn names(at: &Client) -> Vec<String> {
    let page = at.get("/v1/locks?limit=1000").await.is(200).json();
    page.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
}

async fn nothing_is_there(at: &Client) {
    assert!(names(at).await.is_empty(), "{:?}", names(at).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_without_an_owner_is_no_retry_and_is_refused() {
    let at = instance(&memory().await).await;
    let told =
        at.acquire(json!({ "name": "x", "claim": "1", "ttl_ms": 1_000 })).await.tells_problem(400, "invalid").json();
    assert_eq!(told["field"], "claim", "{told}");
    assert_eq!(at.show("x").await["holders"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_said_without_words_of_rust() {
    let at = instance(&memory().await).await;
    for (body, says) in [
        (r#"{"name":"x","ttl_ms":"1"}"#, "a whole number of milliseconds"),
        (r#"{"name":"x","ttl_ms":-1}"#, "a whole number of milliseconds"),
        (r#"{"name":"x","ttl_ms":1000,"capacity":"3"}"#, "a whole number"),
        (r#"{"name":"x","ttl_ms":1000,"within":"a"}"#, "an array"),
        (r#"{"name":"x","ttl_ms":1000,"shared":true,"units":1}"#, "units or capacity"),
    ] {
        let told = at.call("POST", "/v1/acquire", Some(body)).await.tells_problem(400, "invalid").json();
        let message = told["message"].as_str().unwrap();
        assert!(message.contains(says) && !message.contains("u64") && !message.contains("line"), "{message}");
    }
}
