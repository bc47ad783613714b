//! The servers that tests rely on: they start, fail and end as told.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod clock;
mod cluster;
mod connection;
mod fleet;
mod leftovers;
mod lifetime;
mod own_network;
mod postgres;
mod proxy;
mod redis;
mod sentinel;
mod zookeeper;
