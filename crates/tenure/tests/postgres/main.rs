//! PostgreSQL: what is special about rows, transactions, notifications, poolers and standbys.
#![cfg(feature = "postgres")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod certainty;
mod encryption;
mod faults;
mod listening;
mod locked;
mod memos;
mod odd_rows;
mod pooler;
mod standby;
mod support;
mod tables;
