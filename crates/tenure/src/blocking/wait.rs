//! Waiting for a future on a thread that may block.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio::runtime::Handle;
use tokio::task::coop;

use crate::error::{Error, ErrorKind, Result};

/// More than Tokio lets a task do before it must yield.
const BUDGET_MAX: u32 = 256;

/// Waits until `work` has ended. Its timers and connections are those of `runtime`, which another thread drives.
pub(super) fn wait<T>(runtime: Option<&Handle>, work: impl Future<Output = T>) -> T {
    let signal = Arc::new(Signal::default());
    let waker = Waker::from(signal.clone());
    let mut context = Context::from_waker(&waker);
    let mut work = pin!(work);
    loop {
        let polled = {
            let _here = runtime.map(Handle::enter);
            work.as_mut().poll(&mut context)
        };
        match polled {
            Poll::Ready(output) => return output,
            Poll::Pending => signal.wait(),
        }
    }
}

/// Wakes the thread that waits. Not `thread::park`: that is the caller's, who may be unparked for another reason.
#[derive(Default)]
struct Signal {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Signal {
    fn woken(&self) -> MutexGuard<'_, bool> {
        self.woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let woken = self.bell.wait_while(self.woken(), |woken| !*woken);
        *woken.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.woken() = true;
        self.bell.notify_one();
    }
}

/// Refuses to wait where other tasks would have to wait too.
pub(super) fn refuse_on_async_thread() -> Result<()> {
    if is_async_thread() {
        let message = "a blocking call in async code would hold up all tasks of this thread: use tenure::Tenure here, \
                       or call it within tokio::task::spawn_blocking";
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    Ok(())
}

/// Whether this thread is in the middle of a task of a runtime.
///
/// A runtime is current on threads that may block too (`spawn_blocking`, `Handle::enter`). But only what a runtime
/// polls has a budget that comes to an end. What is spent to find that out is given back.
pub(super) fn is_async_thread() -> bool {
    if Handle::try_current().is_err() {
        return false;
    }
    let mut context = Context::from_waker(Waker::noop());
    let mut spend = || coop::poll_proceed(&mut context);
    // Gives all of it back when it is dropped.
    let Poll::Ready(_budget) = spend() else { return true };
    for _ in 0..BUDGET_MAX {
        match spend() {
            Poll::Ready(spent) => spent.made_progress(),
            Poll::Pending => return true,
        }
    }
    false
}
