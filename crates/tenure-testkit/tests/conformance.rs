//! Every store keeps the whole contract, also when replies fail or never come.
//!
//! `contract.rs` checks that each backend of `crates/tenure/src/backends` has its line here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use tenure::backends::memory::MemoryStore;
#[cfg(target_os = "linux")]
use tenure::backends::sqlite::SqliteBackend;
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
