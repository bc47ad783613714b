//! What several stores need, once.

#[cfg(not(feature = "tls"))]
pub(super) mod no_tls;
#[cfg(feature = "tls")]
pub(super) mod pem;
pub(super) mod tls;
