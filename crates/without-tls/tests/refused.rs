//! A build without TLS: `cargo test -p without-tls --features alone`.

#![allow(clippy::unwrap_used)]

use tenure::{ErrorKind, Tenure};

#[tokio::test]
async fn urls_that_ask_for_tls_are_refused_with_the_feature_named() {
    for url in [
        "rediss://u:hidden@127.0.0.1:1",
        "redis://u:hidden@127.0.0.1:1?tls=true",
        "redis+cluster://u:hidden@127.0.0.1:1?tls=true",
        "redlocks://u:hidden@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
        "etcd://u:hidden@127.0.0.1:1?tls=true",
        "postgres://u:hidden@127.0.0.1:1/db?sslmode=require",
        "postgres://u:hidden@127.0.0.1:1/db?sslmode=verify-full&sslrootcert=/no/such",
        "postgres://127.0.0.1:1/db?listen=postgres%3A%2F%2Fu%3Ahidden%40127.0.0.1%2Fdb%3Fsslmode%3Drequire",
        "zookeeper://u:hidden@127.0.0.1:1/x?tls=true&ca=/no/such",
    ] {
        let error = Tenure::connect(url).await.map(drop).unwrap_err();
        let told = error.to_string();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {told}");
        assert!(told.ends_with("asks for TLS, and this build of tenure has no TLS: add the feature `tls`"), "{told}");
        assert!(!told.contains("hidden"), "{told}");
    }
}
