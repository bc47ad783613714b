//! Signals: passed on to the command, or ending the wait.

use std::fs;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{BIN, Running, Store, done, eventually};

/// Whether this process does not ignore it. What is ignored where the tests are started, as by `nohup`, stays ignored
/// below.
fn is_heeded(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() >> (signal.as_raw() - 1) & 1 == 0
}

#[test]
fn signals_are_passed_on_to_the_command() {
    let all = [("TERM", Signal::TERM), ("INT", Signal::INT), ("HUP", Signal::HUP)];
    for (name, signal) in all.into_iter().filter(|(_, signal)| is_heeded(*signal)) {
        let store = Store::new();
        let run = store.start_until(
            "x --ttl 10s",
            &format!("trap 'exit 42' {name}; touch ready; while :; do sleep 0.02; done"),
            "ready",
        );
        run.signal(signal);
        run.wait().exits(42);
    }
}

#[test]
fn a_command_ended_by_a_signal_passed_on_is_128_more() {
    let store = Store::new();
    let run = store.start("x", "exec sleep 60");
    run.signal(Signal::TERM);
    run.wait().exits(143);
    assert_eq!(store.show("x")["holders"], Value::Array(vec![]));
}

#[test]
fn a_signal_while_waiting_ends_the_claim_first() {
    let store = Store::new();
    let _holder = store.start("x", "sleep 60");
    let all = [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)];
    for (signal, code) in all.into_iter().filter(|(signal, _)| is_heeded(*signal)) {
        let waiter = store.start_waiter("x", "");
        waiter.signal(signal);
        waiter.wait().exits(code).says("stopped waiting: SIG");
        assert_eq!(store.show("x")["waiters"], Value::Array(vec![]));
    }
}

#[test]
fn a_signal_that_was_ignored_at_the_start_stays_ignored() {
    let store = Store::new();
    let _holder = store.start("x", "until [ -e go ]; do sleep 0.01; done");
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" --on \"$1\" run x -- true", BIN, &store.url()]);
    let waiter = Running::of(&mut command);
    eventually("it waits", || !store.show("x")["waiters"].as_array().unwrap().is_empty());
    waiter.signal(Signal::HUP);
    fs::write(store.file("go"), "").unwrap();
    waiter.wait().exits(0);
}

#[test]
fn a_command_starts_with_the_signals_its_caller_left_it() {
    // What this very shell has without us is what it shall have with us.
    let look = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let usual = done(std::process::Command::new("sh").args(["-c", look])).exits(0).text();
    assert_eq!(Store::new().sh("x", look).exits(0).text(), usual);
}

#[test]
fn an_ignored_sigchld_does_not_hide_the_commands_status() {
    let store = Store::new();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' CHLD; exec \"$0\" --on \"$1\" run x -- sh -c 'exit 5'", BIN, &store.url()]);
    Running::of(&mut command).wait().exits(5);
}
