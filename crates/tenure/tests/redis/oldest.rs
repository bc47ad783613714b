//! The oldest server that is supported: most of these tests once more, over it.

use std::process::Command;

use crate::support::{PROGRAM, old_server};

/// Not among them: what needs a setting that it has not (loading), and who is let in (rules for channels differ).
const TESTS: [&str; 6] =
    ["faults::garbage::", "faults::network::", "faults::refusals::", "handover::", "memos::", "wire::"];

#[test]
fn the_oldest_server_passes_the_same_tests() {
    let program = old_server("6.2");
    let version = Command::new(&program).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&version.stdout).contains("v=6.2."), "{version:?}");
    // Not by its path, where another may stand by now.
    let again = Command::new(format!("/proc/{}/exe", std::process::id()))
        .args(["--test-threads", "2"])
        .args(TESTS)
        .env(PROGRAM, &program)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&again.stdout);
    assert!(again.status.success(), "{said}");
    assert!(said.contains("a_pair_costs_two_commands ... ok"), "{said}");
}
