//! `run --metrics-file`, and what `--verbose` tells of a run that waited.

use std::fs;

use crate::support::Store;

/// The value of a line of the file.
fn value(text: &str, line: &str) -> Option<f64> {
    let of = |candidate: &str| candidate.strip_prefix(line)?.trim().parse().ok();
    text.lines().find_map(of)
}

#[test]
fn a_run_writes_its_metrics_in_the_end() {
    let store = Store::new();
    store.sh("x --metrics-file run.prom", "test ! -e run.prom").exits(0);
    let text = store.read("run.prom");
    assert_eq!(value(&text, "tenure_acquire_total{store=\"sqlite\",result=\"granted\"}"), Some(1.0), "{text}");
    assert_eq!(value(&text, "tenure_hold_seconds_count{store=\"sqlite\"}"), Some(1.0), "{text}");
    assert_eq!(value(&text, "tenure_held{store=\"sqlite\"}"), Some(0.0), "{text}");
    assert!(text.contains("# TYPE tenure_acquire_wait_seconds histogram"), "{text}");
    let left: Vec<_> = fs::read_dir(store.file("")).unwrap().flatten().map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains(".tmp")), "{left:?}");
}

#[test]
fn a_run_that_was_not_granted_writes_its_metrics_too() {
    let store = Store::new();
    let held = store.start_until("x", "touch up; sleep 60", "up");
    store.sh("x --no-wait --metrics-file run.prom", "exit 0").exits(75);
    let text = store.read("run.prom");
    assert_eq!(value(&text, "tenure_acquire_total{store=\"sqlite\",result=\"busy\"}"), Some(1.0), "{text}");
    drop(held);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let store = Store::new();
    let refused = store.sh("x --metrics-file nowhere/run.prom", "touch ran").exits(64);
    assert_eq!(
        refused.stderr,
        "tenure: --metrics-file nowhere/run.prom: it cannot be written: No such file or directory (os error 2)\n"
    );
    let refused = store.sh("x --metrics-file .", "touch ran").exits(64);
    assert_eq!(refused.stderr, "tenure: --metrics-file .: it is a directory; write the name of a file\n");
    assert!(!store.file("ran").exists());
}

#[test]
fn a_file_that_can_no_longer_be_written_is_said_and_changes_nothing() {
    let store = Store::new();
    fs::create_dir(store.file("metrics")).unwrap();
    let done = store.sh("x --metrics-file metrics/run.prom", "rmdir metrics; exit 3").exits(3);
    assert!(done.stderr.starts_with("tenure: warning: the metrics were not written to metrics/run.prom: "), "{done:?}");
}

#[test]
fn a_file_from_before_is_there_until_it_is_replaced() {
    let store = Store::new();
    fs::write(store.file("run.prom"), "earlier\n").unwrap();
    store.sh("x --metrics-file run.prom", "grep -q earlier run.prom").exits(0);
    assert!(!store.read("run.prom").contains("earlier"));
}

#[test]
fn names_are_told_apart_by_the_groups_that_are_named() {
    let store = Store::new();
    for name in ["orders/42", "users/1"] {
        store.sh(&format!("{name} --metrics-file run.prom --groups orders,jobs"), "true").exits(0);
        let text = store.read("run.prom");
        let granted = |group: &str| {
            value(&text, &format!("tenure_acquire_total{{store=\"sqlite\",group=\"{group}\",result=\"granted\"}}"))
        };
        let (own, other) = if name == "orders/42" { (Some(1.0), None) } else { (Some(0.0), Some(1.0)) };
        assert_eq!((granted("orders"), granted("jobs"), granted("other")), (own, Some(0.0), other), "{text}");
    }
}

#[test]
fn a_verbose_run_tells_what_became_of_a_lease_that_was_lost() {
    let store = Store::new();
    let run = store.start("x --verbose --label job", "sleep 60");
    store.tenure("break x --yes --reason test").exits(0);
    let lost = run.wait().exits(76);
    let told = lost.stderr.lines().find(|line| line.starts_with("tenure: x: waited ")).unwrap_or_default();
    assert!(told.contains(", held ") && told.contains(" with token "), "{}", lost.stderr);
    assert!(told.contains(", lost: broken by ") && told.ends_with(": test"), "{}", lost.stderr);
}

#[test]
fn a_verbose_run_says_whom_it_waited_for() {
    let store = Store::new();
    let held = store.start_until("x --label backup", "touch up; while [ ! -e go ]; do sleep 0.05; done", "up");
    let waiter = store.start_waiter("x", "--verbose");
    fs::write(store.file("go"), "").unwrap();
    let waited = waiter.wait().exits(0);
    assert!(waited.stderr.contains(" behind backup, held "), "{}", waited.stderr);
    held.wait().exits(0);
}
