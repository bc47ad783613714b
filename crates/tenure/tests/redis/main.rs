//! Redis: what is special about a server that restarts, hangs, refuses and forgets.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod certainty;
mod cluster;
mod failover;
mod faults;
mod handover;
mod memo_replicas;
mod memo_slots;
mod memos;
mod oldest;
mod relay;
mod replicas;
mod slots;
mod support;
mod tokens;
mod wire;
