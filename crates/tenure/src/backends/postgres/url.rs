//! `postgres://USER:PASSWORD@HOST[:PORT][,HOST2]/DATABASE?OPTIONS`.

use std::fs;
use std::str::FromStr as _;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio_postgres::Config;
use tokio_postgres::config::{SslMode, TargetSessionAttrs};

use crate::connect::redacted;
use crate::error::{Error, ErrorKind, Result, Step};

/// The schema that has tenure's tables.
const SCHEMA: &str = "tenure";
/// The longest name PostgreSQL keeps.
const SCHEMA_MAX: usize = 63;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long what was sent may go unacknowledged before the connection counts as dead.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// A parsed URL.
#[derive(Clone)]
pub(super) struct Settings {
    /// Without a password, for messages.
    pub(super) shown: String,
    pub(super) config: Config,
    /// Where to listen, if the servers above are behind a pooler.
    pub(super) listen: Option<Config>,
    /// Quoted, for statements.
    pub(super) schema: String,
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.shown)
    }
}

impl Settings {
    pub(super) fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let invalid =
            |problem: String| Error::new(ErrorKind::Invalid, format!("{shown:?} {problem}")).at(Step::Connect);
        let (place, options) = url.split_once('?').unwrap_or((url, ""));
        let mut left = Vec::new();
        let (mut schema, mut listen, mut mode, mut ca) = (SCHEMA.to_owned(), None, None, None);
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = percent_decode_str(value).decode_utf8_lossy().into_owned();
            match name {
                "schema" => schema = value,
                "listen" => listen = Some(value),
                "sslmode" => mode = Some(value),
                "sslrootcert" => ca = Some(value),
                _ => left.push(option),
            }
        }
        if schema.is_empty() || schema.len() > SCHEMA_MAX || schema.contains('\0') {
            return Err(invalid(format!("names the schema {schema:?}: it has 1 to {SCHEMA_MAX} bytes")));
        }
        let tls = match mode.as_deref() {
            None | Some("disable") if ca.is_none() => None,
            None | Some("disable") => {
                return Err(invalid("has a certificate but no TLS: add sslmode=verify-full".to_owned()));
            }
            Some("require" | "verify-full") => Some(client_tls(ca.as_deref()).map_err(&invalid)?),
            Some(other) => {
                return Err(invalid(format!(
                    "has sslmode={other}: it is disable, or verify-full (require is taken for the same)"
                )));
            }
        };
        let configured = |url: &str| -> Result<Config> {
            let mut config = Config::from_str(url)
                .map_err(|error| invalid("cannot be understood".to_owned()).because(error.to_string()))?;
            if config.get_hosts().is_empty() {
                return Err(invalid("names no host: write it as postgres://USER@HOST/DATABASE".to_owned()));
            }
            if config.get_application_name().is_none() {
                config.application_name("tenure");
            }
            if config.get_connect_timeout().is_none() {
                config.connect_timeout(CONNECT_TIMEOUT);
            }
            config
                .ssl_mode(if tls.is_some() { SslMode::Require } else { SslMode::Disable })
                .tcp_user_timeout(SILENT_MAX)
                .keepalives_idle(SILENT_MAX)
                .keepalives_interval(Duration::from_secs(1))
                .keepalives_retries(3)
                // A standby takes no locks.
                .target_session_attrs(TargetSessionAttrs::ReadWrite);
            Ok(config)
        };
        let rest = if left.is_empty() { place.to_owned() } else { format!("{place}?{}", left.join("&")) };
        Ok(Self {
            config: configured(&rest)?,
            listen: listen.map(|listen| configured(&listen)).transpose()?,
            schema: format!("\"{}\"", schema.replace('"', "\"\"")),
            tls,
            shown: shown.clone(),
        })
    }
}

/// Trusts the certificates in a file, or else those of the system.
fn client_tls(ca: Option<&str>) -> std::result::Result<Arc<rustls::ClientConfig>, String> {
    let mut roots = rustls::RootCertStore::empty();
    if let Some(path) = ca {
        let text = fs::read(path).map_err(|error| format!("names the CA file {path:?}: {error}"))?;
        for certificate in CertificateDer::pem_slice_iter(&text) {
            let certificate = certificate.map_err(|error| format!("has a bad certificate in {path:?}: {error}"))?;
            roots.add(certificate).map_err(|error| format!("has a bad certificate in {path:?}: {error}"))?;
        }
    } else {
        for certificate in rustls_native_certs::load_native_certs().certs {
            // One that cannot be read is one that is not trusted.
            drop(roots.add(certificate));
        }
    }
    if roots.is_empty() {
        return Err("has TLS, but no certificate to trust: name a file with sslrootcert=PATH".to_owned());
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("cannot use TLS: {error}"))?;
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_where_and_as_whom() {
        let settings = Settings::parse("postgres://me:p%40ss@a:1,b:2/app?schema=locks&connect_timeout=2").unwrap();
        assert_eq!(settings.config.get_user(), Some("me"));
        assert_eq!(settings.config.get_password(), Some(&b"p@ss"[..]));
        assert_eq!(settings.config.get_ports(), [1, 2]);
        assert_eq!(settings.config.get_connect_timeout(), Some(&Duration::from_secs(2)));
        assert_eq!(settings.schema, "\"locks\"");
        assert_eq!(settings.shown, "postgres://me:***@a:1,b:2/app?schema=locks&connect_timeout=2");
        assert!(settings.listen.is_none() && settings.tls.is_none());
        let settings = Settings::parse("postgres://h/db?schema=a%22b&listen=postgres%3A%2F%2Fdirect%2Fdb").unwrap();
        assert_eq!(settings.schema, "\"a\"\"b\"");
        assert!(settings.listen.is_some());
    }

    #[test]
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, problem) in [
            ("postgres://u:hidden@h/db?schema=", "1 to 63 bytes"),
            ("postgres://u:hidden@h/db?sslmode=prefer", "sslmode=prefer"),
            ("postgres://u:hidden@h/db?sslrootcert=x", "no TLS"),
            ("postgres://u:hidden@h/db?sslmode=verify-full&sslrootcert=/no/such", "/no/such"),
            ("postgres://u:hidden@h/db?layout=plain", "understood"),
            ("postgres:///db", "no host"),
        ] {
            let error = Settings::parse(url).unwrap_err();
            let text = format!("{error:?}");
            assert!(error.kind() == ErrorKind::Invalid && text.contains(problem), "{url}: {text}");
            assert!(!text.contains("hidden"), "{text}");
        }
    }
}
