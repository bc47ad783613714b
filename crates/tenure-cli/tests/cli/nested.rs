//! Nested runs over Redis: they re-enter where there are tokens, and share the outer's lock where there are none.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tenure_testkit::servers::Redis;

use crate::support::{Running, Store, eventually, is_alive};

/// The layouts without tokens and sessions.
const FOREIGN: [&str; 2] = ["?layout=plain", "?layout=redisson"];

/// A nested run that says when it is up, and ignores every wish that it end.
const STUBBORN: &str = "$TENURE run x --ttl 3s -- sh -c \
    'trap \"\" TERM; echo $$ > up.tmp; mv up.tmp up; while :; do sleep 0.05; done'";

/// A nested run within one that is out of action, its guardian too: what ends the nested one is its own doing.
struct Stopped {
    _outer: Running,
    guardian: Pid,
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.guardian, Signal::CONT);
    }
}

fn stopped_around_a_nested_run(store: &Store, ttl: &str) -> Stopped {
    let script = format!("echo $PPID > guardian; {STUBBORN} 2> told; echo $? > code.tmp; mv code.tmp code; sleep 60");
    let outer = store.start_until(&format!("x --ttl {ttl}"), &script, "up");
    let guardian = store.pid("guardian");
    outer.signal(Signal::STOP);
    kill_process(guardian, Signal::STOP).unwrap();
    Stopped { _outer: outer, guardian }
}

fn foreign(redis: &Redis) -> impl Iterator<Item = Store> {
    FOREIGN.into_iter().map(|layout| Store::on(format!("{}{layout}", redis.url())))
}

#[test]
fn the_native_layout_re_enters() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let script = "echo $TENURE_TOKEN; $TENURE run x --no-wait -- sh -c 'echo $TENURE_TOKEN; echo $TENURE_HELD'";
    let seen = store.sh("x", script).exits(0).text();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], lines[1], "the same token");
    let held: Value = serde_json::from_str(lines[2]).unwrap();
    assert_ne!(held[0]["claim"], held[1]["claim"], "with a claim of its own");
}

#[test]
fn a_foreign_layout_shares_the_outers_claim_and_has_no_token() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        let script = "$TENURE run x --no-wait -- sh -c 'echo ${TENURE_TOKEN-unset} $TENURE_HELD'";
        let seen = store.sh("x", script).exits(0).text();
        let (token, held) = seen.split_once(' ').unwrap();
        assert_eq!(token, "unset");
        let held: Value = serde_json::from_str(held).unwrap();
        assert_eq!(held.as_array().unwrap().len(), 2);
        assert_eq!((&held[0]["claim"], &held[0]["owner"]), (&held[1]["claim"], &held[1]["owner"]));
        assert_eq!(held[1]["token"], Value::Null);
    }
}

#[test]
fn the_outer_run_still_holds_after_the_one_that_shared_has_ended() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        let script = "$TENURE run x -- true || exit; env -u TENURE_HELD $TENURE run x --no-wait -- true";
        store.sh("x", script).exits(75);
        store.tenure("run x --no-wait -- true").exits(0);
    }
}

#[test]
fn a_share_renews_the_outers_claim() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        // The outer run is stopped, so nobody but the nested one renews.
        let nested = "$TENURE run x --ttl 30s -- sh -c 'touch in; until [ -e go ]; do sleep 0.02; done; exit 5'";
        let outer = store.start_until("x --ttl 30s", nested, "in");
        let left = || store.show("x")["holders"][0]["expires_in_ms"].as_u64().unwrap();
        outer.signal(Signal::STOP);
        let before = left();
        eventually("it was renewed", || left() > before);
        outer.signal(Signal::CONT);
        std::fs::write(store.file("go"), "").unwrap();
        outer.wait().exits(5);
    }
}

#[test]
fn a_share_is_lost_when_the_outer_run_ends() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        let script = format!(
            "({STUBBORN}; echo $? > code.tmp; mv code.tmp code) 2> told & until [ -e up ]; do sleep 0.02; done"
        );
        store.sh("x --ttl 3s", &script).exits(0);
        eventually("the nested run has ended", || store.file("code").exists());
        assert_eq!(store.read("code").trim(), "76");
        assert!(store.read("told").contains("the enclosing run, whose lock this run shares, no longer holds it"));
        assert!(!is_alive(store.pid("up")));
        assert_eq!(store.show("x")["holders"], json!([]), "and nothing was put back");
    }
}

#[test]
fn a_share_is_lost_when_the_outers_claim_is_broken() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        let outer = stopped_around_a_nested_run(&store, "30s");
        store.tenure("break x --yes").exits(0);
        eventually("the nested run has ended", || store.file("code").exists());
        assert_eq!(store.read("code").trim(), "76");
        assert!(!is_alive(store.pid("up")));
        drop(outer);
    }
}

#[test]
fn a_share_that_was_gone_when_the_command_ended_is_76() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        // Too short for a renewal to notice.
        let nested = "$TENURE run x --ttl 1m -- sh -c '$TENURE break x --yes 2>/dev/null; exit 0'; echo $? > code";
        store.sh("x --ttl 1m", nested).exits(76);
        assert_eq!(store.read("code").trim(), "76");
    }
}

#[test]
fn a_shared_command_is_killed_by_its_own_deadline_when_the_server_is_silent() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        let outer = stopped_around_a_nested_run(&store, "3s");
        redis.pause();
        eventually("the nested run has ended", || store.file("code").exists());
        redis.resume();
        assert_eq!(store.read("code").trim(), "76", "{}", store.read("told"));
        assert!(!is_alive(store.pid("up")));
        drop(outer);
    }
}

#[test]
fn a_run_within_one_that_no_longer_holds_is_a_run_like_any_other() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        let held = store.sh("x", "echo $TENURE_HELD").exits(0).text();
        let seen =
            crate::support::done(store.sh_command("x --no-wait", "echo $TENURE_OWNER").env("TENURE_HELD", &held));
        assert!(!held.contains(&seen.exits(0).text()), "a new owner");
    }
}

#[test]
fn a_nested_run_cannot_ask_for_replicas_that_nobody_would_ask_for() {
    let redis = Redis::start();
    for store in foreign(&redis) {
        store.sh("x", "$TENURE run x --min-replicas 1 -- true").exits(64).says("--min-replicas within a run");
    }
}
