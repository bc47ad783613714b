//! Many waiters on one name, on every store.
//!
//! `contract.rs` checks that each backend of `crates/tenure/src/backends` has its line here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod instance;

use std::sync::OnceLock;

use tenure_testkit::servers::{Postgres, shared};

fn memory(_: usize) -> (String, ()) {
    (format!("memory:waiters-{:016x}", rand::random::<u64>()), ())
}

tenure_testkit::waiters!(memory, super::memory, 1_000);

#[cfg(target_os = "linux")]
fn sqlite(_: usize) -> (String, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    (format!("sqlite:{}", directory.path().join("tenure.db").display()), directory)
}

#[cfg(target_os = "linux")]
tenure_testkit::waiters!(sqlite, super::sqlite, 150);

fn redis(_: usize) -> (String, ()) {
    (shared::redis().url().to_owned(), ())
}

tenure_testkit::waiters!(redis, super::redis, 500);

/// Nodes on a busy machine: a short ttl must not mean that only fast answers count.
fn redlock(_: usize) -> (String, ()) {
    (shared::fleet().url_with("node_timeout=500ms"), ())
}

tenure_testkit::waiters!(redlock, super::redlock, 100);

fn etcd(_: usize) -> (String, ()) {
    (shared::etcd().url(), ())
}

tenure_testkit::waiters!(etcd, super::etcd, 300);

fn zookeeper(_: usize) -> (String, ()) {
    (shared::zookeeper().url(), ())
}

tenure_testkit::waiters!(zookeeper, super::zookeeper, 500);

/// A server of its own: a client under load has some ten connections.
fn postgres(clients: usize) -> (String, Postgres) {
    let connections = (20 + 13 * clients).to_string();
    let server = Postgres::builder().config("max_connections", &connections).start();
    (server.url().to_owned(), server)
}

tenure_testkit::waiters!(postgres, super::postgres, 300);

/// Each waiter has a connection of its own.
fn http(_: usize) -> (String, ()) {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    (INSTANCE.get_or_init(|| instance::start(shared::redis().url().to_owned())).clone(), ())
}

tenure_testkit::waiters!(http, super::http, 200);
