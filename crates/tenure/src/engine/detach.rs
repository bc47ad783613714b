//! A future that is finished in the background if its caller leaves.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::core::Core;

type Work<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// Runs `work` within the caller's task; dropped before the end, the rest becomes an errand of the client.
pub(crate) struct Detach<T: Send + 'static> {
    core: Arc<Core>,
    work: Option<Work<T>>,
}

impl<T: Send + 'static> Detach<T> {
    pub(crate) fn new(core: Arc<Core>, work: Work<T>) -> Self {
        Self { core, work: Some(work) }
    }
}

impl<T: Send + 'static> Future for Detach<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.work else { return Poll::Pending };
        let output = std::task::ready!(work.as_mut().poll(cx));
        self.work = None;
        Poll::Ready(output)
    }
}

impl<T: Send + 'static> Drop for Detach<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.core.errand(Box::pin(async move { drop(work.await) }));
        }
    }
}
