//! What a fleet does not have is refused, in words.

use tenure::{Error, ErrorKind};
use tenure_testkit::servers::shared;

use crate::support::{PATIENT, answered, connect};

fn refused(error: &Error, missing: &str) {
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(!error.is_retryable() && error.to_string().contains(missing), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_shapes_are_refused_and_named() {
    let client = connect(&shared::fleet().url_with(PATIENT)).await;
    let shared = client.rwlock("x").read();
    refused(&shared.try_acquire().await.unwrap_err(), "shared locks");
    refused(&shared.acquire().await.unwrap_err(), "shared locks");
    refused(&client.semaphore("x", 3).acquire().await.unwrap_err(), "semaphores");
    refused(&client.session().lock("x").acquire().await.unwrap_err(), "sessions");
    let error = client.lock("x").min_replicas(1).acquire().await.unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("no replicas"), "{error}");
    let store = client.capabilities();
    assert!(store.tokens && !store.shared && !store.permits && !store.sessions && !store.queue && !store.blocks);
    // A writer alone is an exclusive lock.
    let held = answered("an answer", async || client.rwlock("w").write().try_acquire().await).await;
    held.unwrap().release().await.unwrap();
}
