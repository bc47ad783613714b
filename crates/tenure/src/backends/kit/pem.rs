//! The files that a URL names for TLS, checked when it is read.

use std::fs;

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use super::tls::Files;

/// What the files hold, as PEM. It was checked that it can be used.
pub(in crate::backends) struct Pem {
    /// Whom to trust instead of the system's authorities.
    pub(in crate::backends) ca: Option<Vec<u8>>,
    pub(in crate::backends) identity: Option<Identity>,
}

/// The client's certificate and its key, as PEM.
pub(in crate::backends) struct Identity {
    pub(in crate::backends) certificate: Vec<u8>,
    pub(in crate::backends) key: Vec<u8>,
}

impl Files {
    /// Reads the files, or says what is wrong with one of them. `options` are the names of those for certificate and
    /// key.
    pub(in crate::backends) fn read(&self, options: [&str; 2]) -> Result<Pem, String> {
        let ca = self.ca.as_ref().map(|path| authorities(path)).transpose()?;
        let identity = match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => Some(identity(certificate, key)?),
            (None, None) => None,
            _ => {
                let [certificate, key] = options;
                return Err(format!("has one of {certificate} and {key}: a client certificate needs both"));
            }
        };
        Ok(Pem { ca, identity })
    }
}

impl Pem {
    /// Those to trust: the authorities of the file.
    #[cfg(any(feature = "http", feature = "postgres", feature = "zookeeper"))]
    pub(in crate::backends) fn roots(&self) -> Option<RootCertStore> {
        self.ca.as_ref().map(|ca| roots(ca))
    }
}

#[cfg(any(feature = "http", feature = "postgres", feature = "zookeeper"))]
impl Identity {
    /// The certificate, those that vouch for it, and the key.
    pub(in crate::backends) fn parsed(&self) -> Option<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        Some((certificates(&self.certificate), PrivateKeyDer::from_pem_slice(&self.key).ok()?))
    }
}

/// What encrypts. It is named, since a process may have several to choose from and has then no default.
pub(in crate::backends) fn provider() -> CryptoProvider {
    rustls::crypto::aws_lc_rs::default_provider()
}

fn read(what: &str, path: &str) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("names the {what} file {path:?}, which cannot be read: {error}"))
}

fn certificates(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).collect()
}

fn roots(pem: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // A certificate that cannot be read is one that is not trusted.
    roots.add_parsable_certificates(certificates(pem));
    roots
}

fn authorities(path: &str) -> Result<Vec<u8>, String> {
    let pem = read("CA", path)?;
    if certificates(&pem).is_empty() {
        return Err(format!("names the CA file {path:?}, which has no certificate in it (PEM)"));
    }
    if roots(&pem).is_empty() {
        return Err(format!("names the CA file {path:?}, whose certificates cannot be used"));
    }
    Ok(pem)
}

fn identity(certificate_path: &str, key_path: &str) -> Result<Identity, String> {
    let certificate = read("certificate", certificate_path)?;
    let chain = certificates(&certificate);
    if chain.is_empty() {
        return Err(format!("names the certificate file {certificate_path:?}, which has no certificate in it (PEM)"));
    }
    let key = read("key", key_path)?;
    let parsed = PrivateKeyDer::from_pem_slice(&key).map_err(|error| match error {
        rustls::pki_types::pem::Error::NoItemsFound => {
            format!("names the key file {key_path:?}, which has no private key in it (PEM)")
        }
        error => format!("names the key file {key_path:?}, which cannot be used: {error}"),
    })?;
    match CertifiedKey::from_der(chain, parsed, &provider()) {
        Ok(_) => Ok(Identity { certificate, key }),
        Err(rustls::Error::InconsistentKeys(_)) => Err(format!(
            "names the key file {key_path:?}, which is not the key of the certificate in {certificate_path:?}"
        )),
        Err(error) => Err(format!(
            "names the certificate file {certificate_path:?} and the key file {key_path:?}, which cannot be used: {error}"
        )),
    }
}
