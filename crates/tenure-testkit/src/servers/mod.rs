//! Real servers on loopback ports, for tests: a Redis, one with TLS, three Sentinels, a Cluster, and a proxy that
//! plays the bad network in front of them.
//!
//! A server ends with its owner, and with the test process however that ends. A server that is not installed is
//! a failure, never a skip.

mod builder;
mod certificates;
mod clock_shift;
mod cluster;
mod leftovers;
mod ports;
mod proxy;
mod redis;
mod scratch;
mod sentinel;
pub mod shared;
mod spawn;
mod wait;

pub use builder::Builder;
pub use cluster::Cluster;
pub use leftovers::{leftovers, without_expiry};
pub use proxy::Proxy;
pub use redis::Redis;
pub use sentinel::Sentinel;
pub use wait::wait_until;
