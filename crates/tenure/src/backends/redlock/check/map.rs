//! What a client remembers of its claims is bounded, however they end.

use std::sync::Arc;
use std::time::Duration;

use tenure_testkit::servers::Fleet as Servers;

use super::super::{RedlockBackend, lock};
use crate::backend::{Backend as _, Claimed};
use crate::clock::SystemClock;
use crate::name::Name;
use crate::owner::ClaimId;

/// Many more than are alive at a time.
const CLAIMS: u64 = 3000;
const TTL: Duration = Duration::from_millis(100);

/// A claim on a name of its own that soon ends; on a busy machine it may not even be answered by then.
async fn claim_briefly(backend: &RedlockBackend, index: u64) -> Name {
    let name = Name::new(format!("x/{index}")).unwrap();
    match backend.claim(&name, super::request(ClaimId(index), TTL)).await {
        Ok(answer) => assert!(matches!(answer.value, Claimed::Stands(_)), "{answer:?}"),
        Err(error) => assert!(error.is_retryable(), "{error}"),
    }
    name
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claims_that_nobody_ends_are_forgotten_with_their_ttl() {
    let servers = Servers::start(3);
    let backend = RedlockBackend::open(&servers.url_with(super::PATIENT), Arc::new(SystemClock)).await.unwrap();
    let mut most = 0;
    for index in 1..=CLAIMS {
        let name = claim_briefly(&backend, index).await;
        if index % 2 == 0 {
            // Half are broken, which their holder hears; the others are left to their ttl.
            backend.break_holders(&name, crate::backend::BreakRequest::all("a test", "")).await.unwrap();
        }
        most = most.max(lock(&backend.inner.claims).len());
    }
    assert!(most < usize::try_from(CLAIMS).unwrap() / 2, "{most} of {CLAIMS} are remembered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_renewed_is_remembered() {
    let servers = Servers::start(3);
    let backend = RedlockBackend::open(&servers.url_with(super::PATIENT), Arc::new(SystemClock)).await.unwrap();
    let (kept, id, ttl) = (Name::new("kept").unwrap(), ClaimId(u64::MAX), Duration::from_secs(30));
    let wish = super::request(id, ttl);
    backend.claim(&kept, wish.clone()).await.unwrap();
    for index in 1..=500 {
        claim_briefly(&backend, index).await;
    }
    assert!(lock(&backend.inner.claims).contains_key(&id));
    let renewal = crate::backend::RenewRequest::of(&kept, &wish);
    let answer = backend.renew(vec![renewal], false).await.unwrap();
    assert!(matches!(answer.value[..], [crate::backend::Renewed::Stands(_)]), "{answer:?}");
}
