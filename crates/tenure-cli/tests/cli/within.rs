//! `run`: nothing that was started within a claim outlives it, in whatever group or session it runs.

use std::fs;
use std::process::Command;

use rustix::process::{Signal, kill_process};
use tenure_testkit::servers::Redis;

use crate::support::{BIN, Running, Store, eventually, is_alive};

/// The next holder looks whether the process with the pid in `up` still lives.
const LOOK: &str = "grep -q '^State:.[^ZX]' /proc/$(cat up)/status && exit 9; exit 0";

/// A store with two scripts beside it: `stubborn` ignores every wish that it end, `polite` notes each and ends.
fn store() -> Store {
    let store = Store::new();
    let up = "echo $$ > up.tmp; mv up.tmp up; while :; do sleep 0.05; done";
    fs::write(store.file("stubborn"), format!("trap '' TERM INT HUP; {up}")).unwrap();
    fs::write(store.file("polite"), format!("trap 'echo told >> told; exit 0' TERM; {up}")).unwrap();
    store
}

/// Starts `script`, keeps its lease from being renewed, and has the next holder look for what is left of it.
fn ends_with_its_lease(store: &Store, args: &str, script: &str, out_of_action: Signal) {
    let run = store.start_until(&format!("x --ttl 5s {args}"), script, "up");
    run.signal(out_of_action);
    store.sh("x --wait 15s", LOOK).exits(0);
}

fn nested(other: &Store, script: &str) -> String {
    format!("trap '' TERM; $TENURE run y --on {} --ttl 1m -- sh {script}; sleep 60", other.url())
}

#[test]
fn a_nested_run_on_another_store_ends_with_the_outer_lease() {
    let (store, other) = (store(), Store::new());
    ends_with_its_lease(&store, "", &nested(&other, "stubborn"), Signal::STOP);
}

#[test]
fn a_nested_run_within_one_that_has_no_grace_ends_with_the_outer_lease() {
    let (store, other) = (store(), Store::new());
    ends_with_its_lease(&store, "--grace 0s", &nested(&other, "stubborn"), Signal::STOP);
}

#[test]
fn a_nested_run_on_a_redis_ends_with_the_outer_lease() {
    let redis = Redis::start();
    let (store, other) = (store(), Store::on(redis.url()));
    ends_with_its_lease(&store, "", &nested(&other, "stubborn"), Signal::STOP);
}

#[test]
fn a_nested_run_ends_before_the_next_holder_when_the_outer_tenure_is_killed() {
    let (store, other) = (store(), Store::new());
    ends_with_its_lease(&store, "", &nested(&other, "stubborn"), Signal::KILL);
}

#[test]
fn a_job_of_a_shell_ends_with_the_lease() {
    ends_with_its_lease(&store(), "", "bash -c 'set -m; sh stubborn & wait'", Signal::STOP);
}

#[test]
fn a_daemon_ends_with_the_lease() {
    ends_with_its_lease(&store(), "", "(setsid sh stubborn &); sleep 60", Signal::STOP);
}

#[test]
fn a_daemon_that_the_command_leaves_when_it_is_told_to_stop_ends_with_the_lease() {
    ends_with_its_lease(&store(), "", "trap 'exit 0' TERM; (setsid sh stubborn &); sleep 60 & wait", Signal::STOP);
}

#[test]
fn jobs_and_daemons_of_a_broken_lease_are_gone_when_tenure_exits() {
    for script in ["bash -c 'set -m; sh stubborn & wait'", "(setsid sh stubborn &); sleep 60"] {
        let store = store();
        let run = store.start_until("x --ttl 10s --grace 200ms", script, "up");
        store.tenure("break x --yes").exits(0);
        run.wait().exits(76);
        assert!(!is_alive(store.pid("up")), "{script}");
    }
}

#[test]
fn jobs_and_daemons_are_told_to_stop() {
    for script in ["bash -c 'set -m; sh polite & wait'", "(setsid sh polite &); sleep 60"] {
        let store = store();
        let run = store.start_until("x --ttl 15s --grace 5s", script, "up");
        store.tenure("break x --yes").exits(0);
        run.wait().exits(76);
        assert_eq!(store.read("told").lines().count(), 1, "{script}");
    }
}

#[test]
fn a_nested_command_is_told_to_stop_once() {
    let (store, other) = (store(), Store::new());
    let script = format!("$TENURE run y --on {} --ttl 1m -- sh polite; sleep 60", other.url());
    let run = store.start_until("x --ttl 15s --grace 5s", &script, "up");
    store.tenure("break x --yes").exits(0);
    run.wait().exits(76);
    assert_eq!(store.read("told").lines().count(), 1);
}

#[test]
fn a_nested_command_whose_tenure_was_killed_is_killed_at_once() {
    let (store, other) = (store(), Store::new());
    let script = format!(
        "$TENURE run y --on {} --ttl 1m -- sh -c 'echo $PPID > guardian; exec sh polite' &
        echo $! > inner; wait $!; sleep 60",
        other.url()
    );
    let _run = store.start_until("x --ttl 1m", &script, "up");
    kill_process(store.pid("inner"), Signal::KILL).unwrap();
    eventually("it is gone", || !is_alive(store.pid("up")));
    assert!(!store.file("told").exists(), "and had no grace");
    eventually("so is its guardian", || !is_alive(store.pid("guardian")));
}

#[test]
fn without_the_guardian_nothing_is_left_running() {
    let job = "bash -c 'set -m; sh stubborn & wait'";
    for script in [job, "(setsid sh stubborn &); sleep 60", &nested(&Store::new(), "stubborn")] {
        let store = store();
        let script = format!("echo $PPID > guardian; {script}");
        let run = store.start_until("x --ttl 3s --grace 200ms", &script, "up");
        kill_process(store.pid("guardian"), Signal::KILL).unwrap();
        run.wait().exits(137).says("guardian");
        assert!(!is_alive(store.pid("up")), "{script}");
    }
}

#[test]
fn what_a_command_leaves_when_it_ends_by_itself_is_left_alone() {
    let store = store();
    store.sh("x", "(setsid sh stubborn > /dev/null 2>&1 &); until [ -e up ]; do sleep 0.01; done").exits(0);
    let left = store.pid("up");
    store.tenure("run x --no-wait -- true").exits(0);
    assert!(is_alive(left));
    kill_process(left, Signal::KILL).unwrap();
}

/// Runs a script in a container of sorts, whose first process never reaps anybody.
fn where_nobody_reaps(store: &Store, script: &str, unshare: &[&str]) -> Running {
    fs::write(store.file("script"), script).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--kill-child"]).args(unshare);
    command.args(["bash", "-c", "bash script > out 2>&1 & exec sleep 600"]).current_dir(store.file("."));
    command.env("TENURE", BIN).env("TENURE_URL", store.url()).env_remove("TENURE_HELD");
    let running = Running::of(&mut command);
    eventually("the script has ended", || store.file("done").exists());
    running
}

#[test]
fn no_zombies_are_left_to_a_process_that_does_not_reap() {
    let store = store();
    let _container = where_nobody_reaps(
        &store,
        r#"for _ in 1 2 3 4 5; do $TENURE run x -- true; done
           $TENURE run x -- sh -c '(sleep 0.01 &); sleep 0.1'
           $TENURE run x -- no-such-command
           $TENURE run x -- $TENURE run y -- true
           $TENURE acquire z --ttl 1m
           $TENURE run z --no-wait -- true
           $TENURE run x --ttl 10s -- sh -c '$TENURE break x --yes; sleep 60'
           $TENURE run x --ttl 10s -- sh -c 'kill -KILL $PPID; sleep 60'
           grep -l '^State:.Z' /proc/[0-9]*/status | wc -l > zombies
           touch done"#,
        &["--mount-proc"],
    );
    assert_eq!(store.read("zombies").trim(), "0", "{}", store.read("out"));
}

#[test]
fn what_runs_within_a_claim_is_found_where_proc_shows_other_pids() {
    let store = store();
    let script = "$TENURE run x --ttl 10s --grace 200ms -- sh -c \
        '(setsid sh stubborn &); until [ -e up ]; do sleep 0.01; done; $TENURE break x --yes; sleep 60'
        kill -0 $(cat up) 2> /dev/null; echo $? > alive; touch done";
    let _container = where_nobody_reaps(&store, script, &[]);
    assert_eq!(store.read("alive").trim(), "1", "{}", store.read("out"));
}

#[test]
fn a_command_that_forks_all_the_time_is_ended() {
    let store = store();
    let busy =
        "trap '' TERM; echo $BASHPID > up; while :; do (sleep 0.001 & sleep 0.002 & sleep 0.003) & wait $!; done";
    fs::write(store.file("busy"), busy).unwrap();
    let forks = "bash -c 'set -m; bash busy & wait'";
    let run = store.start_until("x --ttl 10s --grace 200ms", forks, "up");
    eventually("it forks", || !store.read("up").trim().is_empty());
    store.tenure("break x --yes").exits(0);
    run.wait().exits(76);
    assert!(!is_alive(store.pid("up")));
}
