//! What stands for `tls.rs` in a build without the feature `tls`.

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::backends::kit::tls::Files;

/// How to talk to servers in private: there is no such value.
#[derive(Clone)]
pub(super) enum Tls {}

impl Tls {
    pub(super) fn of(_: &Files) -> std::result::Result<Self, String> {
        Err(crate::backends::kit::no_tls::MISSING.to_owned())
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
