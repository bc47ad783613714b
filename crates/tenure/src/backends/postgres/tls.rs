//! What `sslmode` and the files beside it come to.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;

use super::encrypted::Encrypted;
use super::sslmode::Mode;
use crate::backends::kit::pem::{Identity, provider};
use crate::backends::kit::tls::Files;

/// What `sslrootcert` is called where the system's authorities are meant.
const SYSTEM: &str = "system";

/// How connections are encrypted.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) mode: Mode,
    config: Arc<ClientConfig>,
}

/// What encrypts a connection.
pub(super) type Connector = Encrypted;

impl Tls {
    pub(super) fn of(mode: Mode, files: &Files) -> Result<Self, String> {
        if files.ca.is_some() && mode.is_weak() {
            return Err(
                "has sslrootcert=, and an sslmode that checks no certificate: write sslmode=verify-full".to_owned()
            );
        }
        if mode == Mode::Disable && files.any() {
            return Err("has sslcert= and sslkey= but no TLS: write sslmode=verify-full".to_owned());
        }
        let system = files.ca.as_deref() == Some(SYSTEM);
        if system && mode != Mode::VerifyFull {
            return Err("trusts all of the system's authorities: write sslmode=verify-full".to_owned());
        }
        let ca = files.ca.clone().filter(|_| !system);
        let pem = Files { ca, cert: files.cert.clone(), key: files.key.clone() }.read(["sslcert", "sslkey"])?;
        let trust = match (mode, pem.roots()) {
            (Mode::Disable | Mode::Allow | Mode::Prefer, _) | (Mode::Require, None) => Trust::Anybody,
            (Mode::Require, Some(roots)) => Trust::Signed(roots),
            (Mode::VerifyCa, roots) => Trust::Signed(roots.map_or_else(system_roots, Ok)?),
            (Mode::VerifyFull, roots) => Trust::Named(roots.map_or_else(system_roots, Ok)?),
        };
        let config = config(trust, pem.identity.as_ref()).map_err(|error| format!("cannot use TLS: {error}"))?;
        Ok(Self { mode, config: Arc::new(config) })
    }

    pub(super) fn connector(&self) -> Connector {
        Encrypted(self.config.clone())
    }

    /// How to try to connect, in this order.
    pub(super) fn tries(&self) -> &'static [SslMode] {
        match self.mode {
            Mode::Disable => &[SslMode::Disable],
            Mode::Allow => &[SslMode::Disable, SslMode::Require],
            Mode::Prefer => &[SslMode::Prefer, SslMode::Disable],
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => &[SslMode::Require],
        }
    }
}

/// Whose certificate is taken.
enum Trust {
    Anybody,
    /// Of whoever one of these signed.
    Signed(RootCertStore),
    /// The same, if it names the host.
    Named(RootCertStore),
}

fn system_roots() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    // A certificate that cannot be read is one that is not trusted.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("has TLS, but no certificate to trust: name a file with sslrootcert=FILE".to_owned());
    }
    Ok(roots)
}

fn config(trust: Trust, own: Option<&Identity>) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(provider());
    let config = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let config = match trust {
        Trust::Named(roots) => config.with_root_certificates(roots),
        Trust::Signed(roots) => {
            config.dangerous().with_custom_certificate_verifier(Arc::new(Unnamed { roots: Some(roots), provider }))
        }
        Trust::Anybody => {
            config.dangerous().with_custom_certificate_verifier(Arc::new(Unnamed { roots: None, provider }))
        }
    };
    match own.and_then(Identity::parsed) {
        Some((chain, key)) => config.with_client_auth_cert(chain, key),
        None => Ok(config.with_no_client_auth()),
    }
}

/// Takes certificates whatever host they name.
#[derive(Debug)]
struct Unnamed {
    /// Who must have signed them; nobody, if any certificate will do.
    roots: Option<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unnamed {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(roots) = &self.roots {
            let parsed = ParsedCertificate::try_from(certificate)?;
            let algorithms = self.provider.signature_verification_algorithms.all;
            verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
