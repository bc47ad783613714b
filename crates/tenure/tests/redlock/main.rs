//! Redlock over five real servers: what happens when some of them die, hang, forget, or go wrong in other ways.
#![cfg(feature = "redlock")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod access;
mod cancel;
mod clocks;
mod death;
mod fleets;
mod late;
mod minority;
mod network;
mod plain;
mod process;
mod quorum;
mod renewal;
mod restart;
mod shapes;
mod support;
mod turns;
mod waiting;
mod workload;
