//! The last resort: the guardian is gone or does not do its work, and the command still runs.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tenure::ClaimId;
use tokio::time::{Instant, sleep};

use super::group::{is_empty, of_claim};
use crate::exit::Exit;

/// How often a group that was told to end is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long a process may take to start.
const BIRTH_MAX: Duration = Duration::from_millis(100);
/// How long SIGKILL may take.
const KILL_MAX: Duration = Duration::from_secs(1);

/// Ends what a guardian may have started before it could say so. `None` if it had not.
pub(crate) async fn end_unreported(claim: ClaimId, grace: Duration) -> Option<Exit> {
    let started = Instant::now();
    loop {
        let mut ended = None;
        for group in of_claim(claim) {
            ended = Some(end(group, grace).await);
        }
        // A process between fork and exec has no environment of its own yet: look more than once.
        if ended.is_some() || started.elapsed() >= BIRTH_MAX {
            return ended;
        }
        sleep(LOOK_AGAIN).await;
    }
}

/// Ends the group: nobody else would if the lease were lost. Answers which signal did it.
pub(crate) async fn end(group: Pid, grace: Duration) -> Exit {
    let _ = kill_process_group(group, Signal::TERM);
    let _ = kill_process_group(group, Signal::CONT);
    if gone_within(group, grace).await {
        return Exit::Signal(Signal::TERM.as_raw());
    }
    let _ = kill_process_group(group, Signal::KILL);
    gone_within(group, KILL_MAX).await;
    Exit::Signal(Signal::KILL.as_raw())
}

async fn gone_within(group: Pid, limit: Duration) -> bool {
    let started = Instant::now();
    while test_kill_process_group(group).is_ok() && !is_empty(group) {
        if started.elapsed() >= limit {
            return false;
        }
        sleep(LOOK_AGAIN.min(limit)).await;
    }
    true
}
