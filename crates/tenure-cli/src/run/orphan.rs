//! The last resort: the guardian is gone or does not do its work, and the command still runs.

use std::time::Duration;

use rustix::process::Pid;
use tokio::time::{Instant, sleep};

use super::tree;
use crate::exit::Exit;

/// How often is looked whether those who were told to end have ended.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long SIGKILL may take.
const KILL_MAX: Duration = Duration::from_secs(1);

/// Ends everything that runs within the claim, a stopped guardian too: nobody else would if the lease were lost.
/// Answers which signal did it, or `None` if nothing was running. `group` is the command's, if it is known.
///
/// # Cancel safety
///
/// Dropped, it may leave some of it running.
pub(crate) async fn end(group: Option<Pid>, grace: Duration) -> Option<Exit> {
    let mut orphans = Orphans { group };
    if !orphans.are_left() && group.is_none() {
        return None;
    }
    tree::ask_to_stop(orphans.group);
    let started = Instant::now();
    let signal = loop {
        if !orphans.are_left() {
            break rustix::process::Signal::TERM;
        }
        if started.elapsed() >= grace {
            orphans.kill().await;
            break rustix::process::Signal::KILL;
        }
        sleep(LOOK_AGAIN.min(grace)).await;
    };
    Some(Exit::Signal(signal.as_raw()))
}

struct Orphans {
    /// The command's group, until the command has ended and its number may be another's.
    group: Option<Pid>,
}

impl Orphans {
    fn are_left(&mut self) -> bool {
        tree::reap(|pid, status| {
            if self.group == Some(pid) && !status.stopped() {
                self.group = None;
            }
        })
    }

    async fn kill(&mut self) {
        let started = Instant::now();
        while started.elapsed() < KILL_MAX {
            tree::kill(self.group);
            if !self.are_left() {
                return;
            }
            sleep(LOOK_AGAIN).await;
        }
    }
}
