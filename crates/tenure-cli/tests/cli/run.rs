//! `run`: what the command sees, who excludes whom, and the exit codes.

use std::os::unix::ffi::OsStrExt;
use std::{ffi::OsStr, fs};

use serde_json::Value;

use crate::support::{Running, Store, bare, done, eventually, keys};

#[test]
fn its_exit_code_is_the_commands() {
    Store::new().sh("x", "exit 7").exits(7);
}

#[test]
fn a_signal_that_ends_the_command_is_128_more() {
    Store::new().sh("x", "kill -KILL $$").exits(137);
}

#[test]
fn a_command_that_does_not_exist_is_127() {
    Store::new().tenure("run x -- no-such-command").exits(127).says("no-such-command: not found");
}

#[test]
fn a_command_that_cannot_be_executed_is_126() {
    Store::new().tenure("run x -- /etc/passwd").exits(126).says("/etc/passwd: cannot be executed");
}

#[test]
fn a_failed_start_frees_the_lock() {
    let store = Store::new();
    store.tenure("run x -- no-such-command").exits(127);
    assert_eq!(store.show("x")["holders"], Value::Array(vec![]));
}

#[test]
fn a_script_without_an_interpreter_line_runs_as_with_a_shell() {
    use std::os::unix::fs::PermissionsExt;
    let store = Store::new();
    fs::write(store.file("plain"), "exit $1\n").unwrap();
    fs::set_permissions(store.file("plain"), fs::Permissions::from_mode(0o755)).unwrap();
    store.tenure("run x -- ./plain 9").exits(9);
}

#[test]
fn stdin_stdout_and_stderr_are_the_commands() {
    let store = Store::new();
    fs::write(store.file("in"), "hello").unwrap();
    let input = fs::File::open(store.file("in")).unwrap();
    let mut command = store.sh_command("x", "cat; echo oops >&2");
    let output = Running::with_stdin(&mut command, input.into()).wait().exits(0);
    assert_eq!((output.text().as_str(), output.stderr.as_str()), ("hello", "oops\n"));
}

#[test]
fn arguments_that_are_not_utf8_survive() {
    let odd = OsStr::from_bytes(b"a\xff b\n");
    let store = Store::new();
    let mut command = store.command(["run", "x", "--", "printf", "%s"]);
    assert_eq!(done(command.arg(odd)).exits(0).stdout, odd.as_bytes());
}

#[test]
fn the_command_finds_the_lock_in_its_environment() {
    let store = Store::new();
    let seen = store.sh("'orders", "env").exits(0).text();
    let seen = |name: &str| seen.lines().find_map(|line| line.strip_prefix(&format!("{name}="))).unwrap().to_owned();
    assert_eq!(seen("TENURE_NAME"), "'orders");
    assert_eq!(seen("TENURE_URL"), store.url());
    let held: Value = serde_json::from_str(&seen("TENURE_HELD")).unwrap();
    assert_eq!(keys(&held[0]), ["claim", "name", "owner", "token", "url"]);
    assert_eq!(held[0]["name"], "'orders");
    assert_eq!(held[0]["url"], store.url());
    assert_eq!(held[0]["owner"], seen("TENURE_OWNER"));
    assert_eq!(held[0]["token"].as_u64().unwrap().to_string(), seen("TENURE_TOKEN"));
}

#[test]
fn a_relative_path_is_passed_on_absolute() {
    let store = Store::new();
    let mut command = bare(&["run", "x", "--on", "sqlite:locks.db", "--", "sh", "-c", "echo $TENURE_URL"]);
    let seen = done(command.current_dir(store.file("."))).exits(0).text();
    assert_eq!(seen, store.url());
}

#[test]
fn the_store_comes_from_the_environment_where_no_option_says_so() {
    let store = Store::new();
    let _holder = store.start("x", "sleep 60");
    let mut command = bare(&["run", "x", "--no-wait", "--", "true"]);
    done(command.env("TENURE_URL", store.url())).exits(75);
}

#[test]
fn the_embedded_store_is_the_default() {
    let store = Store::new();
    let mut command = bare(&["run", "x", "--", "sh", "-c", "echo $TENURE_URL"]);
    let seen = done(command.env("XDG_STATE_HOME", store.file("state"))).exits(0).text();
    assert_eq!(seen, format!("sqlite:{}", store.file("state/tenure/locks.db").display()));
}

#[test]
fn tokens_grow_from_run_to_run() {
    let store = Store::new();
    let token = || store.sh("x", "echo $TENURE_TOKEN").exits(0).text().parse::<u64>().unwrap();
    assert!(token() < token());
}

#[test]
fn the_command_leads_a_group_of_its_own() {
    let seen = Store::new().sh("x", "cut -d' ' -f1,5 /proc/$$/stat").exits(0).text();
    let (pid, group) = seen.split_once(' ').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn busy_without_waiting_is_75_and_names_the_holder() {
    let store = Store::new();
    let _holder = store.start("x --label build-7", "sleep 60");
    store.tenure("run x --no-wait -- true").exits(75).says("held by build-7");
    store.tenure("run x --wait 0s -- true").exits(75);
}

#[test]
fn busy_until_the_wait_is_over_is_75_and_leaves_no_claim() {
    let store = Store::new();
    let _holder = store.start("x --label build-7", "sleep 60");
    store.tenure("run x --wait 2s -- true").exits(75).says("held by build-7");
    assert_eq!(store.show("x")["waiters"], Value::Array(vec![]));
}

#[test]
fn a_waiter_runs_when_its_turn_comes() {
    let store = Store::new();
    let _holder = store.start("x", "until [ -e go ]; do sleep 0.01; done");
    let waiter = store.start_waiter("x", "--wait 15s");
    fs::write(store.file("go"), "").unwrap();
    waiter.wait().exits(0);
}

#[test]
fn the_lock_is_free_the_moment_the_command_ends() {
    let store = Store::new();
    for _ in 0..5 {
        store.tenure("run x --no-wait -- true").exits(0);
    }
}

#[test]
fn what_the_command_leaves_running_does_not_keep_the_lock() {
    let store = Store::new();
    store.sh("x", "sleep 5 >/dev/null 2>&1 & exit 0").exits(0);
    store.tenure("run x --no-wait -- true").exits(0);
}

#[test]
fn shared_runs_hold_together_and_exclude_the_exclusive() {
    let store = Store::new();
    let _reader = store.start("x --shared", "sleep 60");
    store.tenure("run x --shared --no-wait -- true").exits(0);
    store.tenure("run x --no-wait -- true").exits(75);
}

#[test]
fn permits_hold_together_up_to_their_number() {
    let store = Store::new();
    let _first = store.start_until("x --permits 2", "touch one; sleep 60", "one");
    let _second = store.start_until("x --permits 2", "touch two; sleep 60", "two");
    store.tenure("run x --permits 2 --no-wait -- true").exits(75);
}

#[test]
fn another_number_of_permits_is_64_and_both_are_named() {
    let store = Store::new();
    let _holder = store.start("x --permits 2", "sleep 60");
    store.tenure("run x --permits 3 --no-wait -- true").exits(64).says("1 of 2 permits").says("1 of 3 permits");
}

#[test]
fn a_nested_run_of_the_same_name_re_enters() {
    let store = Store::new();
    let script = "echo $TENURE_OWNER $TENURE_TOKEN
        $TENURE run x --no-wait -- sh -c 'echo $TENURE_OWNER $TENURE_TOKEN; echo $TENURE_HELD'";
    let seen = store.sh("x", script).exits(0).text();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], lines[1], "the same owner and token");
    let held: Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(held.as_array().unwrap().len(), 2);
    assert_ne!(held[0]["claim"], held[1]["claim"], "with a claim of its own");
}

#[test]
fn the_outer_run_still_holds_after_the_inner_has_ended() {
    let store = Store::new();
    store.sh("x", "$TENURE run x -- true; env -u TENURE_HELD $TENURE run x --no-wait -- true").exits(75);
}

#[test]
fn a_nested_run_re_enters_however_the_path_is_written() {
    let store = Store::new();
    std::os::unix::fs::symlink(store.file("."), store.file("link")).unwrap();
    store.sh("x", "$TENURE run x --on sqlite:link/locks.db --no-wait -- true").exits(0);
}

#[test]
fn nested_runs_of_another_name_exclude_each_other() {
    let store = Store::new();
    let inner = "$TENURE run y -- sh -c 'mkdir inside || exit 9; sleep 0.05; rmdir inside'";
    let script = format!("{inner} & one=$!; {inner} & two=$!; wait $one || exit; wait $two");
    store.sh("x", &script).exits(0);
}

#[test]
fn an_upgrade_is_64() {
    let store = Store::new();
    store.sh("x --shared", "$TENURE run x --no-wait -- true").exits(64).says("shared");
}

#[test]
fn a_downgrade_re_enters() {
    Store::new().sh("x", "$TENURE run x --shared --no-wait -- true").exits(0);
}

#[test]
fn a_run_within_one_that_no_longer_holds_is_a_run_like_any_other() {
    let store = Store::new();
    let held = store.sh("x", "echo $TENURE_HELD").exits(0).text();
    let owner = "echo $TENURE_OWNER";
    let mut command = store.sh_command("x --no-wait", owner);
    let seen = done(command.env("TENURE_HELD", &held)).exits(0).text();
    assert!(!held.contains(&seen), "a new owner");
    let _holder = store.start("x", "sleep 60");
    let mut command = store.sh_command("x --no-wait", owner);
    done(command.env("TENURE_HELD", &held)).exits(75);
}

#[test]
fn a_malformed_tenure_held_is_64() {
    let store = Store::new();
    for bad in ["nonsense", "{}", "[{}]"] {
        let mut command = store.command(["run", "x", "--", "true"]);
        done(command.env("TENURE_HELD", bad)).exits(64).says("TENURE_HELD");
    }
}

#[test]
fn names_may_hold_anything_printable() {
    let store = Store::new();
    for name in ["it's", "a \"b\"", "{x}", "ü/∆ 🔒", "$(no)", "a?b#c%2F", "\\n"] {
        let mut command = store.command(["run", name, "--", "sh", "-c", "printf %s \"$TENURE_NAME\""]);
        assert_eq!(done(&mut command).exits(0).text(), name);
    }
}

#[test]
fn a_store_that_cannot_be_used_is_69() {
    done(&mut bare(&["run", "x", "--on", "sqlite:/proc/none/x.db", "--", "true"])).exits(69).says("/proc/none");
}

#[test]
fn errors_are_json_where_asked_for() {
    let store = Store::new();
    let refused = store.tenure("run x --json -- no-such-command").exits(127);
    let told: Value = serde_json::from_str(&refused.stderr).unwrap();
    assert_eq!(told["exit"], 127);
    assert!(told["error"].as_str().unwrap().contains("not found"));
}

#[test]
fn a_lease_is_renewed_beyond_its_ttl() {
    let store = Store::new();
    let _holder = store.start("x --ttl 3s", "sleep 60");
    let held = || store.show("x")["holders"][0]["held_ms"].as_u64();
    eventually("it is held for longer than its ttl", || held().expect("still held") > 4_000);
}

#[test]
fn a_name_may_begin_with_a_dash() {
    let store = Store::new();
    assert_eq!(store.tenure("run -- -x -- printenv TENURE_NAME").exits(0).text(), "-x");
    assert_eq!(store.tenure("show -- -x").exits(0).text(), "-x is free");
    assert_eq!(store.tenure("run x -- echo --owner --label").exits(0).text(), "--owner --label");
    assert_eq!(store.tenure("acquire x --owner -o").exits(0).json()["owner"], "-o");
    store.tenure("release x --owner=-o").exits(0);
    assert_eq!(store.tenure("acquire x --owner=--o").exits(0).json()["owner"], "--o");
}

#[test]
fn flags_are_those_of_flock() {
    let store = Store::new();
    let line =
        done(store.command(["run", "x", "-c", "echo \"$TENURE_NAME\" | tr x y"]).env("SHELL", "/bin/sh")).exits(0);
    assert_eq!(line.text(), "y");
    let _holder = store.start("x", "sleep 60");
    store.tenure("run x -n -- true").exits(75);
    store.tenure("run x -n -E 0 -- false").exits(0);
    store.tenure("run x -w 10ms -E 201 -- true").exits(201);
    store.tenure("acquire x -n -E 9").exits(9);
}

#[test]
fn scripts_take_shared_locks_and_permits() {
    let store = Store::new();
    for owner in ["a", "b"] {
        store.tenure(&format!("acquire r --shared -n --owner {owner}")).exits(0);
        store.tenure(&format!("acquire p --permits 2 -n --owner {owner}")).exits(0);
    }
    store.tenure("acquire r -n --owner c").exits(75);
    store.tenure("acquire p --permits 2 -n --owner c").exits(75);
    store.tenure("acquire p --permits 3 -n --owner c").exits(64);
    store.tenure("release p --owner a").exits(0);
    store.tenure("acquire p --permits 2 -n --owner c").exits(0);
}

#[test]
fn what_is_done_is_told_where_asked_for_and_nothing_where_not() {
    let store = Store::new();
    let told = store.tenure("run x -v -- true").exits(0);
    let lines: Vec<&str> = told.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{told:?}");
    assert!(lines[0].starts_with("tenure: x: acquired after ") && lines[0].contains(", token "), "{told:?}");
    assert!(lines[1].starts_with("tenure: x: released after "), "{told:?}");
    assert_eq!(store.tenure("run x -- true").exits(0).stderr, "");
    let alone = done(&mut bare(&["run", "x", "-q", "--on", "memory:", "--", "true"])).exits(0);
    assert_eq!(alone.stderr, "", "not even a warning");
}

#[test]
fn several_names_are_held_together_or_not_at_all() {
    let store = Store::new();
    let told = store.sh("b a b", "echo ${TENURE_NAME-none} ${TENURE_TOKEN-none}; echo $TENURE_HELD").exits(0).text();
    let (unset, held) = told.split_once('\n').unwrap();
    assert_eq!(unset, "none none", "each has its own");
    let held: Value = serde_json::from_str(held).unwrap();
    let names: Vec<&str> = held.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    assert!(held[0]["token"].is_u64() && held[1]["token"].is_u64(), "{held}");
    let holder = store.start("b", "sleep 60");
    store.tenure("run a b --no-wait -- true").exits(75).says("b: busy");
    eventually("nothing of it is left", || store.show("a")["holders"].as_array().unwrap().is_empty());
    drop(holder);
    store.tenure("break b --yes");
    store.sh("a b", "\"$TENURE\" run b c -- sh -c 'exit 7'").exits(7);
    store.sh("a b", "\"$TENURE\" --on memory: run x -n -- true; exit 4").exits(4);
}

#[test]
fn a_run_under_several_names_ends_when_one_is_broken() {
    let store = Store::new();
    let run = store.start("a b", "sleep 60");
    store.tenure("break b --yes --reason enough").exits(0);
    run.wait().exits(76).says("b: broken by ").says("enough");
    assert!(store.show("a")["holders"].as_array().unwrap().is_empty(), "the other was given back");
}

#[test]
fn runs_that_want_the_same_names_in_another_order_do_not_block_each_other() {
    let store = Store::new();
    let runs: Vec<Running> = (0..8)
        .map(|index| Running::of(&mut store.sh_command(if index % 2 == 0 { "a b" } else { "b a" }, "sleep 0.01")))
        .collect();
    for run in runs {
        run.wait().exits(0);
    }
}
