//! What is left of a process group.

use rustix::process::{Pid, getpgid};
use tenure::ClaimId;

/// [`HELD`](crate::env::HELD), as it stands in an environment.
const HELD_PREFIX: &[u8] = b"TENURE_HELD=";

/// Whether nobody in a group lives: it is gone, or its members have ended and only wait to be reaped, which may take
/// long where nobody reaps. When in doubt, somebody does.
pub(crate) fn is_empty(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    let group = group.as_raw_nonzero().to_string();
    let mut states = processes.flatten().filter_map(|process| {
        let stat = std::fs::read(process.path().join("stat")).ok()?;
        state_in(&String::from_utf8_lossy(&stat), &group)
    });
    states.all(|state| state == 'Z' || state == 'X')
}

/// The groups of all processes that run under this claim: their environment names it, whatever they have become since.
pub(crate) fn of_claim(claim: ClaimId) -> Vec<Pid> {
    let marker = claim.to_string();
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let mut groups: Vec<Pid> = processes
        .flatten()
        .filter_map(|process| {
            let environment = std::fs::read(process.path().join("environ")).ok()?;
            let mut variables = environment.split(|byte| *byte == 0);
            let held = variables.find_map(|variable| variable.strip_prefix(HELD_PREFIX))?;
            String::from_utf8_lossy(held).contains(&marker).then_some(())?;
            let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
            getpgid(Some(pid)).ok()
        })
        .collect();
    groups.sort_by_key(|group| group.as_raw_nonzero());
    groups.dedup();
    groups
}

/// The state of a process, if it is in this group. `stat` is: pid (command) state ppid pgrp ..., where the command
/// may hold anything, parentheses too.
fn state_in(stat: &str, group: &str) -> Option<char> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?.chars().next()?;
    (fields.nth(1)? == group).then_some(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_read_whatever_the_command_is_called() {
        assert_eq!(state_in("7 (a) Z 1 5) S 1 42 42 0", "42"), Some('S'));
        assert_eq!(state_in("7 (sh) Z 1 42 42 0", "42"), Some('Z'));
        assert_eq!(state_in("7 (sh) S 42 7 42 0", "42"), None);
        assert_eq!(state_in("", "42"), None);
    }

    #[test]
    fn the_variable_is_the_one_that_commands_are_given() {
        assert_eq!(HELD_PREFIX, format!("{}=", crate::env::HELD).as_bytes());
    }

    #[test]
    fn our_own_group_is_not_empty() {
        assert!(!is_empty(rustix::process::getpgrp()));
    }
}
