//! A connection whose other end has to take what is sent: one that does not read is given up.

use std::future::Future as _;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::connection::Connection;

/// A stream on which no write may be stuck for longer than its limit.
#[derive(Debug)]
pub(crate) struct WriteLimit<S> {
    stream: S,
    limit: Duration,
    /// Told whether a write is stuck.
    connection: Option<Arc<Connection>>,
    /// Since a write is stuck: until when it may be.
    until: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteLimit<S> {
    pub(crate) fn new(stream: S, limit: Duration) -> Self {
        Self { stream, limit, connection: None, until: None }
    }

    /// The same; a connection is told whether a write is stuck.
    pub(crate) fn telling(mut self, connection: &Arc<Connection>) -> Self {
        self.connection = Some(connection.clone());
        self
    }

    fn is_stuck(&self, stuck: bool) {
        if let Some(connection) = &self.connection {
            connection.has_unsent(stuck);
        }
    }

    /// What a write came to; an error if it has been stuck for too long.
    fn limited<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.until.take().is_some() {
                self.is_stuck(false);
            }
            return written;
        }
        if self.until.is_none() {
            self.is_stuck(true);
        }
        let limit = self.limit;
        let until = self.until.get_or_insert_with(|| Box::pin(sleep(limit)));
        ready!(until.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the other end takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteLimit<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteLimit<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.limited(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.limited(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.limited(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.limited(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::Instant;

    use super::*;
    use crate::connection::Room;

    #[tokio::test]
    async fn a_write_that_is_stuck_fails_and_one_that_goes_on_does_not() {
        let (here, mut there) = duplex(8);
        let mut here = WriteLimit::new(here, Duration::from_secs(3_600));
        let mut taken = [0; 800];
        let (written, read) = tokio::join!(here.write_all(&[0; 800]), there.read_exact(&mut taken));
        assert!(written.is_ok() && read.is_ok());
        assert!(here.until.is_none(), "no time runs while nothing is stuck");
        here.limit = Duration::from_millis(50);
        here.write_all(&[0; 8]).await.unwrap();
        let began = Instant::now();
        let stuck = here.write_all(&[0]).await.unwrap_err();
        assert_eq!((stuck.kind(), began.elapsed() >= here.limit), (io::ErrorKind::TimedOut, true));
    }

    #[tokio::test]
    async fn a_connection_whose_caller_has_not_taken_its_answer_is_not_idle() {
        let room = Room::new(1, Duration::from_secs(60));
        let slot = room.enter(([127, 0, 0, 1], 1).into()).await.unwrap();
        let connection = slot.connection.clone();
        let (here, mut there) = duplex(8);
        let mut here = WriteLimit::new(here, Duration::from_secs(3_600)).telling(&connection);
        assert!(connection.is_idle());
        let mut taken = [0; 16];
        let reading = async {
            // Half of it has been written by now, and half is stuck.
            tokio::task::yield_now().await;
            assert!(!connection.is_idle());
            there.read_exact(&mut taken).await
        };
        let (written, read) = tokio::join!(here.write_all(&[0; 16]), reading);
        assert!(written.is_ok() && read.is_ok() && connection.is_idle());
    }
}
