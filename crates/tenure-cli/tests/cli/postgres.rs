//! The command over PostgreSQL: runs, looks, crashes, poolers, and what doctor finds.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::servers::{PgBouncer, Postgres, shared};

use crate::doctor::{findings, has, paste_fixes};
use crate::support::{Running, Store, eventually, is_alive, keys};

/// A script that ignores every wish that it end.
const STUBBORN: &str = "trap '' TERM INT HUP; while :; do sleep 0.05; done";
/// A script that ends when it is told to.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.02; done; exit 5";

/// A server that doctor has nothing to say about.
fn sound() -> Postgres {
    Postgres::builder().durable().start()
}

#[test]
fn a_command_runs_with_its_token_and_the_complete_url() {
    let server = Postgres::builder().tls().login("locker", "s3cret/with@chars").start();
    let store = Store::on(server.url());
    let seen = store.sh("kinds", "echo $TENURE_TOKEN $TENURE_URL; exit 7").exits(7).text();
    let (token, url) = seen.split_once(' ').unwrap();
    assert!(token.parse::<u64>().unwrap() > 0);
    assert_eq!(url, store.url(), "complete, with the password");
    let held = store.sh("kinds", "echo $TENURE_HELD").exits(0).text();
    assert!(!held.contains("s3cret"), "{held}");
    let wrong = Store::on(server.url().replace("s3cret", "wr0ng"));
    let refused = wrong.tenure("run x -- true").exits(69).says("refused the user or password");
    assert!(!refused.stderr.contains("wr0ng"), "{refused:?}");
}

#[test]
fn busy_is_75_show_tells_who_and_a_release_hands_over() {
    let server = shared::postgres();
    let store = Store::on(server.url_with("schema=show"));
    let holder = store.start("x --ttl 1m --label build-7", UNTIL_GO);
    store.tenure("run x --no-wait -- true").exits(75).says("held by build-7");
    let waiter = store.start_waiter("x", "--ttl 1m --wait 15s");
    let shown = store.show("x");
    assert_eq!(shown["holders"][0]["label"], "build-7");
    assert_eq!(shown["waiters"].as_array().unwrap().len(), 1);
    assert_eq!(store.tenure("ls --json").exits(0).json()[0]["name"], "x");
    fs::write(store.file("go"), "").unwrap();
    holder.wait().exits(5);
    waiter.wait().exits(0);
    assert_eq!(store.show("x")["holders"], json!([]));
}

#[test]
fn a_nested_run_re_enters() {
    let store = Store::on(shared::postgres().url_with("schema=nested"));
    let script = "echo $TENURE_TOKEN; $TENURE run x --no-wait -- sh -c 'echo $TENURE_TOKEN; echo $TENURE_HELD'";
    let seen = store.sh("x", script).exits(0).text();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], lines[1], "the same token");
    let held: Value = serde_json::from_str(lines[2]).unwrap();
    assert_ne!(held[0]["claim"], held[1]["claim"], "with a claim of its own");
}

#[test]
fn scripts_acquire_renew_and_release_by_owner() {
    let store = Store::on(shared::postgres().url_with("schema=scripts"));
    let got = store.tenure("acquire x --ttl 30s --owner me --no-wait").exits(0).json();
    let again = store.tenure("acquire x --ttl 30s --owner me --no-wait").exits(0).json();
    assert_eq!(got["token"], again["token"], "a repeat is a retry");
    store.tenure("acquire x --owner you --no-wait").exits(75);
    assert_eq!(store.tenure("renew x --owner me --ttl 1m").exits(0).json()["token"], got["token"]);
    store.tenure("release x --owner me").exits(0);
    store.tenure("release x --owner me").exits(1);
    let next = store.tenure("acquire x --owner you --no-wait").exits(0).json();
    assert!(next["token"].as_u64() > got["token"].as_u64());
    store.tenure("break x --yes --reason stuck").exits(0);
    store.tenure("renew x --owner you").exits(76).says("stuck");
}

#[test]
fn the_lock_of_a_run_that_was_killed_goes_to_the_waiter_when_its_ttl_is_over() {
    let store = Store::on(shared::postgres().url_with("schema=killed"));
    let holder = store.start("x --ttl 2s", STUBBORN);
    let waiter = store.start_waiter("x", "--wait 15s");
    holder.signal(Signal::KILL);
    waiter.wait().exits(0);
    assert!(!is_alive(store.pid("up")), "and its command is dead by then");
}

#[test]
fn a_server_that_is_gone_ends_the_command_by_the_deadline_and_a_restart_is_ridden_out() {
    let server = sound();
    let store = Store::on(server.url());
    let run = store.start("x --ttl 15s", UNTIL_GO);
    server.restart();
    fs::write(store.file("go"), "").unwrap();
    run.wait().exits(5);
    eventually("it is free", || store.show("x")["holders"] == json!([]));
    fs::remove_file(store.file("up")).unwrap();
    let run = store.start("x --ttl 1s", STUBBORN);
    server.kill();
    run.wait().exits(76).says("x: the lease was lost");
    assert!(!is_alive(store.pid("up")));
}

#[test]
fn processes_behind_a_pooler_take_turns() {
    let server = Postgres::start();
    // Fewer connections than processes: each is given what another had.
    let pooler = PgBouncer::before(&server, 2);
    let store = Store::on(pooler.url());
    fs::write(store.file("count"), "0").unwrap();
    let script = "n=$(cat count); sleep 0.05; echo $((n + 1)) > count";
    let runs: Vec<Running> = (0..8).map(|_| Running::of(&mut store.sh_command("x --ttl 5s", script))).collect();
    for run in runs {
        run.wait().exits(0);
    }
    assert_eq!(store.read("count").trim(), "8");
}

#[test]
fn doctor_tells_what_it_saw_of_a_sound_server() {
    let server = sound();
    let store = Store::on(server.url());
    let report = store.tenure("doctor --json").exits(0).json();
    assert_eq!(keys(&report), ["facts", "findings", "store"]);
    assert_eq!(report["findings"], json!([]));
    for fact in ["version", "round trip", "clock", "synchronous_commit", "standbys", "connections", "statements"] {
        assert!(report["facts"][fact].is_string(), "{fact}: {report}");
    }
    assert_eq!(report["facts"]["statements"], "prepared");
    assert_eq!(report["facts"]["waiters hear of their turn"], "at once (LISTEN)");
}

#[test]
fn doctor_finds_each_setting_and_names_its_fix() {
    let server = sound();
    let store = Store::on(server.url());
    for (name, bad, severity, part) in [
        ("synchronous_commit", "off", "problem", "synchronous_commit is off"),
        ("default_transaction_isolation", "serializable", "advice", "default_transaction_isolation is serializable"),
        ("statement_timeout", "1s", "advice", "statement_timeout is 1000 ms"),
        ("autovacuum", "off", "advice", "autovacuum is off"),
        ("full_page_writes", "off", "problem", "full_page_writes is off"),
    ] {
        assert_eq!(findings(&store), [], "before {name}");
        server.set(name, bad);
        let found = findings(&store);
        assert_eq!(found.len(), 1, "{name} {bad}: {found:?}");
        assert!(found[0].0 == severity && found[0].1.contains(part), "{found:?}");
        let text = store.tenure("doctor").exits(1).text();
        assert!(text.contains(&severity.to_uppercase()) && text.contains(&format!("SET {name}")), "{text}");
        server.psql(&format!("ALTER SYSTEM RESET {name}"));
        server.psql("SELECT pg_reload_conf()");
        eventually("it is as it was", || findings(&store).is_empty());
    }
}

#[test]
fn commands_of_doctor_can_be_pasted() {
    let server = sound();
    let store = Store::on(server.url());
    for (name, bad) in [
        ("synchronous_commit", "off"),
        ("default_transaction_isolation", "serializable"),
        ("statement_timeout", "1s"),
        ("autovacuum", "off"),
        ("full_page_writes", "off"),
    ] {
        server.set(name, bad);
    }
    eventually("all are found", || findings(&store).len() == 5);
    paste_fixes(&store);
    eventually("all are mended", || findings(&store).is_empty());
}

#[test]
fn doctor_finds_a_server_that_does_not_flush_one_that_is_full_and_a_clock_that_is_off() {
    let server = Postgres::builder().config("max_connections", "9").shifted_clock().start();
    let store = Store::on(server.url());
    assert!(has(&store, "problem", "fsync is off"));
    assert!(!has(&store, "problem", "connections are in use"));
    assert!(!has(&store, "advice", "clock"));
    server.shift_clock(-60);
    assert!(has(&store, "advice", "60.0 s behind this machine's"));
    let runs: Vec<Running> = (0..2)
        .map(|number| {
            store.start_until(&format!("x{number}"), &format!("touch up{number}; sleep 60"), &format!("up{number}"))
        })
        .collect();
    eventually("it is found", || has(&store, "problem", "connections are in use"));
    drop(runs);
}

#[test]
fn doctor_finds_a_pooler_and_is_content_with_a_direct_connection_for_listening() {
    let server = sound();
    let pooler = PgBouncer::before(&server, 2);
    assert!(has(&Store::on(pooler.url()), "advice", "nothing is heard"));
    let listening = Store::on(format!("{}?listen=127.0.0.1:{}", pooler.url(), server.port()));
    assert_eq!(findings(&listening), []);
}
