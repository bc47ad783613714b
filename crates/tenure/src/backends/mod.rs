//! The stores. Each is a cargo feature; memory is always on.

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "etcd", feature = "http", feature = "postgres", feature = "redis", feature = "zookeeper"))]
mod kit;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
pub mod sqlite;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
