//! Deadlocks of sessions: found, broken and refused, on a driven clock and over every store that has sessions.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod churn;
#[path = "../common/mod.rs"]
mod common;
mod engine;
mod reads;
mod refused;
mod ring;
mod stores;
