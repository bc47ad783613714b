//! What several stores need, once.

#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) mod memo;
#[cfg(not(feature = "tls"))]
pub(super) mod no_tls;
#[cfg(feature = "tls")]
pub(super) mod pem;
pub(super) mod tls;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub(super) mod wall;
