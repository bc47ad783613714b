//! HTTP/1.1 and HTTP/2 on the same port, told apart by a connection's first bytes.
//!
//! hyper-util does this too, but hands those bytes to hyper as a read of their own. hyper then doubles its read buffer
//! before the rest of the head arrives, and a request that waits keeps 16 KiB instead of 8.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// The first bytes of every HTTP/2 connection, by its standard.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// What a caller speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A connection whose first bytes have been read; it returns them again, together with what follows them.
#[derive(Debug)]
pub(crate) struct Begun<S> {
    stream: S,
    first: [u8; PREFACE.len()],
    returned: usize,
    filled: usize,
}

impl<S: AsyncRead + Unpin> Begun<S> {
    /// Reads until it is clear what the caller speaks.
    ///
    /// # Errors
    ///
    /// The connection's.
    ///
    /// # Cancel safety
    ///
    /// Cancelling closes the connection.
    pub(crate) async fn read(mut stream: S) -> io::Result<(Version, Self)> {
        let mut first = [0; PREFACE.len()];
        let mut filled = 0;
        while filled < PREFACE.len() {
            let count = stream.read(&mut first[filled..]).await?;
            filled += count;
            if count == 0 || first[..filled] != PREFACE[..filled] {
                return Ok((Version::Http1, Self { stream, first, returned: 0, filled }));
            }
        }
        Ok((Version::Http2, Self { stream, first, returned: 0, filled }))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Begun<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let left = &this.first[this.returned..this.filled];
        if left.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, into);
        }
        let count = left.len().min(into.remaining());
        into.put_slice(&left[..count]);
        this.returned += count;
        // What follows goes into the same read. An error or an end is met again by the next one.
        let _ = Pin::new(&mut this.stream).poll_read(cx, into);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Begun<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt as _;

    #[tokio::test]
    async fn what_is_spoken_is_told_by_the_first_bytes_however_they_arrive() {
        let cases: [(&[&[u8]], Version); 5] = [
            (&[b"POST /v1/acquire HTTP/1.1\r\n"], Version::Http1),
            (&[b"P", b"OST / HTTP/1.1\r\n"], Version::Http1),
            (&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"frames"], Version::Http2),
            (&[b"PRI * HTTP/2.0\r\n\r\n", b"SM\r\n\r\nframes"], Version::Http2),
            (&[b"PRI"], Version::Http1),
        ];
        for (parts, version) in cases {
            let (mut caller, stream) = tokio::io::duplex(1024);
            let sending = async {
                for part in parts {
                    caller.write_all(part).await.unwrap();
                    tokio::task::yield_now().await;
                }
                drop(caller);
            };
            let reading = async {
                let (told, mut begun) = Begun::read(stream).await.unwrap();
                assert_eq!(told, version, "{parts:?}");
                let mut read = Vec::new();
                begun.read_to_end(&mut read).await.unwrap();
                assert_eq!(read, parts.concat());
            };
            tokio::join!(sending, reading);
        }
    }

    #[tokio::test]
    async fn a_request_that_has_arrived_is_one_read() {
        let (mut caller, stream) = tokio::io::duplex(1024);
        let request = b"POST /v1/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
        caller.write_all(request).await.unwrap();
        let (_, mut begun) = Begun::read(stream).await.unwrap();
        let mut read = [0; 1024];
        assert_eq!(begun.read(&mut read).await.unwrap(), request.len());
    }
}
