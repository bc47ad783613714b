//! Calls made and waited for by threads that know of no runtime: a guard may be dropped, or a lock asked for, by any.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tenure::Error;
use tenure::backend::Call;
use tokio::sync::oneshot;

/// How often a thread looks whether anybody still waits for its call.
const LOOK_EVERY: Duration = Duration::from_millis(20);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Makes something there.
pub(crate) fn make<T: Send>(make: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(make).join().unwrap_or_else(|panicked| resume_unwind(panicked)))
}

/// Waits for a call there. If this is dropped, so is the call, soon after.
pub(crate) async fn finish<T: Send + 'static>(call: Call<T>) -> Result<T, Error> {
    let (told, answer) = oneshot::channel();
    thread::spawn(move || wait(call, told));
    answer.await.expect("a call panicked in a thread without a runtime")
}

fn wait<T>(mut call: Call<T>, told: oneshot::Sender<Result<T, Error>>) {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    while !told.is_closed() {
        if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(&waker)) {
            drop(told.send(answer));
            return;
        }
        thread::park_timeout(LOOK_EVERY);
    }
}
