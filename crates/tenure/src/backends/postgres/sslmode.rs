//! `sslmode`, as libpq has it.

/// What a URL says of TLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Mode {
    /// Never.
    Disable,
    /// If the server lets nobody in without.
    Allow,
    /// If the server has it.
    #[default]
    Prefer,
    /// Always; the certificate is checked if a CA is named.
    Require,
    /// Always; somebody trusted must have signed the certificate.
    VerifyCa,
    /// The same, and the certificate must name the host.
    VerifyFull,
}

impl Mode {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "disable" => Self::Disable,
            "allow" => Self::Allow,
            "prefer" => Self::Prefer,
            "require" => Self::Require,
            "verify-ca" => Self::VerifyCa,
            "verify-full" => Self::VerifyFull,
            _ => return None,
        })
    }

    /// Whether a connection may come about that is not encrypted.
    pub(super) fn is_weak(self) -> bool {
        matches!(self, Self::Disable | Self::Allow | Self::Prefer)
    }
}
