//! The stores. Each is a cargo feature; memory is always on.

#[cfg(feature = "etcd")]
pub mod etcd;
pub mod memory;
#[cfg(not(feature = "tls"))]
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
mod no_tls;
#[cfg(feature = "tls")]
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
mod pem;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redlock")]
pub mod redlock;
#[cfg(all(feature = "sqlite", target_os = "linux"))]
pub mod sqlite;
#[cfg(any(feature = "etcd", feature = "postgres", feature = "redis", feature = "zookeeper"))]
mod tls;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;
