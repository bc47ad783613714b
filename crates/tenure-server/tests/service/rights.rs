//! Every route asks for its right, on names that the token may touch.

use serde_json::{Value, json};
use tenure_server::Right;

use crate::support::{Client, Connection, Look, PATIENCE, TokenFile, instance_with, memory, redis};

/// What a caller may do, as the table has it.
const CALLERS: [(&str, &[Right], &[&str]); 10] = [
    ("acquire", &[Right::Acquire], &[]),
    ("read", &[Right::Read], &[]),
    ("break", &[Right::Break], &[]),
    ("admin", &[Right::Admin], &[]),
    ("all", &Right::ALL, &[]),
    ("acquire-a", &[Right::Acquire], &["a/"]),
    ("read-a", &[Right::Read], &["a/"]),
    ("break-a", &[Right::Break], &["a/"]),
    ("admin-a", &[Right::Admin], &["a/"]),
    ("all-ab", &Right::ALL, &["a/", "b/"]),
];

/// Whether these rights have this one in them.
fn has(rights: &[Right], right: Right) -> bool {
    rights.contains(&right) || rights.contains(&Right::Admin)
}

/// The routes with a name: method, path, body, the right, and the answer to somebody who has it.
fn named_routes(name: &str) -> Vec<(&'static str, String, Option<Value>, Right, u16)> {
    let encoded = name.replace('/', "%2F");
    let owner = json!({ "owner": "o", "claim": "1" });
    let named = |body: &Value| crate::support::and(body.clone(), json!({ "name": name }));
    let acquire = json!({ "ttl_ms": 10_000, "owner": "o", "claim": "1" });
    let memo = crate::support::and(owner.clone(), json!({ "token": 1, "after": 0, "write": 1, "value": "" }));
    let many = json!({ "locks": [{ "name": name, "owner": "o" }] });
    vec![
        ("POST", format!("/v1/locks/{encoded}/renew"), Some(owner.clone()), Right::Acquire, 410),
        ("POST", "/v1/renew".into(), Some(named(&owner)), Right::Acquire, 410),
        ("POST", "/v1/renew".into(), Some(many), Right::Acquire, 200),
        ("POST", format!("/v1/locks/{encoded}/release"), Some(owner.clone()), Right::Acquire, 410),
        ("POST", format!("/v1/locks/{encoded}/acquire"), Some(acquire.clone()), Right::Acquire, 200),
        ("POST", "/v1/release".into(), Some(named(&owner)), Right::Acquire, 200),
        ("POST", "/v1/acquire".into(), Some(named(&acquire)), Right::Acquire, 200),
        ("POST", "/v1/release".into(), Some(named(&owner)), Right::Acquire, 200),
        ("PUT", format!("/v1/locks/{encoded}/memo"), Some(memo.clone()), Right::Acquire, 410),
        ("PUT", "/v1/memo".into(), Some(named(&memo)), Right::Acquire, 410),
        ("GET", format!("/v1/locks/{encoded}/memo"), None, Right::Read, 404),
        ("GET", format!("/v1/memo?name={encoded}"), None, Right::Read, 404),
        ("GET", format!("/v1/locks/{encoded}"), None, Right::Read, 200),
        ("GET", format!("/v1/lock?name={encoded}"), None, Right::Read, 200),
        ("GET", format!("/v1/locks/{encoded}/explain"), None, Right::Read, 200),
        ("GET", format!("/v1/explain?name={encoded}"), None, Right::Read, 200),
        ("DELETE", format!("/v1/locks/{encoded}?token=1"), None, Right::Break, 200),
        ("DELETE", format!("/v1/lock?name={encoded}&token=1"), None, Right::Break, 200),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_asks_for_its_right_on_names_that_the_token_may_touch() {
    let file = TokenFile::of(&CALLERS);
    let at = instance_with(&memory().await, |options| options.tokens = Some(file.path.clone())).await;
    for (caller, rights, prefixes) in CALLERS {
        let client = at.with(file.secret(caller));
        // The last begins with a prefix only until it is decoded.
        for name in ["a/x", "b/x", "a", "A/x", "a%2Fx"] {
            let encoded = name.replace('%', "%25");
            let touches = prefixes.is_empty() || prefixes.iter().any(|prefix| name.starts_with(prefix));
            for (method, path, body, right, status) in named_routes(name) {
                let path = path.replace(name, &encoded);
                let reply = client.call(method, &path, body.map(|body| body.to_string()).as_deref()).await;
                let wanted = if touches && has(rights, right) { status } else { 403 };
                assert_eq!(reply.status, wanted, "{caller} {method} {path} of {name}: {reply:?}");
                if wanted == 403 {
                    reply.tells_problem(403, "forbidden");
                }
            }
        }
        let reads = has(rights, Right::Read);
        for (path, may) in [
            ("/v1/locks", reads),
            ("/v1/recent", reads),
            ("/metrics", reads && prefixes.is_empty()),
            ("/v1/store", true),
            ("/healthz", true),
            ("/readyz", true),
            ("/openapi.json", true),
            ("/", true),
        ] {
            let reply = client.get(path).await;
            assert_eq!(reply.status, if may { 200 } else { 403 }, "{caller} {path}: {reply:?}");
        }
        let mut events = client.sent("GET", "/v1/events", None).await;
        events.next_reply().await.is(if reads { 200 } else { 403 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_served_without_a_token_that_is_known() {
    let file = TokenFile::of(&CALLERS);
    let at = instance_with(&memory().await, |options| options.tokens = Some(file.path.clone())).await;
    let secret = file.secret("all");
    let wrong =
        [String::new(), "x".into(), secret[1..].into(), format!("{secret}0"), secret.to_uppercase(), "é".into()];
    let strangers: Vec<Client> =
        std::iter::once(at.client.clone()).chain(wrong.iter().map(|wrong| at.with(wrong))).collect();
    for stranger in strangers {
        for (method, path, body, ..) in named_routes("a/x") {
            let reply = stranger.call(method, &path, body.map(|body| body.to_string()).as_deref()).await;
            let reply = reply.tells_problem(401, "unauthorized");
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
        }
        for path in ["/v1/locks", "/v1/recent", "/metrics", "/v1/store", "/v1/events", "/v1/nothing"] {
            stranger.get(path).await.tells_problem(401, "unauthorized");
        }
        for path in ["/healthz", "/readyz", "/openapi.json", "/"] {
            stranger.get(path).await.is(200);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_batch_what_is_not_allowed_is_unknown_and_the_rest_is_renewed() {
    let file = TokenFile::of(&CALLERS);
    let store = redis().await;
    let at = instance_with(&store, |options| options.tokens = Some(file.path.clone())).await;
    let (all, only_a) = (at.with(file.secret("all")), at.with(file.secret("acquire-a")));
    let name = crate::support::name("a/x");
    only_a.acquire(crate::support::wish(&name, "o", 20_000)).await.is(200);
    let batch = json!({ "locks": [
        { "name": name, "owner": "o", "claim": "1", "ttl_ms": 60_000 },
        { "name": "b/x", "owner": "o", "claim": "1" },
    ] });
    let told = only_a.renew(batch).await.is(200).json();
    assert_eq!((&told["locks"][0]["state"], &told["locks"][1]["state"]), (&json!("held"), &json!("unknown")), "{told}");
    assert!(told["locks"][1]["message"].as_str().unwrap().contains("may not"), "{told}");
    let view = Look::at(&store).await.view(&name).await;
    assert!(view.holders[0].expires_in.unwrap().as_millis() > 20_000, "{view:?}");
    only_a.renew(json!({ "locks": [{ "name": "b/x", "owner": "o" }] })).await.tells_problem(403, "forbidden");
    // Nor is it another's.
    all.renew(json!({ "name": name, "owner": "o", "claim": "1" })).await.tells_problem(410, "lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_may_not_be_read_are_left_out_everywhere() {
    let file = TokenFile::of(&CALLERS);
    let at = instance_with(&memory().await, |options| options.tokens = Some(file.path.clone())).await;
    let (all, only_a) = (at.with(file.secret("all")), at.with(file.secret("read-a")));
    let mut events = only_a.sent("GET", "/v1/events", None).await;
    events.next_reply().await.is(200);
    let names = ["a/1", "a/2", "b/1", "a", "c"];
    for name in names {
        all.acquire(crate::support::wish(name, "o", 60_000)).await.is(200);
    }
    let listed = |reply: Value| -> Vec<String> {
        reply.as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(all.get("/v1/locks").await.is(200).json()), ["a", "a/1", "a/2", "b/1", "c"]);
    for (query, wanted) in [
        ("", vec!["a/1", "a/2"]),
        ("?prefix=a", vec!["a/1", "a/2"]),
        ("?prefix=a/2", vec!["a/2"]),
        ("?prefix=b", vec![]),
        ("?after=a/1", vec!["a/2"]),
        ("?after=a&limit=1", vec!["a/1"]),
        ("?after=b/0", vec![]),
    ] {
        assert_eq!(listed(only_a.get(&format!("/v1/locks{query}")).await.is(200).json()), wanted, "{query}");
    }
    let seen = until_told(&mut events, "granted", "a/2").await;
    assert!(seen.iter().all(|name| name.starts_with("a/")), "{seen:?}");
    for name in names {
        all.release(json!({ "name": name, "owner": "o", "claim": "1" })).await.is(200);
    }
    assert_eq!(all.get("/v1/recent").await.is(200).json().as_array().unwrap().len(), 5);
    let recent = listed(only_a.get("/v1/recent").await.is(200).json());
    assert!(recent.len() == 2 && recent.iter().all(|name| name.starts_with("a/")), "{recent:?}");
    let seen = until_told(&mut events, "released", "a/2").await;
    assert!(seen.iter().all(|name| name.starts_with("a/")), "{seen:?}");
}

/// The names of a stream's events, until this one is told.
async fn until_told(events: &mut Connection, kind: &str, name: &str) -> Vec<String> {
    let mut names = Vec::new();
    let told = async {
        loop {
            let line = events.until("\n").await;
            let Some(event) = line.trim().strip_prefix("data: ") else { continue };
            let event: Value = serde_json::from_str(event).unwrap();
            names.extend(event["name"].as_str().map(str::to_owned));
            if event["event"] == kind && event["name"] == name {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("the event");
    names
}
