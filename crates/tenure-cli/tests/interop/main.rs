//! Other people's lock clients beside the real binary, on one Redis or on five, on etcd, or on a ZooKeeper ensemble:
//! exclusion both ways. The examples over HTTP beside each other.
//!
//! They are ignored unless asked for: `scripts/interop` installs the clients it is told (`python`, `node`, `go`,
//! `java`) and runs the tests they take part in. A client that is not installed is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod clients;
mod command;
mod counter;
mod driver;
mod etcd;
mod five;
mod http;
mod plain;
mod redisson;
mod scene;
mod together;
mod zookeeper;
