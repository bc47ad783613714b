//! A connection's socket: read and written by one, and looked at by others meanwhile.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A socket that several may look at.
#[derive(Clone, Debug)]
pub(crate) struct Socket(Arc<TcpStream>);

impl Socket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(Arc::new(stream))
    }

    /// Whether the other end has closed it, also if there is something to read before its end: hyper, for one, does not
    /// look further while it has not used what it has read.
    pub(crate) fn is_left(&self) -> bool {
        let mut looked = [PollFd::new(&*self.0, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        // What the system does not tell is found out when the answer is written.
        poll(&mut looked, Some(&at_once)).is_ok_and(|count| count > 0) && looked[0].revents().intersects(left)
    }

    /// Writes as much as there is room for.
    fn poll_with(
        &self,
        cx: &mut Context<'_>,
        mut write: impl FnMut(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match write(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read_buf(into) {
                Ok(_) => return Poll::Ready(Ok(())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_with(cx, |stream| stream.try_write_vectored(slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(shutdown(&*self.0, Shutdown::Write).map_err(io::Error::from))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn what_is_written_arrives_and_a_close_behind_unread_bytes_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut there = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut here = Socket::new(listener.accept().await.unwrap().0);
        let sent = vec![7; 1 << 20];
        let mut read = vec![0; sent.len()];
        let (written, taken) = tokio::join!(here.write_all(&sent), there.read_exact(&mut read));
        assert!(written.is_ok() && taken.is_ok() && read == sent);
        there.write_all(b"ab").await.unwrap();
        let mut one = [0];
        here.read_exact(&mut one).await.unwrap();
        assert!(!here.is_left(), "it is there");
        drop(there);
        while !here.is_left() {
            tokio::task::yield_now().await;
        }
        here.read_exact(&mut one).await.unwrap();
        assert_eq!((one, here.read(&mut one).await.unwrap()), ([b'b'], 0));
    }
}
