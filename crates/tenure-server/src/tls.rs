//! TLS for those who call: a certificate of ours, and, if asked for, one of theirs.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Where the files are.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The service's certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that callers' certificates must be of; without it none is asked for.
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Reads them.
    ///
    /// # Errors
    ///
    /// What is wrong, and with which file.
    pub(crate) fn read(&self) -> Result<Arc<ServerConfig>, String> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key)
            .map_err(|error| format!("{} has no private key that can be read: {error}", self.key.display()))?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| format!("{}: {error}", file.display()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| format!("{}: {error}", file.display()))?)
            }
        };
        let misfit =
            |error| format!("{} and {} do not fit together: {error}", self.certificate.display(), self.key.display());
        let mut config = builder.with_single_cert(chain, key).map_err(misfit)?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let shown = path.display();
    let file = File::open(path).map_err(|error| format!("{shown} cannot be read: {error}"))?;
    let found = CertificateDer::pem_reader_iter(BufReader::new(file)).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| format!("{shown} is no list of certificates: {error}"))?;
    if found.is_empty() { Err(format!("there is no certificate in {shown}")) } else { Ok(found) }
}
