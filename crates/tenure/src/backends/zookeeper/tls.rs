//! TLS, for the client library and for what is asked beside it.

use std::fs;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use zookeeper_client::TlsOptions;

/// The files that a URL names.
#[derive(Default)]
pub(super) struct Files {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

/// How to talk to servers in private, said twice: the client library has a way of its own.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) options: TlsOptions,
    config: Arc<ClientConfig>,
}

impl Files {
    pub(super) fn any(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }

    pub(super) fn tls(&self) -> std::result::Result<Tls, String> {
        let ca = self.ca.as_ref().ok_or("has tls=true and no authority: add ca=PATH, a PEM file")?;
        let ca = read("CA", ca)?;
        let identity = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((read("certificate", cert)?, read("key", key)?)),
            (None, None) => None,
            _ => return Err("has one of cert and key: a client certificate needs both".to_owned()),
        };
        let identity = identity.as_ref().map(|(cert, key)| (cert.as_str(), key.as_str()));
        let (options, config) = (options(&ca, identity), config(&ca, identity));
        let unusable = |error: &dyn std::fmt::Display| format!("has certificates that cannot be used: {error}");
        Ok(Tls {
            options: options.map_err(|error| unusable(&error))?,
            config: config.map_err(|error| unusable(&error))?,
        })
    }
}

fn read(what: &str, path: &str) -> std::result::Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("names the {what} file {path:?}, which cannot be read: {error}"))
}

fn options(ca: &str, identity: Option<(&str, &str)>) -> std::result::Result<TlsOptions, zookeeper_client::Error> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // The client library takes the process's, and would end the process if there is none and several could be meant.
        // Whoever was faster has chosen then.
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    }
    let options = TlsOptions::new().with_pem_ca(ca)?;
    match identity {
        Some((cert, key)) => options.with_pem_identity(cert, key),
        None => Ok(options),
    }
}

fn config(ca: &str, identity: Option<(&str, &str)>) -> std::result::Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
        roots.add(certificate.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let Some((cert, key)) = identity else { return Ok(Arc::new(config.with_no_client_auth())) };
    let chain: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(cert.as_bytes()).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| error.to_string())?;
    let config = config.with_client_auth_cert(chain.map_err(|error| error.to_string())?, key);
    Ok(Arc::new(config.map_err(|error| error.to_string())?))
}

/// Bytes to and from a server.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects to a server, for a question.
///
/// # Cancel safety
///
/// Cancel safe: the connection is closed.
pub(super) async fn dial(tls: Option<&Tls>, host: &str, port: u16) -> std::io::Result<Box<dyn Stream>> {
    greet(tls, host, TcpStream::connect((host, port)).await?).await
}

/// Begins to talk over a connection to this host.
///
/// # Cancel safety
///
/// Cancel safe: the connection is closed.
pub(super) async fn greet(tls: Option<&Tls>, host: &str, stream: TcpStream) -> std::io::Result<Box<dyn Stream>> {
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
    Ok(Box::new(TlsConnector::from(tls.config.clone()).connect(name, stream).await?))
}
