//! ZooKeeper: what is special about sessions, watches and an ensemble.
#![cfg(feature = "zookeeper")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, clippy::expect_used)]

mod access;
mod close;
mod commands;
mod doubt;
mod ensemble;
mod layout;
mod limits;
mod lost;
mod memos;
mod network;
mod sessions;
mod support;
mod within;
