//! Bodies of answers that know whether they were taken.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// A body that keeps something until its end.
pub(crate) struct Keeping<T> {
    body: Body,
    _kept: T,
}

impl<T: Send + Unpin + 'static> Keeping<T> {
    pub(crate) fn until_its_end(body: Body, kept: T) -> Body {
        Body::new(Self { body, _kept: kept })
    }
}

impl<T: Unpin> HttpBody for Keeping<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A body that does something if it is dropped before it was delivered.
pub(crate) struct Undelivered<F: FnMut() + Send + Unpin + 'static> {
    body: Body,
    otherwise: Option<F>,
}

impl<F: FnMut() + Send + Unpin + 'static> Undelivered<F> {
    pub(crate) fn then(body: Body, otherwise: F) -> Body {
        Body::new(Self { body, otherwise: Some(otherwise) })
    }
}

impl<F: FnMut() + Send + Unpin + 'static> HttpBody for Undelivered<F> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if frame.is_ready() {
            self.otherwise = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<F: FnMut() + Send + Unpin + 'static> Drop for Undelivered<F> {
    fn drop(&mut self) {
        if let Some(mut otherwise) = self.otherwise.take() {
            otherwise();
        }
    }
}
