//! etcd: what is special about leases, revisions and watches, with real clusters and real faults.
#![cfg(feature = "etcd")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod access;
mod disk;
mod faults;
mod keys;
mod leases;
mod memos;
mod peers;
mod queues;
mod standstill;
mod support;
mod sweeps;
mod together;
