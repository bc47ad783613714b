//! `elect`: one leader at a time, and stopped before the next one leads.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{BIN, Done, Running, Store, done, eventually, is_alive, keys};

/// Says who leads in a file of its own, and does not end by itself.
const LEADS: &str = "echo $$ $TENURE_TERM > $WHO.tmp; mv $WHO.tmp $WHO; while :; do sleep 0.02; done";
/// The same, and ignores every wish that it end.
const STUBBORN: &str =
    "trap '' TERM INT HUP; echo $$ $TENURE_TERM > $WHO.tmp; mv $WHO.tmp $WHO; while :; do sleep 0.02; done";
/// Fails if the leader named first is still there.
const FINDS_NOBODY: &str = "grep -q '^State:.[^ZX]' /proc/$(cut -d' ' -f1 a)/status && exit 9; exit 0";

fn elect(store: &Store, who: &str, args: &str, script: &str) -> Command {
    let mut command = store.command(["elect", "boss"]);
    command.args(args.split_whitespace()).args(["--", "sh", "-c", script]);
    command.env("WHO", who).env("TENURE", BIN);
    command
}

/// Starts a candidate and waits until it leads.
fn start(store: &Store, who: &str, args: &str, script: &str) -> Running {
    let running = Running::of(&mut elect(store, who, args, script));
    eventually(&format!("{who} leads"), || store.file(who).exists());
    running
}

/// Starts a candidate that has to wait, and waits until it does.
fn start_waiting(store: &Store, who: &str, args: &str, script: &str) -> Running {
    let running = Running::of(&mut elect(store, who, args, script));
    eventually("it waits", || store.show("boss")["waiters"].as_array().unwrap().len() == 1);
    running
}

fn term(store: &Store, who: &str) -> u64 {
    store.read(who).split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn pid(store: &Store, who: &str) -> rustix::process::Pid {
    let number = store.read(who).split_whitespace().next().unwrap().parse().unwrap();
    rustix::process::Pid::from_raw(number).unwrap()
}

#[test]
fn when_the_command_ends_it_resigns_and_exits_with_its_code_and_the_next_leads() {
    let store = Store::new();
    let first = start(
        &store,
        "a",
        "",
        "echo $$ $TENURE_TERM > a.tmp; mv a.tmp a; while ! test -e end; do sleep 0.02; done; exit 7",
    );
    let second = start_waiting(&store, "b", "", LEADS);
    std::fs::write(store.file("end"), "").unwrap();
    first.wait().exits(7);
    eventually("the next leads", || store.file("b").exists());
    assert!(term(&store, "b") > term(&store, "a"));
    second.signal(Signal::TERM);
    second.wait().exits(143);
}

#[test]
fn the_term_is_the_token() {
    let store = Store::new();
    let script = "test $TENURE_TERM = $TENURE_TOKEN && test $TENURE_NAME = boss";
    done(&mut elect(&store, "a", "", script)).exits(0);
    // A plain run within it has a token of its own, and the term of the leader around it.
    let script = "$TENURE run x -- sh -c 'test $TENURE_TERM -gt 0 && test $TENURE_TERM != $TENURE_TOKEN'";
    done(&mut elect(&store, "a", "", script)).exits(0);
}

#[test]
fn a_leader_that_is_stopped_past_its_deadline_is_dead_before_another_leads_and_then_campaigns_again() {
    let store = Store::new();
    let first = start(&store, "a", "--ttl 2s", STUBBORN);
    let term_of_first = term(&store, "a");
    first.signal(Signal::STOP);
    done(&mut elect(&store, "b", "--ttl 2s", FINDS_NOBODY)).exits(0);
    std::fs::remove_file(store.file("a")).unwrap();
    first.signal(Signal::CONT);
    eventually("it leads again", || store.file("a").exists());
    assert!(term(&store, "a") > term_of_first);
    first.signal(Signal::KILL);
    eventually("its command is gone", || !is_alive(pid(&store, "a")));
}

#[test]
fn a_leader_that_is_killed_is_dead_before_another_leads() {
    let store = Store::new();
    let first = start(&store, "a", "--ttl 2s", STUBBORN);
    first.signal(Signal::KILL);
    done(&mut elect(&store, "b", "--ttl 2s", FINDS_NOBODY)).exits(0);
}

#[test]
fn once_exits_76_when_the_leadership_is_lost() {
    let store = Store::new();
    let leader = start(&store, "a", "--once", LEADS);
    store.tenure("break boss --yes --reason test").exits(0);
    leader.wait().exits(76).says("the lease was lost: broken by").says("test");
    assert!(!is_alive(pid(&store, "a")));
}

#[test]
fn a_broken_leader_campaigns_again() {
    let store = Store::new();
    let leader = start(&store, "a", "", LEADS);
    let (first, command) = (term(&store, "a"), pid(&store, "a"));
    store.tenure("break boss --yes").exits(0);
    eventually("it leads again", || term(&store, "a") > first);
    assert!(!is_alive(command));
    leader.signal(Signal::TERM);
    leader.wait().exits(143).says("campaigning again");
}

#[test]
fn it_resigns_only_once_what_the_command_left_running_is_gone() {
    let store = Store::new();
    let leaves = "(trap '' TERM; while :; do sleep 0.02; done) & echo $! > rest.tmp; mv rest.tmp rest; exit 3";
    let leader = Running::of(&mut elect(&store, "a", "--ttl 3s --grace 1s", leaves));
    eventually("it has ended", || store.file("rest").exists());
    let rest = store.pid("rest");
    done(&mut elect(&store, "b", "", "grep -q '^State:.[^ZX]' /proc/$(cat rest)/status && exit 9; exit 0")).exits(0);
    assert!(!is_alive(rest));
    leader.wait().exits(3);
}

#[test]
fn observers_are_told_of_each_leader() {
    let store = Store::new();
    let leader = start(&store, "a", "--address 10.0.0.7:80 --label first", LEADS);
    let observe = |args: &str, file: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {BIN} --on {} elect boss --observe {args} > {file}", store.url())]);
        let observer = Running::of(shell.current_dir(store.file(".")));
        eventually("the first is told", || store.file(file).exists() && store.read(file).lines().count() == 1);
        observer
    };
    let observers = [observe("--json", "json"), observe("", "people")];
    let next = start_waiting(&store, "b", "--label second", LEADS);
    leader.signal(Signal::TERM);
    leader.wait().exits(143);
    for (observer, file) in observers.into_iter().zip(["json", "people"]) {
        eventually("the second is told", || store.read(file).lines().count() == 2);
        observer.signal(Signal::TERM);
        observer.wait().exits(143);
    }
    let told: Vec<Value> = store.read("json").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(keys(&told[0]), ["address", "label", "name", "since_ms", "term"]);
    assert_eq!((told[0]["label"].as_str(), told[0]["address"].as_str()), (Some("first"), Some("10.0.0.7:80")));
    assert_eq!(told[0]["term"].as_u64(), Some(term(&store, "a")));
    assert_eq!((told[1]["label"].as_str(), told[1]["address"].as_str()), (Some("second"), None));
    let people = store.read("people");
    let lines: Vec<&str> = people.lines().collect();
    assert!(lines[0].contains("boss  first at 10.0.0.7:80  term "), "{lines:?}");
    assert!(lines[1].contains("boss  second  term "), "{lines:?}");
    next.signal(Signal::TERM);
    next.wait().exits(143);
}

#[test]
fn what_cannot_be_is_refused() {
    let store = Store::new();
    store.tenure("elect boss").exits(64);
    store.tenure("elect boss --observe -- true").exits(64);
    let within = |done: Done| done.exits(64).says("a run around this one holds it");
    within(store.sh("boss", "exec $TENURE elect boss -- true"));
    done(&mut elect(&store, "a", "", "exit 0")).exits(0);
    let waiting = start(&store, "a", "", LEADS);
    let second = start_waiting(&store, "b", "", LEADS);
    second.signal(Signal::TERM);
    second.wait().exits(143).says("stopped waiting").says("the claim was ended");
    drop(waiting);
}
