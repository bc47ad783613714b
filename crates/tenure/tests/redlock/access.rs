//! TLS, a login, and no more rights than are documented.

use std::time::Duration;

use tenure::{ErrorKind, Tenure};
use tenure_testkit::servers::shared;

use crate::support::{KEPT, PATIENT, granted, patiently, waiters, waits};

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough() {
    let url = shared::fleet_tls().url_with(PATIENT);
    let a = patiently("a connection", Tenure::connect(&url)).await.unwrap();
    let b = patiently("a connection", Tenure::connect(&url)).await.unwrap();
    let held = patiently("a free lock", a.lock("rights/x").ttl(KEPT).acquire()).await.unwrap();
    let first = held.deadline();
    let waiting = waits(&b.lock("rights/x").ttl(KEPT));
    waiters(&b, "rights/x", 1).await;
    patiently("a renewal", async {
        while held.deadline() == first {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let listed = patiently("a list", b.list("rights/")).await.unwrap();
    assert_eq!(listed.len(), 1, "{listed:?}");
    held.release().await.unwrap();
    let next = granted(waiting).await;
    assert_eq!(patiently("a break", a.break_holders("rights/x", None, "enough")).await.unwrap(), 1);
    patiently("the news", next.lost()).await;
    drop(next);
    patiently("a free lock", a.lock("rights/x").ttl(KEPT).acquire()).await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_denied_at_once() {
    let url = shared::fleet_tls().url_with(PATIENT).replacen(":s3cret", ":other", 1);
    let error = patiently("an answer", Tenure::connect(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(!error.to_string().contains("other"), "{error}");
}
