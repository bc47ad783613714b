//! A build without the feature `tls`: it refuses the URLs that ask for TLS.

/// What is wrong with such a URL.
pub(in crate::backends) const MISSING: &str =
    "asks for TLS, and this build of tenure has no TLS: add the feature `tls`";

/// What a connection with TLS would be made by: there is no such value.
#[cfg(any(feature = "etcd", feature = "redis"))]
pub(in crate::backends) type Never = std::convert::Infallible;
