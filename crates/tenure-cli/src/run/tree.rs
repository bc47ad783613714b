//! Everything that was started within a claim: all that descends from this process.
//!
//! A process group is not enough to find it by: a shell with job control, a nested run or a daemon makes its own. To be
//! a descendant cannot be undone, as this process adopts the orphans among them.

use std::collections::HashMap;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process_group, set_child_subreaper, wait};

use super::process::Process;

/// How many processes are reaped in one go.
const REAPED_AT_ONCE: usize = 1024;

/// From now on orphans among our descendants become our children. To be called before there are any.
pub(crate) fn adopt_orphans() {
    // It cannot fail on any Linux of this decade. Where it does, orphans get away as they did before.
    let _ = set_child_subreaper(Some(getpid()));
}

/// Tells all descendants to stop, the command's group first. A stopped process hears of it only once it is continued.
/// What a nested run started is told by that run.
pub(crate) fn ask_to_stop(group: Option<Pid>) {
    let both = [Signal::TERM, Signal::CONT];
    if let Some(group) = group {
        for signal in both {
            let _ = kill_process_group(group, signal);
        }
    }
    let told = group.map(|group| group.as_raw_nonzero().get().unsigned_abs());
    for Descendant { process, nested } in descendants() {
        if !nested && Some(process.group) != told {
            for signal in both {
                process.signal(signal);
            }
        }
    }
}

/// Kills all descendants, the command's group first. One that is being forked just now may be missed, so this is to be
/// repeated until [`reap`] says that nobody is left.
pub(crate) fn kill(group: Option<Pid>) {
    if let Some(group) = group {
        let _ = kill_process_group(group, Signal::KILL);
    }
    for Descendant { process, .. } in descendants() {
        process.signal(Signal::KILL);
    }
}

/// Reaps those of our children that have ended, and tells of each child that ended or stopped. Answers whether any is
/// left; none is exactly if there are no descendants.
pub(crate) fn reap(mut tell: impl FnMut(Pid, WaitStatus)) -> bool {
    for _ in 0..REAPED_AT_ONCE {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => tell(pid, status),
            Ok(None) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
    true
}

#[derive(Debug)]
struct Descendant {
    process: Process,
    /// Whether the guardian of a nested run stands between it and us.
    nested: bool,
}

/// Our living descendants. None where /proc does not show them.
fn descendants() -> Vec<Descendant> {
    match (Process::own_id(), Process::all()) {
        (Some(root), Ok(all)) => below(root, all),
        _ => Vec::new(),
    }
}

/// Those of `all` that live and descend from `root`. Parents come before their children: killed in this order, a parent
/// has no time to miss its child and start another.
fn below(root: u32, all: Vec<Process>) -> Vec<Descendant> {
    let mut children: HashMap<u32, Vec<Process>> = HashMap::new();
    for process in all.into_iter().filter(|process| process.lives) {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found: Vec<Descendant> = Vec::new();
    let mut parent = Some((root, false));
    let mut looked_at = 0;
    while let Some((id, nested)) = parent {
        let of_it = children.remove(&id).unwrap_or_default();
        found.extend(of_it.into_iter().map(|process| Descendant { process, nested }));
        parent = found.get(looked_at).map(|next| (next.process.id, next.nested || next.process.is_guardian));
        looked_at += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(id: u32, parent: u32) -> Process {
        Process::for_tests(id, parent)
    }

    #[test]
    fn descendants_are_found_in_any_order_parents_first() {
        let all = [(9, 5), (5, 3), (4, 1), (3, 2), (2, 1), (8, 4), (6, 2), (1, 0)];
        let found = below(2, all.map(|(id, parent)| process(id, parent)).into());
        let ids: Vec<u32> = found.iter().map(|found| found.process.id).collect();
        assert_eq!(ids, [3, 6, 5, 9]);
    }

    #[test]
    fn the_dead_are_none_and_a_loop_ends() {
        let mut dead = process(3, 2);
        dead.lives = false;
        assert_eq!(below(2, vec![dead, process(2, 2)]).len(), 1);
    }

    #[test]
    fn what_a_nested_run_started_is_known() {
        let mut guardian = process(4, 3);
        guardian.is_guardian = true;
        let found = below(2, vec![process(3, 2), guardian, process(5, 4), process(6, 5), process(7, 3)]);
        let nested: Vec<u32> = found.iter().filter(|found| found.nested).map(|found| found.process.id).collect();
        assert_eq!(nested, [5, 6]);
    }
}
