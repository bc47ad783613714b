//! What the stores share of TLS: the files that a URL names, what a port speaks, and why a server is not trusted.
//! `pem.rs` reads the files.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind};

/// How long most servers may take for the first bytes of their answer to a greeting.
#[cfg(any(feature = "etcd", feature = "http", feature = "postgres", feature = "redis"))]
pub(in crate::backends) const GREETING_MAX: Duration = Duration::from_millis(500);

/// What servers say of a client's certificate, or of there being none.
const ALERTS: [&str; 7] = [
    "BadCertificate",
    "CertificateExpired",
    "CertificateRequired",
    "CertificateRevoked",
    "CertificateUnknown",
    "UnknownCA",
    "UnsupportedCertificate",
];

/// The shortest greeting of TLS 1.2 that a server answers, if only to refuse it.
#[cfg(any(feature = "etcd", feature = "http", feature = "redis", feature = "zookeeper"))]
const CLIENT_HELLO: [u8; 50] = {
    let mut hello = [0; 50];
    // A record (handshake, 45 bytes) with a message (client hello, 41 bytes) of version 1.2; its random part may be
    // zero.
    let (head, tail) = ([0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3], [0, 0, 2, 0xc0, 0x2f, 1, 0]);
    let mut at = 0;
    while at < head.len() {
        hello[at] = head[at];
        at += 1;
    }
    at = 0;
    while at < tail.len() {
        hello[43 + at] = tail[at];
        at += 1;
    }
    hello
};

/// The files that a URL names.
#[derive(Clone, Default)]
pub(in crate::backends) struct Files {
    pub(in crate::backends) ca: Option<String>,
    pub(in crate::backends) cert: Option<String>,
    pub(in crate::backends) key: Option<String>,
}

impl Files {
    pub(in crate::backends) fn any(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }
}

/// The first bytes that a server answers to a greeting within this time.
///
/// # Cancel safety
///
/// Cancel safe: nothing is asked of the server.
pub(in crate::backends) async fn first_bytes<const N: usize>(
    (host, port): (&str, u16),
    greeting: &[u8],
    limit: Duration,
) -> Option<[u8; N]> {
    let answered = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(greeting).await?;
        let mut answer = [0; N];
        stream.read_exact(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    timeout(limit, answered).await.ok()?.ok()
}

/// Whether a server surely speaks TLS: it answers to a greeting within this time.
///
/// # Cancel safety
///
/// Cancel safe: nothing is asked of the server.
#[cfg(any(feature = "etcd", feature = "http", feature = "redis", feature = "zookeeper"))]
pub(in crate::backends) async fn speaks_tls(address: (&str, u16), limit: Duration) -> bool {
    // An alert or a handshake, of any version.
    matches!(first_bytes(address, &CLIENT_HELLO, limit).await, Some([0x15 | 0x16, 3]))
}

/// What to write where a port speaks other than the URL says.
#[cfg(any(feature = "etcd", feature = "http", feature = "zookeeper"))]
pub(in crate::backends) fn misfit(server: &str, advice: &str) -> Error {
    Error::new(ErrorKind::Invalid, format!("cannot talk to {server}: it {advice}"))
}

/// A connection that TLS did not let come about, and that the same URL will not bring about later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) enum Distrust {
    /// We trust nobody who signed the server's certificate.
    Issuer,
    /// The server shows the certificate of a CA, as `openssl req -x509` makes it.
    Authority,
    /// The server's certificate names another host.
    Name,
    /// The server's certificate is not valid yet, or no longer.
    Time,
    /// The server wants a certificate of the client, or another one.
    Client,
}

impl Distrust {
    /// From the words of rustls.
    pub(in crate::backends) fn of(told: &str) -> Option<Self> {
        if let Some((_, why)) = told.split_once("invalid peer certificate: ") {
            let has = |words: [&str; 2]| words.iter().any(|words| why.contains(words));
            return Some(match () {
                () if has(["not valid for name", "NotValidForName"]) => Self::Name,
                () if why.contains("CaUsedAsEndEntity") => Self::Authority,
                () if has(["certificate expired", "Expired"]) || has(["not valid yet", "NotValidYet"]) => Self::Time,
                () => Self::Issuer,
            });
        }
        let (_, alert) = told.split_once("received fatal alert: ")?;
        ALERTS.iter().any(|known| alert.starts_with(known)).then_some(Self::Client)
    }

    /// In words. `server` is as in "Redis at HOST:PORT"; `options` are those that name the CA, and certificate and key.
    pub(in crate::backends) fn explained(self, server: &str, [ca, certificate, key]: [&str; 3]) -> Error {
        let (kind, message) = match self {
            Self::Issuer => (
                ErrorKind::Store,
                format!(
                    "the certificate of {server} is signed by nobody who is trusted: name the file of its CA by {ca}=FILE"
                ),
            ),
            Self::Authority => (
                ErrorKind::Store,
                format!(
                    "the certificate of {server} is that of a CA, which no server may show: make one with CA:FALSE (openssl \
                     req -x509 -addext basicConstraints=critical,CA:FALSE), or sign one with this CA"
                ),
            ),
            Self::Name => (
                ErrorKind::Store,
                format!("the certificate of {server} names another host: write the host as the certificate does"),
            ),
            Self::Time => (
                ErrorKind::Store,
                format!(
                    "the certificate of {server} has expired or is not valid yet: renew it, or set this machine's clock"
                ),
            ),
            Self::Client => (
                ErrorKind::Denied,
                format!(
                    "{server} wants a client's certificate that it trusts: name one by {certificate}=FILE&{key}=FILE"
                ),
            ),
        };
        Error::new(kind, message).with_certainty(crate::error::Certainty::NotApplied)
    }
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use rustls::pki_types::{ServerName, UnixTime};
    use rustls::{AlertDescription, CertificateError};

    use super::*;

    #[test]
    fn what_rustls_says_of_certificates_is_understood() {
        let (past, now) = (Duration::from_secs(1), Duration::from_secs(2));
        let (past, now) = (UnixTime::since_unix_epoch(past), UnixTime::since_unix_epoch(now));
        let expected = ServerName::try_from("db.example").unwrap();
        let of_server = [
            (CertificateError::UnknownIssuer, Distrust::Issuer),
            (CertificateError::BadSignature, Distrust::Issuer),
            (CertificateError::NotValidForName, Distrust::Name),
            (CertificateError::NotValidForNameContext { expected, presented: Vec::new() }, Distrust::Name),
            (CertificateError::Expired, Distrust::Time),
            (CertificateError::ExpiredContext { time: now, not_after: past }, Distrust::Time),
            (CertificateError::NotValidYet, Distrust::Time),
            (CertificateError::NotValidYetContext { time: past, not_before: now }, Distrust::Time),
        ];
        for (error, distrust) in of_server {
            let told = format!("transport error: {}", rustls::Error::InvalidCertificate(error));
            assert_eq!(Distrust::of(&told), Some(distrust), "{told}");
        }
        let shown = "invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))";
        assert_eq!(Distrust::of(shown), Some(Distrust::Authority));
        for (alert, distrust) in [
            (AlertDescription::CertificateRequired, Some(Distrust::Client)),
            (AlertDescription::BadCertificate, Some(Distrust::Client)),
            (AlertDescription::UnknownCA, Some(Distrust::Client)),
            (AlertDescription::CertificateExpired, Some(Distrust::Client)),
            (AlertDescription::InternalError, None),
        ] {
            let told = rustls::Error::AlertReceived(alert).to_string();
            assert_eq!(Distrust::of(&told), distrust, "{told}");
        }
        assert_eq!(Distrust::of("connection refused"), None);
    }
}
