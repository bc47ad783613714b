//! `run`: the command's group never outlives the lease, whatever becomes of its keepers.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Store, eventually, is_alive, state};

/// A script that writes its pid and ignores every wish that it end.
const STUBBORN: &str = "trap '' TERM INT HUP; while :; do sleep 0.05; done";

/// A script that ends when it is told to, and notes that it was. It is up once it can be told.
const OBEDIENT: &str = "trap 'touch told; exit 0' TERM; touch up; while :; do sleep 0.02; done";

/// Once somebody else is granted the lock, the process with the pid in `up` must be dead.
fn next_holder_finds_nobody(store: &Store) {
    store.sh("x --wait 15s", "grep -q '^State:.[^ZX]' /proc/$(cat up)/status && exit 9; exit 0").exits(0);
}

#[test]
fn the_group_ends_when_tenure_is_killed() {
    let store = Store::new();
    let run = store.start("x --ttl 1s", "sleep 60 & echo $! > grandchild; wait");
    eventually("the grandchild runs", || store.file("grandchild").exists() && !store.read("grandchild").is_empty());
    let (command, grandchild) = (store.pid("up"), store.pid("grandchild"));
    run.signal(Signal::KILL);
    eventually("both are gone", || !is_alive(command) && !is_alive(grandchild));
}

#[test]
fn a_group_that_ignores_sigterm_is_dead_before_the_next_holder_when_tenure_is_killed() {
    let store = Store::new();
    let run = store.start("x --ttl 2s", STUBBORN);
    run.signal(Signal::KILL);
    next_holder_finds_nobody(&store);
}

#[test]
fn sigkill_after_sigterm_ends_the_group_at_once() {
    let store = Store::new();
    let run = store.start_until(
        "x --ttl 1m",
        "trap 'touch told' TERM; echo $$ > up.tmp; mv up.tmp up; while :; do sleep 0.02; done",
        "up",
    );
    run.signal(Signal::TERM);
    eventually("it was told", || store.file("told").exists());
    let killed = Instant::now();
    run.signal(Signal::KILL);
    eventually("it is gone", || !is_alive(store.pid("up")));
    assert!(killed.elapsed() < Duration::from_secs(4), "before its grace of 5 s was over");
}

#[test]
fn the_group_ends_when_tenure_is_killed_with_reports_unread() {
    let store = Store::new();
    let run = store.start("x --ttl 1m", "exec sleep 60");
    let command = store.pid("up");
    run.signal(Signal::STOP);
    kill_process(command, Signal::STOP).unwrap();
    eventually("it is stopped", || state(command) == Some('T'));
    run.signal(Signal::KILL);
    eventually("it is gone", || !is_alive(command));
}

#[test]
fn a_nested_command_ends_with_the_outer_lease_and_has_no_grace_of_its_own() {
    let store = Store::new();
    let script = "$TENURE run y --ttl 1m -- sh -c 'trap \"\" TERM; echo $$ > up.tmp; mv up.tmp up; while :; do sleep 0.05; done'";
    let run = store.start_until("x --ttl 1s", script, "up");
    run.signal(Signal::STOP);
    store.tenure("run x --wait 15s -- true").exits(0);
    let next = Instant::now();
    eventually("it is gone", || !is_alive(store.pid("up")));
    assert!(next.elapsed() < Duration::from_secs(3), "not after the 5 s it has when only its own run is killed");
}

#[test]
fn a_guardian_with_nothing_to_guard_ends_with_tenure() {
    let store = Store::new();
    let _holder = store.start("x", "sleep 60");
    let waiter = store.start_waiter("x", "");
    let children = format!("/proc/{0}/task/{0}/children", waiter.pid.as_raw_nonzero());
    let guardian = fs::read_to_string(children).unwrap().trim().parse().ok().and_then(Pid::from_raw).unwrap();
    waiter.signal(Signal::KILL);
    eventually("it is gone", || !is_alive(guardian));
}

#[test]
fn a_group_is_dead_before_the_next_holder_when_tenure_is_stopped_and_tenure_then_exits_76() {
    let store = Store::new();
    let run = store.start("x --ttl 2s", STUBBORN);
    run.signal(Signal::STOP);
    next_holder_finds_nobody(&store);
    run.signal(Signal::CONT);
    run.wait().exits(76).says("x: the lease was lost");
}

#[test]
fn a_stopped_tenure_has_its_command_told_before_the_deadline() {
    let store = Store::new();
    let run = store.start_until("x --ttl 1s", OBEDIENT, "up");
    run.signal(Signal::STOP);
    eventually("it was told", || store.file("told").exists());
    run.signal(Signal::CONT);
    run.wait().exits(76);
}

#[test]
fn a_broken_lease_ends_the_command_and_exits_76_saying_who_and_why() {
    let store = Store::new();
    let run = store.start_until("x --ttl 10s", OBEDIENT, "up");
    let mut breaking = store.command(["break", "x", "--yes", "--reason", "too slow"]);
    crate::support::done(breaking.env("USER", "ann").env_remove("SUDO_USER")).exits(0);
    run.wait().exits(76).says("broken by ann@").says("too slow");
    assert!(store.file("told").exists(), "the command got SIGTERM");
}

#[test]
fn a_command_that_ignores_sigterm_after_a_break_is_killed() {
    let store = Store::new();
    let run = store.start("x --ttl 10s --grace 200ms", STUBBORN);
    store.tenure("break x --yes").exits(0);
    run.wait().exits(76);
    assert!(!is_alive(store.pid("up")));
}

#[test]
fn the_rest_of_a_lost_group_is_ended_though_its_leader_went_first() {
    let store = Store::new();
    let script = "(trap '' TERM; while :; do sleep 0.05; done) & echo $! > rest.tmp; mv rest.tmp rest; wait";
    let run = store.start_until("x --ttl 10s --grace 200ms", script, "rest");
    store.tenure("break x --yes").exits(0);
    run.wait().exits(76);
    assert!(!is_alive(store.pid("rest")));
}

#[test]
fn a_stopped_command_is_ended_too() {
    let store = Store::new();
    let run = store.start("x --ttl 10s --grace 200ms", "kill -STOP $$; sleep 60");
    let command = store.pid("up");
    eventually("it is stopped", || state(command) == Some('T'));
    store.tenure("break x --yes").exits(0);
    run.wait().exits(76);
    assert!(!is_alive(command));
}

#[test]
fn a_lease_that_was_gone_when_the_command_ended_is_76() {
    let store = Store::new();
    // Renewals are 20 s apart, so nobody has told this run of the break when its command ends.
    store.sh("x --ttl 1m", "$TENURE break x --yes 2>/dev/null; exit 0").exits(76);
}

#[test]
fn without_its_guardian_the_command_is_ended_and_the_lock_freed() {
    let store = Store::new();
    let run = store.start("x --ttl 2s", "echo $PPID > guardian.tmp; mv guardian.tmp guardian; sleep 60");
    eventually("its guardian is known", || store.file("guardian").exists());
    kill_process(store.pid("guardian"), Signal::KILL).unwrap();
    run.wait().exits(143).says("guardian");
    assert!(!is_alive(store.pid("up")));
    store.tenure("run x --no-wait -- true").exits(0);
}

#[test]
fn a_guardian_killed_the_moment_the_command_starts_leaves_no_command_behind() {
    let store = Store::new();
    for _ in 0..5 {
        let script = "kill -KILL $PPID; echo $$ > up.tmp; mv up.tmp up; exec sleep 60";
        store.sh("x --ttl 2s", script).exits(143).says("guardian");
        assert!(!store.file("up").exists() || !is_alive(store.pid("up")));
    }
}

#[test]
fn a_stopped_guardian_does_not_save_the_command_of_a_lost_lease() {
    let store = Store::new();
    let script = format!("echo $PPID > guardian.tmp; mv guardian.tmp guardian; {STUBBORN}");
    let run = store.start("x --ttl 10s --grace 200ms", &script);
    eventually("its guardian is known", || store.file("guardian").exists());
    kill_process(store.pid("guardian"), Signal::STOP).unwrap();
    store.tenure("break x --yes").exits(0);
    let ended = run.wait().exits(76);
    let _ = kill_process(store.pid("guardian"), Signal::CONT);
    assert!(!is_alive(store.pid("up")), "{ended:?}");
}

#[test]
fn a_guardian_stopped_after_its_word_does_not_save_the_command() {
    let store = Store::new();
    let script = "trap 'touch told' TERM; echo $PPID > guardian; echo $$ > up.tmp; mv up.tmp up
        while :; do sleep 0.02; done";
    let run = store.start_until("x --ttl 3s --grace 1s", script, "up");
    // Stopped, tenure does not renew; continued in the grace, it does, so the lease itself is never lost.
    run.signal(Signal::STOP);
    eventually("it was told", || store.file("told").exists());
    kill_process(store.pid("guardian"), Signal::STOP).unwrap();
    run.signal(Signal::CONT);
    let ended = run.wait();
    let _ = kill_process(store.pid("guardian"), Signal::CONT);
    let ended = ended.exits(76).says("not renewed in time");
    assert!(!is_alive(store.pid("up")), "{ended:?}");
}

#[test]
fn the_guardian_heeds_no_signal_meant_for_others() {
    let store = Store::new();
    let script = "echo $PPID > guardian.tmp; mv guardian.tmp guardian; until [ -e go ]; do sleep 0.02; done; exit 3";
    let run = store.start_until("x --ttl 10s", script, "guardian");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::TSTP] {
        kill_process(store.pid("guardian"), signal).unwrap();
    }
    fs::write(store.file("go"), "").unwrap();
    run.wait().exits(3);
}
