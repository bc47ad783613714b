//! On a terminal: the waiting line, the foreground group, Ctrl-C and Ctrl-Z. `script` makes the terminal.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::{BIN, Done, Running, Store, eventually};

/// Waits until the shell's group is in the foreground, or fails.
const IN_FOREGROUND: &str = "i=0; while :; do set -- $(cat /proc/$$/stat); [ $5 = $8 ] && break
    i=$((i+1)); [ $i -gt 500 ] && exit 99; sleep 0.01; done";

/// Starts a shell script with a terminal of its own; `$T` is `tenure` on the store.
pub(crate) fn on_terminal(store: &Store, script: &str) -> Running {
    std::fs::write(store.file("script.sh"), script).unwrap();
    let mut command = Command::new("script");
    command.args(["-qec", "bash script.sh", "/dev/null"]).current_dir(store.file("."));
    command.env("T", BIN).env("TENURE_URL", store.url()).env("TERM", "xterm").env_remove("TENURE_HELD");
    Running::with_stdin(&mut command, Stdio::piped())
}

pub(crate) fn shown(done: &Done) -> String {
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn waiting_is_not_told_where_nobody_wants_it() {
    let store = Store::new();
    let _holder = store.start("x --label boss", "sleep 60");
    for quiet in ["--quiet", "--json"] {
        let told = store.tenure(&format!("run x {quiet} --wait 1s -- true")).exits(75);
        assert_eq!(told.stderr.lines().count(), 1, "{told:?}");
    }
}

#[test]
fn nothing_is_coloured() {
    let store = Store::new();
    let serve = "$T serve --listen 127.0.0.1:0 --json > out & p=$!
        until [ -s out ] || ! kill -0 $p 2>/dev/null; do sleep 0.05; done
        kill $p; wait $p; echo ended $?";
    let script = format!(
        "$T --help; $T run x --nosuch; $T run x -v -- true; $T show x; $T explain x; $T ls; $T doctor; {serve}"
    );
    let mut run = on_terminal(&store, &script);
    let _input = run.stdin();
    let text = shown(&run.wait().exits(0));
    assert!(text.contains("x is free") && text.contains("ended 0"), "{text:?}");
    // Select graphic rendition: bold, underlined, or a colour.
    let styled = text
        .split("\x1b[")
        .skip(1)
        .any(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';').starts_with('m'));
    assert!(!styled, "{text:?}");
}

#[test]
fn the_commands_group_gets_the_terminal_and_gives_it_back() {
    let store = Store::new();
    let script = format!(
        "$T run x -- sh -c '{IN_FOREGROUND}; read line; echo got $line' || exit
        {IN_FOREGROUND}; echo back"
    );
    let mut run = on_terminal(&store, &script);
    let mut input = run.stdin();
    input.write_all(b"hello\n").unwrap();
    let text = shown(&run.wait().exits(0));
    assert!(text.contains("got hello") && text.contains("back"), "{text:?}");
}

#[test]
fn ctrl_c_reaches_the_command() {
    let store = Store::new();
    let script =
        format!("$T run x -- sh -c 'trap \"exit 42\" INT; {IN_FOREGROUND}; touch up; while :; do sleep 0.02; done'");
    let mut run = on_terminal(&store, &script);
    let mut input = run.stdin();
    eventually("it is up", || store.file("up").exists());
    input.write_all(b"\x03").unwrap();
    run.wait().exits(42);
}

#[test]
fn ctrl_z_stops_the_job_and_fg_continues_it() {
    let store = Store::new();
    let script = format!(
        "set -m
        $T run x -- sh -c '{IN_FOREGROUND}; touch up; read line; echo got $line; exit 3'
        echo stopped $?; touch stopped
        fg; echo ended $?"
    );
    let mut run = on_terminal(&store, &script);
    let mut input = run.stdin();
    eventually("it is up", || store.file("up").exists());
    input.write_all(b"\x1a").unwrap();
    eventually("the job is stopped", || store.file("stopped").exists());
    input.write_all(b"hello\n").unwrap();
    let text = shown(&run.wait().exits(0));
    for part in ["x: stopped; the lease", "stopped 148", "got hello", "ended 3"] {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn a_terminal_left_in_disorder_by_a_lost_command_is_set_right() {
    let store = Store::new();
    let script =
        format!("$T run x -- sh -c '{IN_FOREGROUND}; stty raw -echo; touch up; sleep 60'; echo ended $?; stty -a");
    let mut run = on_terminal(&store, &script);
    let _input = run.stdin();
    eventually("it is up", || store.file("up").exists());
    store.tenure("break x --yes").exits(0);
    let text = shown(&run.wait().exits(0));
    assert!(text.contains("ended 76") && text.contains(" icanon") && !text.contains("-echo "), "{text:?}");
}

#[test]
fn a_stopped_job_is_ended_at_the_deadline() {
    let store = Store::new();
    let script = format!(
        "set -m
        $T run x --ttl 3s -- sh -c '{IN_FOREGROUND}; echo $$ > up.tmp; mv up.tmp up; read line'
        echo stopped $?; while kill -0 $(cat up) 2>/dev/null; do sleep 0.02; done
        fg; echo ended $?"
    );
    let mut run = on_terminal(&store, &script);
    let mut input = run.stdin();
    eventually("it is up", || store.file("up").exists());
    input.write_all(b"\x1a").unwrap();
    let text = shown(&run.wait().exits(0));
    assert!(text.contains("stopped 148") && text.contains("ended 76"), "{text:?}");
}
