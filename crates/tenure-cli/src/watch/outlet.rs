//! Lines on their way to stdout, which may be read slowly, or no more.

use std::io::{ErrorKind, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, channel, sync_channel};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::exit::Exit;
use crate::failure::Failure;

/// How many lines wait to be written. Others are dropped, and counted.
const LINES_MAX: usize = 1_024;
/// How long lines that wait may keep the process from ending.
const FAREWELL: Duration = Duration::from_millis(200);

/// A thread writes, so that looking goes on while nobody reads.
pub(crate) struct Outlet {
    lines: Option<SyncSender<String>>,
    ended: Receiver<std::io::Result<()>>,
    dropped: u64,
    /// Whether it is stdout, of which can be seen that nobody reads it any more.
    is_stdout: bool,
}

impl Outlet {
    pub(crate) fn to_stdout() -> Result<Self, Failure> {
        let refused = |error| Failure::new(Exit::Unavailable, format!("no thread can be started: {error}"));
        let mut outlet = Self::to(std::io::stdout(), LINES_MAX).map_err(refused)?;
        outlet.is_stdout = true;
        Ok(outlet)
    }

    fn to(mut out: impl Write + Send + 'static, lines_max: usize) -> std::io::Result<Self> {
        let (lines, received) = sync_channel::<String>(lines_max);
        let (end, ended) = channel();
        let write = move || {
            let written =
                received.iter().try_for_each(|line| out.write_all(line.as_bytes()).and_then(|()| out.flush()));
            let _ = end.send(written);
        };
        std::thread::Builder::new().name("stdout".to_owned()).spawn(write)?;
        Ok(Self { lines: Some(lines), ended, dropped: 0, is_stdout: false })
    }

    /// Passes a line on, or drops and counts it. The next line that finds room comes after one that tells how many.
    pub(crate) fn offer(&mut self, line: &str, told: impl FnOnce(u64) -> String) {
        self.settle(told);
        if self.dropped > 0 || !self.send(line.to_owned()) {
            self.dropped += 1;
        }
    }

    /// Tells how many lines were dropped, if there is room for that.
    pub(crate) fn settle(&mut self, told: impl FnOnce(u64) -> String) {
        if self.dropped > 0 && self.send(told(self.dropped)) {
            self.dropped = 0;
        }
    }

    fn send(&self, line: String) -> bool {
        let Some(lines) = &self.lines else { return false };
        // Of lines that nobody will read none counts.
        !matches!(lines.try_send(line), Err(TrySendError::Full(_)))
    }

    /// Whether whoever read has gone away, and has what it wanted.
    pub(crate) fn is_closed(&self) -> Result<bool, Failure> {
        match self.ended.try_recv() {
            Ok(Err(error)) if error.kind() != ErrorKind::BrokenPipe => {
                Err(Failure::new(Exit::Unavailable, format!("stdout cannot be written: {error}")))
            }
            Ok(_) | Err(TryRecvError::Disconnected) => Ok(true),
            Err(TryRecvError::Empty) => Ok(self.is_stdout && is_unread()),
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.lines = None;
        // Should whoever reads have stopped, what it was not given is dropped with us.
        let _ = self.ended.recv_timeout(FAREWELL);
    }
}

/// Waits until nobody reads stdout any more.
///
/// # Cancel safety
///
/// Cancel safe: it only looks.
pub(crate) async fn until_unread(interval: Duration) {
    while !is_unread() {
        tokio::time::sleep(interval).await;
    }
}

/// Whether stdout is a pipe that nobody reads from any more.
fn is_unread() -> bool {
    let stdout = std::io::stdout();
    let mut fds = [PollFd::new(&stdout, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    polled.is_ok() && fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::Sender;
    use std::time::Instant;

    /// Says when it is given a line, and takes it once it is let.
    struct Slow {
        began: Sender<()>,
        allowed: Receiver<()>,
        took: Sender<String>,
    }

    impl Write for Slow {
        fn write(&mut self, data: &[u8]) -> std::io::Result<usize> {
            let _ = self.began.send(());
            self.allowed.recv().map_err(|_| std::io::Error::from(ErrorKind::BrokenPipe))?;
            let _ = self.took.send(String::from_utf8_lossy(data).into_owned());
            Ok(data.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_is_too_slow_is_told_how_much_it_has_missed() {
        let (began, begun) = channel();
        let (allow, allowed) = channel();
        let (took, taken) = channel();
        let mut outlet = Outlet::to(Slow { began, allowed, took }, 2).unwrap();
        let told = |count: u64| format!("{count} dropped");
        let read = |line: &str| {
            allow.send(()).unwrap();
            assert_eq!(taken.recv_timeout(Duration::from_secs(60)).unwrap(), line);
        };
        outlet.offer("0", told);
        read("0");
        // The writer has taken "1" out of the queue and stands still with it: two more fit.
        outlet.offer("1", told);
        for _ in 0..2 {
            begun.recv_timeout(Duration::from_secs(60)).unwrap();
        }
        for line in 2..=9 {
            outlet.offer(&line.to_string(), told);
        }
        assert_eq!(outlet.dropped, 6);
        for kept in ["1", "2", "3"] {
            read(kept);
        }
        outlet.offer("later", told);
        for line in ["6 dropped", "later"] {
            read(line);
        }
        assert_eq!(outlet.dropped, 0);
        assert!(!outlet.is_closed().unwrap());
    }

    #[test]
    fn a_reader_that_went_away_ends_it() {
        let (began, _begun) = channel();
        let (allow, allowed) = channel();
        let (took, _taken) = channel();
        let mut outlet = Outlet::to(Slow { began, allowed, took }, 2).unwrap();
        drop(allow);
        outlet.offer("x", |_| String::new());
        let started = Instant::now();
        while !outlet.is_closed().unwrap() {
            assert!(started.elapsed() < Duration::from_secs(60), "nobody noticed");
            std::thread::yield_now();
        }
    }
}
