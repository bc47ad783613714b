//! Real servers on loopback ports, for tests: a Redis, one with TLS, three Sentinels, a Cluster, a fleet of
//! independent ones; a PostgreSQL, its standby, a pooler before it; and the faults they meet: a clock that is off, a
//! proxy that plays the bad network, and a network of a test's own that really is bad.
//!
//! A server ends with its owner, and with the test process however that ends. A server that is not installed is
//! a failure, never a skip.

mod builder;
mod certificates;
mod clock_shift;
mod cluster;
mod etcd;
mod fleet;
mod leftovers;
mod own_network;
mod packets;
mod pgbouncer;
mod ports;
mod postgres;
mod proxied;
mod proxy;
mod redis;
mod scratch;
mod sentinel;
pub mod shared;
mod spawn;
mod wait;
mod zookeeper;

pub use builder::Builder;
pub use cluster::Cluster;
pub use etcd::{Etcd, EtcdBuilder};
pub use fleet::{Fleet, FleetBuilder};
pub use leftovers::{leftovers, without_expiry};
pub use own_network::{in_own_network, in_own_network_async};
pub use packets::OwnNetwork;
pub use pgbouncer::PgBouncer;
pub use postgres::{CERTIFIED, Postgres, PostgresBuilder};
pub use proxied::ProxiedFleet;
pub use proxy::Proxy;
pub use redis::Redis;
pub use sentinel::Sentinel;
pub use wait::wait_until;
pub use zookeeper::{Zookeeper, ZookeeperBuilder};
