//! Other people's lock clients beside the real binary, on one Redis or on five, on etcd, or on a ZooKeeper ensemble: exclusion both ways.
//!
//! `TENURE_INTEROP` lists the clients that take part (`python,node,go,java`), and `scripts/interop` installs and lists them.
//! Those that are not listed are reported as not run; one that is listed and not installed is a failure.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cases;
mod clients;
mod command;
mod counter;
mod driver;
mod etcd;
mod five;
mod plain;
mod redisson;
mod scene;
mod together;
mod zookeeper;
