//! The signals that ask `tenure` to end.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use crate::exit::Exit;
use crate::failure::Failure;

/// What a wait still has when a signal asks us to end, or when it matters little: a store that is well answers in it.
/// A signal to all of a service comes to us just when the command has ended of it, and the lock shall be free then.
pub(crate) const AT_ONCE: Duration = Duration::from_millis(200);

/// The signals that ask for an end.
const ASKING: [i32; 3] = [1, 2, 15]; // SIGHUP, SIGINT, SIGTERM
/// The signals that end a process which does not expect them, but for SIGKILL, SIGPIPE (ignored in every Rust program)
/// and those of a fault of its own.
const DEADLY: [i32; 14] = [
    1, // SIGHUP
    2, 3, // SIGINT, SIGQUIT
    10, 12, // SIGUSR1, SIGUSR2
    14, 15, 16, // SIGALRM, SIGTERM, SIGSTKFLT
    24, 25, // SIGXCPU, SIGXFSZ
    26, 27, // SIGVTALRM, SIGPROF
    29, 30, // SIGIO, SIGPWR
];
/// The signals that stop one, but for SIGSTOP.
const STOPPING: [i32; 3] = [20, 21, 22]; // SIGTSTP, SIGTTIN, SIGTTOU

/// Signals, as far as they were not ignored when we started (`nohup`, background jobs of scripts): what our caller
/// chose to ignore stays ignored, for us and for the command.
#[derive(Debug)]
pub(crate) struct Signals {
    listeners: Vec<(i32, Signal)>,
    /// The last one that came.
    last: Option<i32>,
}

impl Signals {
    /// Listens for SIGHUP, SIGINT and SIGTERM.
    pub(crate) fn listen() -> Result<Self, Failure> {
        Self::listen_for(&ASKING)
    }

    /// Listens for every signal that would end the process, for who must set something right first.
    pub(crate) fn listen_for_all() -> Result<Self, Failure> {
        Self::listen_for(&DEADLY)
    }

    fn listen_for(numbers: &[i32]) -> Result<Self, Failure> {
        let ignored = ignored();
        let mut signals = Vec::new();
        for number in numbers.iter().copied().filter(|number| ignored & (1 << (number - 1)) == 0) {
            let listener = signal(SignalKind::from_raw(number)).map_err(|error| {
                Failure::new(Exit::Unavailable, format!("{} cannot be listened for: {error}", name(number)))
            })?;
            signals.push((number, listener));
        }
        Ok(Self { listeners: signals, last: None })
    }

    /// The number of the next signal.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a signal is told by the next call.
    pub(crate) async fn next(&mut self) -> i32 {
        poll_fn(|cx| {
            for (number, listener) in &mut self.listeners {
                if listener.poll_recv(cx).is_ready() {
                    self.last = Some(*number);
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Awaits `work`, unless a signal comes first: then how to exit.
    ///
    /// # Cancel safety
    ///
    /// As that of `work`, which a signal drops too.
    pub(crate) async fn unless_told<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Exit> {
        tokio::select! {
            biased;
            signal = self.next() => Err(Exit::Signal(signal)),
            done = work => Ok(done),
        }
    }

    /// The last signal that was told.
    pub(crate) fn last(&self) -> Option<i32> {
        self.last
    }

    /// Awaits `work` for at most `limit`, and no longer than [`AT_ONCE`] after a signal. `None` if that was too short.
    pub(crate) async fn allow<T>(&mut self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        tokio::select! {
            biased;
            done = timeout(limit, &mut work) => return done.ok(),
            _ = self.next() => {}
        }
        timeout(AT_ONCE.min(limit), work).await.ok()
    }
}

/// A signal as people know it.
pub(crate) fn name(number: i32) -> String {
    let known = nix::sys::signal::Signal::try_from(number);
    known.map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// Handlers that do nothing, for every signal that would otherwise end or stop the process. A program that is executed
/// starts without them; what it shall go on ignoring is left ignored.
pub(crate) struct Handlers {
    _listeners: Vec<Signal>,
    /// Never runs: it is where listeners have to be registered.
    _runtime: tokio::runtime::Runtime,
}

impl Handlers {
    pub(crate) fn install() -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let entered = runtime.enter();
        let ignored = ignored();
        let deadly = DEADLY.iter().chain(&STOPPING).filter(|number| ignored & (1 << (**number - 1)) == 0);
        let listeners = deadly.filter_map(|number| signal(SignalKind::from_raw(*number)).ok()).collect();
        drop(entered);
        Ok(Self { _listeners: listeners, _runtime: runtime })
    }
}

/// The set of signals that are ignored, as the kernel shows it. None, where it does not.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let set = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test]
    async fn a_signal_ends_a_wait_that_a_limit_would_not() {
        let mut signals = Signals::listen().unwrap();
        let waited = timeout(HOUR / 60, async {
            assert_eq!(signals.allow(Duration::from_millis(1), pending::<()>()).await, None);
            assert_eq!(signals.allow(HOUR, async { 7 }).await, Some(7));
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
            assert_eq!(signals.allow(HOUR, pending::<()>()).await, None);
        });
        assert!(waited.await.is_ok());
    }
}
