//! The near end of the line to the guardian.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, WaitOptions, waitpid};
use tokio::net::UnixStream;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::control::{Lines, Order, Report, line, send};
use super::{GUARD_COMMAND, tree};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::signals::AT_ONCE;

/// This very program, even if its file was replaced since it started.
const SELF: &str = "/proc/self/exe";

/// The line to the guardian.
#[derive(Debug)]
pub(crate) struct Link {
    socket: UnixStream,
    lines: Lines,
    guardian: Pid,
    /// Listened for from the start, so that the guardian does not inherit a SIGCHLD that is ignored, as some daemons
    /// leave it: it could not learn how the command ended.
    children: Signal,
}

impl Link {
    /// Starts a guardian for this command. It waits for the word to start it.
    pub(crate) fn start_guardian(command: &[OsString]) -> Result<Self, Failure> {
        Self::try_start(command).map_err(|error| {
            Failure::new(Exit::CannotExecute, format!("the guardian process of the command cannot start: {error}"))
        })
    }

    fn try_start(command: &[OsString]) -> io::Result<Self> {
        let children = signal(SignalKind::child())?;
        let (near, far) = std::os::unix::net::UnixStream::pair()?;
        near.set_nonblocking(true)?;
        let program = if Path::new(SELF).exists() { SELF.into() } else { std::env::current_exe()? };
        let guardian = Command::new(program)
            .arg0("tenure")
            .arg(GUARD_COMMAND)
            .arg("--")
            .args(command)
            .stdin(Stdio::from(OwnedFd::from(far)))
            .process_group(0)
            .spawn()?;
        let guardian = Pid::from_child(&guardian);
        Ok(Self { socket: UnixStream::from_std(near)?, lines: Lines::default(), guardian, children })
    }

    /// Lets the command start, with our stdin.
    pub(crate) fn start(
        &self,
        env: BTreeMap<String, Option<String>>,
        deadline_us: u64,
        grace_us: u64,
        (nested, whole): (bool, bool),
    ) -> io::Result<()> {
        let order = line(&Order::Start { env, deadline_us, grace_us, nested, whole })?;
        send(self.socket.as_fd(), &order, Some(io::stdin().as_fd()))
    }

    /// Tells the guardian something. If it is gone, [`next`](Self::next) says so; if it does not listen, it keeps to
    /// the deadline it knows.
    pub(crate) fn tell(&self, order: &Order) {
        if let Ok(order) = line(order) {
            let _ = send(self.socket.as_fd(), &order, None);
        }
    }

    /// The next report; `None` once the guardian is gone.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: what was received is kept.
    pub(crate) async fn next(&mut self) -> Option<Report> {
        let mut buffer = [0; 1024];
        loop {
            if let Some(report) = self.lines.next() {
                return report.ok();
            }
            self.socket.readable().await.ok()?;
            match self.socket.try_read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.lines.push(buffer.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return None,
            }
        }
    }

    /// Lets the guardian end, and reaps it: whoever inherits our children may never reap them.
    ///
    /// # Cancel safety
    ///
    /// Dropped, it leaves the guardian to whoever inherits it.
    pub(crate) async fn close(self) {
        let Self { socket, guardian, mut children, .. } = self;
        drop(socket);
        let ended = async {
            // A child's end that nobody has waited for yet is told by the next call.
            while matches!(waitpid(Some(guardian), WaitOptions::NOHANG), Ok(None)) {
                children.recv().await;
            }
        };
        let _ = timeout(AT_ONCE, ended).await;
        // What the guardian had adopted is ours, should it have ended.
        tree::reap(|_, _| {});
    }
}
