//! The last resort: the guardian is gone, and the command still runs.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::time::{Instant, sleep};

use super::group::is_empty;
use crate::exit::Exit;

/// How often a group that was told to end is looked for.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// How long SIGKILL may take.
const KILL_MAX: Duration = Duration::from_secs(1);

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
