//! The OpenAPI document: checked in as it is served, and complete.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

/// Set to write the document instead of comparing it.
const RENEW: &str = "TENURE_RENEW_OPENAPI";

#[test]
fn the_document_that_is_checked_in_is_current() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    if std::env::var_os(RENEW).is_some() {
        std::fs::write(&path, tenure_server::openapi()).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == tenure_server::openapi(),
        "docs/openapi.json is not what the service serves; renew it with\n  \
        {RENEW}=1 cargo test -p tenure-server --test openapi"
    );
}

/// `GET /v1/locks` and so on, as the router has them.
fn routed() -> BTreeSet<String> {
    let source = include_str!("../src/api/mod.rs");
    let mut routes = BTreeSet::new();
    for route in source.split(".route(").skip(1) {
        let mut quoted = route.split('"');
        let (Some(path), Some(methods)) = (quoted.nth(1), quoted.next()) else { continue };
        for method in ["get", "post", "put", "delete"] {
            if methods.contains(&format!("{method}(")) {
                routes.insert(format!("{} {path}", method.to_uppercase()));
            }
        }
    }
    routes
}

#[test]
fn every_route_is_described_and_nothing_else_is() {
    let document: Value = serde_json::from_str(&tenure_server::openapi()).unwrap();
    let mut described = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            assert!(operation["summary"].is_string(), "{method} {path} says what it does");
            assert!(operation["responses"]["200"].is_object(), "{method} {path} says what it answers");
            described.insert(format!("{} {path}", method.to_uppercase()));
        }
    }
    let routed = routed();
    assert!(routed.contains("POST /v1/acquire") && routed.contains("DELETE /v1/lock"), "{routed:?}");
    assert_eq!(described, routed);
}
