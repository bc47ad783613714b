//! TLS, for the client library and for what is asked beside it.

use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use zookeeper_client::TlsOptions;

use crate::backends::kit::pem::{Identity, Pem, provider};
use crate::backends::kit::tls::Files;

/// How to talk to servers in private, said twice: the client library has a way of its own.
#[derive(Clone)]
pub(super) struct Tls {
    pub(super) options: TlsOptions,
    config: Arc<ClientConfig>,
}

impl Tls {
    pub(super) fn of(files: &Files) -> std::result::Result<Self, String> {
        let pem = files.read(["cert", "key"])?;
        let ca = pem.ca.as_ref().ok_or("has tls=true and no authority: add ca=FILE, a PEM file")?;
        let unusable = |error: &dyn std::fmt::Display| format!("has certificates that cannot be used: {error}");
        Ok(Self {
            options: options(ca, pem.identity.as_ref()).map_err(|error| unusable(&error))?,
            config: config(&pem).map_err(|error| unusable(&error))?,
        })
    }
}

fn options(ca: &[u8], own: Option<&Identity>) -> std::result::Result<TlsOptions, zookeeper_client::Error> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // The client library takes the process's, and would end the process if there is none and several could be
        // meant. Whoever was faster has chosen then.
        drop(provider().install_default());
    }
    let options = TlsOptions::new().with_pem_ca(&String::from_utf8_lossy(ca))?;
    match own {
        Some(own) => {
            options.with_pem_identity(&String::from_utf8_lossy(&own.certificate), &String::from_utf8_lossy(&own.key))
        }
        None => Ok(options),
    }
}

fn config(pem: &Pem) -> std::result::Result<Arc<ClientConfig>, rustls::Error> {
    let config = ClientConfig::builder_with_provider(Arc::new(provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(pem.roots().unwrap_or_else(RootCertStore::empty));
    Ok(Arc::new(match pem.identity.as_ref().and_then(Identity::parsed) {
        Some((chain, key)) => config.with_client_auth_cert(chain, key)?,
        None => config.with_no_client_auth(),
    }))
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
