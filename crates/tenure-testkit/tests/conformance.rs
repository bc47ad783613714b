//! Every store keeps the whole contract, also when replies fail or never come.
//!
//! `contract.rs` checks that each backend of `crates/tenure/src/backends` has its line here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod instance;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tenure::backends::etcd::EtcdBackend;
use tenure::backends::http::HttpBackend;
use tenure::backends::memory::MemoryStore;
use tenure::backends::postgres::PostgresBackend;
use tenure::backends::redis::RedisBackend;
use tenure::backends::redlock::RedlockBackend;
#[cfg(target_os = "linux")]
use tenure::backends::sqlite::SqliteBackend;
use tenure::backends::zookeeper::ZookeeperBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::{Fleet, shared};
use tenure_testkit::{ManualClock, Store};

async fn memory_store() -> Store {
    let clock = ManualClock::new();
    let store = MemoryStore::on(Arc::new(clock.clone()));
    Store::on(&clock, move || {
        let client = store.client();
        async { Ok(client) }
    })
}

/// Each client opens the file for itself, as separate processes do.
#[cfg(target_os = "linux")]
async fn sqlite_store() -> Store {
    let clock = ManualClock::new();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tenure.db");
    let shared_clock = clock.clone();
    Store::on(&clock, move || SqliteBackend::open(path.clone(), Arc::new(shared_clock.clone()))).keeping(directory)
}

tenure_testkit::conformance!(memory, memory_store);

#[cfg(target_os = "linux")]
tenure_testkit::conformance!(sqlite, sqlite_store);

/// Clients of a real server that all tests share: names are their own.
fn at(url: String) -> Store {
    Store::in_real_time(move || {
        let url = url.clone();
        async move { RedisBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

async fn redis_store() -> Store {
    at(shared::redis().url().to_owned())
}

async fn redis_plain_store() -> Store {
    at(format!("{}?layout=plain", shared::redis().url()))
}

async fn redis_redisson_store() -> Store {
    at(format!("{}?layout=redisson", shared::redis().url()))
}

async fn redis_tls_store() -> Store {
    at(shared::tls().url().to_owned())
}

async fn redis_sentinel_store() -> Store {
    at(shared::sentinel().url().to_owned())
}

async fn redis_cluster_store() -> Store {
    at(shared::cluster().url().to_owned())
}

tenure_testkit::conformance!(redis, redis_store);
tenure_testkit::conformance!(redis_plain, redis_plain_store);
tenure_testkit::conformance!(redis_redisson, redis_redisson_store);
tenure_testkit::conformance!(redis_tls, redis_tls_store);
tenure_testkit::conformance!(redis_sentinel, redis_sentinel_store);
tenure_testkit::conformance!(redis_cluster, redis_cluster_store);

/// Nodes that all tests share, on a busy machine: a short ttl must not mean that only fast answers count.
fn over(fleet: &Fleet, options: &str) -> Store {
    let url = fleet.url_with(&format!("node_timeout=500ms{options}"));
    Store::in_real_time(move || {
        let url = url.clone();
        async move { RedlockBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

async fn redlock_store() -> Store {
    over(shared::fleet(), "")
}

async fn redlock_plain_store() -> Store {
    over(shared::fleet(), "&layout=plain")
}

tenure_testkit::conformance!(redlock, redlock_store);
tenure_testkit::conformance!(redlock_plain, redlock_plain_store);

async fn postgres_store() -> Store {
    let url = shared::postgres().url().to_owned();
    Store::in_real_time(move || {
        let url = url.clone();
        async move { PostgresBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

tenure_testkit::conformance!(postgres, postgres_store);

async fn etcd_store() -> Store {
    let url = shared::etcd().url();
    Store::in_real_time(move || {
        let url = url.clone();
        async move { EtcdBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

tenure_testkit::conformance!(etcd, etcd_store);

/// The same behind a pooler, where nothing is heard and nothing prepared.
async fn postgres_pooled_store() -> Store {
    let url = shared::pgbouncer().url();
    Store::in_real_time(move || {
        let url = url.clone();
        async move { PostgresBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

tenure_testkit::conformance!(postgres_pooled, postgres_pooled_store);

async fn zookeeper_store() -> Store {
    let url = shared::zookeeper().url();
    Store::in_real_time(move || {
        let url = url.clone();
        async move { ZookeeperBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

tenure_testkit::conformance!(zookeeper, zookeeper_store);

/// Two instances over one store, which all tests share; clients go to one and to the other in turn.
fn served(instances: &'static OnceLock<[String; 2]>, url: &str) -> Store {
    static TURN: AtomicUsize = AtomicUsize::new(0);
    let instances = instances.get_or_init(|| [(); 2].map(|()| instance::start(url.to_owned())));
    Store::in_real_time(move || {
        let url = instances[TURN.fetch_add(1, Ordering::Relaxed) % 2].clone();
        async move { HttpBackend::open(&url, Arc::new(SystemClock)).await }
    })
}

async fn http_store() -> Store {
    static INSTANCES: OnceLock<[String; 2]> = OnceLock::new();
    served(&INSTANCES, shared::redis().url())
}

async fn http_postgres_store() -> Store {
    static INSTANCES: OnceLock<[String; 2]> = OnceLock::new();
    served(&INSTANCES, shared::postgres().url())
}

async fn http_etcd_store() -> Store {
    static INSTANCES: OnceLock<[String; 2]> = OnceLock::new();
    served(&INSTANCES, &shared::etcd().url())
}

async fn http_redlock_store() -> Store {
    static INSTANCES: OnceLock<[String; 2]> = OnceLock::new();
    served(&INSTANCES, &shared::fleet().url_with("node_timeout=500ms"))
}

tenure_testkit::conformance!(http, http_store);
tenure_testkit::conformance!(http_postgres, http_postgres_store);
tenure_testkit::conformance!(http_etcd, http_etcd_store);
tenure_testkit::conformance!(http_redlock, http_redlock_store);
