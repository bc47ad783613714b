//! The thread that a client lives on.

use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

use super::wait::{is_async_thread, refuse_on_async_thread, wait};
use crate::error::{Certainty, Error, ErrorKind, Result, Step};

/// How long whoever drops the last value of a client waits for what is pending.
const END_MAX: Duration = Duration::from_secs(5);
const THREAD_NAME: &str = "tenure-blocking";

/// What all values of one client share: the thread that drives its runtime. It ends when this is dropped.
pub(super) struct Background {
    runtime: Handle,
    /// Dropped to end the thread.
    end: Option<oneshot::Sender<Infallible>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<mpsc::Receiver<Infallible>>,
}

impl Background {
    /// Starts a thread and connects a client there.
    pub(super) fn start<C>(connect: impl FnOnce() -> C + Send + 'static) -> Result<(Arc<Self>, crate::Tenure)>
    where
        C: Future<Output = Result<crate::Tenure>>,
    {
        refuse_on_async_thread()?;
        let runtime = runtime()?;
        let (end, end_told) = oneshot::channel();
        let (alive, ended) = mpsc::channel();
        let (connected, outcome) = mpsc::channel();
        let background = Self { runtime: runtime.handle().clone(), end: Some(end), ended: Mutex::new(ended) };
        let live = move || {
            // Dropped last, when nothing of the client is left.
            let _alive = alive;
            runtime.block_on(async move {
                let tenure = match connect().await {
                    Ok(tenure) => tenure,
                    Err(error) => return drop(connected.send(Err(error))),
                };
                let was_heard = connected.send(Ok(tenure.clone())).is_ok();
                if was_heard {
                    let _ = end_told.await;
                }
                if let Err(error) = tenure.close().await {
                    tracing::warn!(%error, "claims of a client that was dropped end with their ttl");
                }
            });
            // A lookup of a host that hangs holds up nobody.
            runtime.shutdown_background();
        };
        thread::Builder::new().name(THREAD_NAME.to_owned()).spawn(live).map_err(no_thread)?;
        match outcome.recv() {
            Ok(tenure) => Ok((Arc::new(background), tenure?)),
            Err(_) => Err(died()),
        }
    }

    /// Waits for what the client does: the one way from here to the async functions.
    pub(super) fn wait<T, E: From<Error>>(&self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        Self::wait_with(Some(self), work)
    }

    /// The same for what several clients do, or none.
    pub(super) fn wait_with<T, E: From<Error>>(
        any: Option<&Self>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        refuse_on_async_thread()?;
        wait(any.map(|background| &background.runtime), work)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.end.take());
        if !is_async_thread() {
            let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = ended.recv_timeout(END_MAX);
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").finish_non_exhaustive()
    }
}

/// Runs `work`, which needs a runtime and no client, on a thread of its own.
pub(super) fn run_once<T: Send, W>(work: impl FnOnce() -> W + Send) -> Result<T>
where
    W: Future<Output = Result<T>>,
{
    refuse_on_async_thread()?;
    let runtime = runtime()?;
    thread::scope(|threads| {
        let run = || {
            let outcome = runtime.block_on(work());
            runtime.shutdown_background();
            outcome
        };
        let running = thread::Builder::new().name(THREAD_NAME.to_owned()).spawn_scoped(threads, run);
        running.map_err(no_thread)?.join().unwrap_or_else(|_| Err(died()))
    })
}

fn runtime() -> Result<Runtime> {
    Builder::new_current_thread().thread_name(THREAD_NAME).enable_all().build().map_err(no_thread)
}

fn no_thread(cause: std::io::Error) -> Error {
    let error = Error::new(ErrorKind::Unavailable, "the client's thread could not be started");
    error.with_certainty(Certainty::NotApplied).at(Step::Connect).because(cause)
}

/// Its panic was told on stderr.
fn died() -> Error {
    Error::new(ErrorKind::Unavailable, "the client's thread died while it connected").at(Step::Connect)
}
