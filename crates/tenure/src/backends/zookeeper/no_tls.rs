//! What stands for `tls.rs` in a build without the feature `tls`.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The files that a URL names.
#[derive(Default)]
pub(super) struct Files {
    pub(super) ca: Option<String>,
    pub(super) cert: Option<String>,
    pub(super) key: Option<String>,
}

pub(super) use crate::backends::no_tls::Never as Tls;

impl Files {
    pub(super) fn any(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }

    pub(super) fn tls(&self) -> std::result::Result<Tls, String> {
        Err(crate::backends::no_tls::MISSING.to_owned())
    }
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
pub(super) async fn greet(_: Option<&Tls>, _: &str, stream: TcpStream) -> std::io::Result<Box<dyn Stream>> {
    Ok(Box::new(stream))
}
