//! What stands for `tls.rs` in a build without the feature `tls`.

use tokio_postgres::NoTls;
use tokio_postgres::config::SslMode;

use super::sslmode::Mode;
use crate::backends::kit::tls::Files;

/// How connections are encrypted: not at all.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) mode: Mode,
}

/// What encrypts a connection.
pub(super) type Connector = NoTls;

impl Tls {
    /// A URL that leaves it open is content without.
    pub(super) fn of(mode: Mode, files: &Files) -> Result<Self, String> {
        if files.any() || !mode.is_weak() {
            return Err(crate::backends::kit::no_tls::MISSING.to_owned());
        }
        Ok(Self { mode })
    }

    pub(super) fn connector(&self) -> Connector {
        NoTls
    }

    /// How to try to connect, in this order.
    pub(super) fn tries(&self) -> &'static [SslMode] {
        &[SslMode::Disable]
    }
}
