//! `once`: one run per slot, and every skip says why.

use std::process::Command;

use rustix::process::Signal;

use crate::support::{BIN, Done, Running, Store, done, eventually, is_alive, keys};

/// A slot that lasts until 2069: no test sees its end.
const LONG: &str = "--every 36500d";

fn once(store: &Store, args: &str, script: &str) -> Command {
    let mut command = store.command(["once", "job"]);
    command.args(args.split_whitespace()).args(["--", "sh", "-c", script]);
    command.env("TENURE", BIN);
    command
}

fn ran(store: &Store, args: &str, script: &str) -> Done {
    done(&mut once(store, args, script))
}

fn status(store: &Store) -> Vec<serde_json::Value> {
    store.tenure("once job --status --json").exits(0).json().as_array().unwrap().clone()
}

/// Runs until it is told to end, and says that it is up.
const UNTIL_END: &str = "echo $$ > up.tmp; mv up.tmp up; while ! test -e end; do sleep 0.02; done";

fn start(store: &Store, args: &str) -> Running {
    let running = Running::of(&mut once(store, args, UNTIL_END));
    eventually("it runs", || store.file("up").exists());
    running
}

#[test]
fn the_first_runs_and_exits_as_its_command_and_the_others_say_who_did() {
    let store = Store::new();
    store.tenure("once job --status").exits(0).says("job: nothing was run yet");
    ran(&store, &format!("{LONG} --label first"), "exit 0").exits(0);
    ran(&store, LONG, "exit 0")
        .exits(75)
        .says("tenure: job: slot 1970-01-01T00:00:00Z was run by first at 20")
        .says("and ended ok");
    let told = ran(&store, &format!("{LONG} --json"), "exit 0").exits(75);
    assert!(told.stderr.contains(r#""kind":"skipped""#), "{told:?}");
    let runs = status(&store);
    assert_eq!(keys(&runs[0]), ["attempt", "by", "ended", "outcome", "schedule", "slot", "started"]);
    assert_eq!((runs[0]["outcome"].as_str(), runs[0]["schedule"].as_str()), (Some("ok"), Some("every 36500d")));
    let shown = store.tenure("once job --status").exits(0).text();
    assert!(shown.starts_with("SLOT") && shown.contains("1970-01-01T00:00:00Z  1        ok"), "{shown}");
}

#[test]
fn a_failure_is_told_and_tried_again_if_that_is_allowed() {
    let store = Store::new();
    ran(&store, LONG, "exit 3").exits(3);
    ran(&store, LONG, "exit 0").exits(75).says("and failed: exit 3");
    ran(&store, &format!("{LONG} --retry 1"), "kill -9 $$").exits(137);
    ran(&store, &format!("{LONG} --retry 1"), "exit 0").exits(75).says("and failed: SIGKILL (attempt 2)");
    ran(&store, &format!("{LONG} --retry 2"), "exit 0").exits(0);
    ran(&store, &format!("{LONG} --retry 9"), "exit 0").exits(75).says("and ended ok");
}

#[test]
fn a_command_that_is_not_there_is_no_attempt() {
    let store = Store::new();
    let mut missing = store.command(["once", "job", "--every", "36500d", "--", "/nowhere/to/be/found"]);
    done(&mut missing).exits(127);
    assert!(status(&store).is_empty());
    ran(&store, LONG, "exit 0").exits(0);
}

#[test]
fn of_many_at_once_one_runs_and_the_others_skip_while_it_does() {
    let store = Store::new();
    let args = format!("{LONG} --ttl 1s");
    let runner = start(&store, &args);
    let others: Vec<Running> = (0..7).map(|_| Running::of(&mut once(&store, &args, "touch twice"))).collect();
    for other in others {
        other.wait().exits(75).says("slot 1970-01-01T00:00:00Z is being run by");
    }
    std::fs::write(store.file("end"), "").unwrap();
    runner.wait().exits(0);
    assert!(!store.file("twice").exists());
    assert_eq!(status(&store).len(), 1);
}

#[test]
fn a_host_that_was_killed_is_not_repeated_unless_it_may_be() {
    let store = Store::new();
    let args = format!("{LONG} --ttl 1s");
    let runner = start(&store, &args);
    let command = store.pid("up");
    runner.signal(Signal::KILL);
    ran(&store, &args, "exit 0").exits(75).says("and its end was not recorded");
    assert!(!is_alive(command), "its command is gone by then");
    ran(&store, &format!("{args} --retry 1"), "exit 0").exits(0);
    let runs = status(&store);
    assert_eq!((runs[0]["attempt"].as_u64(), runs[1]["outcome"].as_str()), (Some(2), None));
}

#[test]
fn a_command_that_takes_too_long_is_ended_and_has_failed() {
    let store = Store::new();
    let args = format!("{LONG} --timeout 300ms --ttl 3s --grace 200ms");
    ran(&store, &args, "trap '' TERM; while :; do sleep 0.02; done").exits(137).says("which has run for 300ms");
    assert_eq!(status(&store)[0]["outcome"].as_str(), Some("timed out after 300ms"));
    ran(&store, LONG, "exit 0").exits(75).says("and failed: timed out after 300ms");
}

#[test]
fn another_schedule_is_64_with_both_named_unless_it_replaces_the_one_before() {
    let store = Store::new();
    ran(&store, LONG, "exit 0").exits(0);
    let refused = ran(&store, "--every 1s", "exit 0").exits(64);
    assert!(refused.stderr.contains("`every 36500d`") && refused.stderr.contains("`every 1s`"), "{refused:?}");
    ran(&store, &format!("{} --reschedule", "--every 18250d"), "exit 0").exits(75).says("began before the last run");
    eventually("a slot that began after it", || ran(&store, "--every 1s --reschedule", "exit 0").code == 0);
}

#[test]
fn cron_slots_are_named_by_local_time() {
    let store = Store::new();
    let cron = |args: &[&str]| {
        let mut command = store.command(["once", "job", "--cron", "30 2 1 1 *"]);
        done(command.args(args).args(["--", "true"]))
    };
    cron(&["--tz", "Europe/Berlin"]).exits(0);
    let run = &status(&store)[0];
    assert_eq!(run["schedule"].as_str(), Some("cron 30 2 1 1 * Europe/Berlin"));
    assert!(run["slot"].as_str().unwrap().ends_with("-01-01T02:30"), "{run}");
    cron(&[]).exits(64).says("cron 30 2 1 1 * UTC");
    cron(&["--tz", "Europe/Atlantis"]).exits(64).says("is no time zone");
}

#[test]
fn bad_values_are_refused() {
    let store = Store::new();
    for args in ["", "--every 0s", "--every 1h --cron x", "--every 1h --tz UTC", "--every 1h --missed perhaps"] {
        ran(&store, args, "exit 0").exits(64);
    }
    store.tenure("once job --every 1h").exits(64);
    store.tenure("once job --status --every 1h").exits(64);
    store.sh("job", "exec $TENURE once job --every 1h -- true").exits(64).says("a run around this one holds it");
    assert!(status(&store).is_empty());
}
