//! The command over a fleet of independent Redis masters.

use std::fs;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::servers::{Fleet, Redis};

use crate::support::{Done, Running, Store, bare, done, eventually, is_alive};

/// A script that ignores every wish that it end.
const STUBBORN: &str = "trap '' TERM INT HUP; while :; do sleep 0.05; done";
/// A script that ends when it is told to.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.02; done; exit 5";

/// Its nodes may take their time: the machine of a test may be busy.
fn patient(fleet: &Fleet) -> Store {
    Store::on(fleet.url_with("node_timeout=500ms"))
}

/// A fleet that has begun.
fn begun(size: usize) -> (Fleet, Store) {
    let fleet = Fleet::durable(size);
    let store = patient(&fleet);
    store.tenure("run begin -- true").exits(0);
    (fleet, store)
}

fn layouts(fleet: &Fleet) -> [Store; 2] {
    [patient(fleet), Store::on(fleet.url_with("layout=plain&node_timeout=500ms"))]
}

/// What a quorum answers: on a busy machine too few nodes may answer in time, and then all are asked again.
fn answered(store: &Store, args: &str) -> Done {
    let mut last = store.tenure(args);
    eventually("a quorum answers", || {
        if last.code == 69 {
            last = store.tenure(args);
        }
        last.code != 69
    });
    last
}

#[test]
fn a_script_takes_renews_and_gives_back_from_several_processes() {
    let fleet = Fleet::start(5);
    for store in layouts(&fleet) {
        let plain = store.url().contains("plain");
        let got = store.tenure("acquire x --owner me --ttl 20s").exits(0).json();
        assert_eq!(got["token"].is_null(), plain, "{got}");
        let again = store.tenure("acquire x --owner me --ttl 20s").exits(0).json();
        assert_eq!(again["token"], got["token"], "a repeat");
        store.tenure("acquire x --owner you --no-wait").exits(75);
        let renewed = store.tenure("renew x --owner me --ttl 1m").exits(0).json();
        assert_eq!(renewed["token"], got["token"]);
        assert!(renewed["expires_in_ms"].as_u64().unwrap() > 20_000, "{renewed}");
        let shown = store.show("x");
        assert_eq!((&shown["holders"][0]["owner"], &shown["capacity"]), (&json!("me"), &json!(1)));
        assert_eq!(store.tenure("ls --json").exits(0).json()[0]["name"], "x");
        answered(&store, "renew x --owner you").exits(76);
        store.tenure("release x --owner you").exits(1);
        store.tenure("release x --owner me").exits(0);
        // A node that greets late is not asked: it has the claim until somebody asks it.
        eventually("no node has it", || {
            let again = store.tenure("release x --owner me");
            assert!([0, 1].contains(&again.code), "{again:?}");
            fleet.leftovers().is_empty()
        });
        store.tenure("release x --owner me").exits(1);
        answered(&store, "renew x --owner me").exits(76);
        assert_eq!(store.tenure("ls --json").exits(0).json(), json!([]));
    }
    eventually("nothing is left", || fleet.leftovers().is_empty());
}

#[test]
fn a_run_has_a_token_that_grows_and_its_end_frees_the_lock() {
    let fleet = Fleet::start(3);
    let store = patient(&fleet);
    let token = || store.sh("x --no-wait", "echo $TENURE_TOKEN; exit 7").exits(7).text().parse::<u64>().unwrap();
    let first = token();
    assert!(token() > first);
    assert_eq!(fleet.leftovers(), [""; 0]);
}

#[test]
fn a_broken_holder_is_told_who_and_why() {
    let (_fleet, store) = begun(3);
    let run = store.start("x --ttl 1m", "sleep 60");
    store.tenure("break x").exits(64).says("--yes");
    store.tenure("break x --yes --reason too-slow").exits(0);
    run.wait().exits(76).says("too-slow");
    store.tenure("break x --yes").exits(1);
}

#[test]
fn busy_names_the_holder_and_claims_no_order_that_is_not_there() {
    let fleet = Fleet::start(3);
    for store in layouts(&fleet) {
        let _holder = store.start("x --label build-7", "sleep 60");
        store.tenure("run x --no-wait -- true").exits(75).says("held by build-7");
        let waited = store.tenure("run x --wait 2s -- true").exits(75).says("held by build-7");
        assert!(!waited.stderr.contains("queue") && !waited.stderr.contains("place"), "{waited:?}");
        fleet.nodes().iter().for_each(|node| drop(node.cli(&["flushall"])));
    }
}

#[test]
fn those_who_wait_are_shown_without_a_place() {
    let (_fleet, store) = begun(3);
    let _holder = store.start("x", "sleep 60");
    let _waiter = store.start_waiter("x", "--wait 15s --label next-one");
    let shown = store.tenure("show x").exits(0).text();
    assert!(shown.contains("next-one") && !shown.contains("PLACE"), "{shown}");
}

#[test]
fn a_release_hands_over_to_the_run_that_waits() {
    let (fleet, store) = begun(5);
    let holder = store.start("x --ttl 1m", UNTIL_GO);
    let waiter = store.start_waiter("x", "--ttl 1m --wait 15s");
    fs::write(store.file("go"), "").unwrap();
    holder.wait().exits(5);
    waiter.wait().exits(0);
    assert_eq!(fleet.leftovers(), [""; 0]);
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let (fleet, store) = begun(3);
    let holder = store.start("x --ttl 1m", "exec sleep 60");
    let waiter = store.start_waiter("x", "--ttl 1m");
    waiter.signal(Signal::INT);
    waiter.wait().exits(130);
    holder.signal(Signal::INT);
    holder.wait().exits(130);
    eventually("nothing is left", || fleet.leftovers().is_empty());
}

#[test]
fn what_a_fleet_lacks_is_64() {
    let (_fleet, store) = begun(3);
    store.tenure("run x --shared -- true").exits(64).says("no shared locks");
    store.tenure("run x --permits 2 -- true").exits(64).says("no semaphores");
    for command in ["run x --min-replicas 1 -- true", "acquire x --min-replicas majority"] {
        store.tenure(command).exits(64).says("no replicas to wait for");
    }
    store.sh("x", "$TENURE run x --min-replicas 1 -- true").exits(64).says("no replicas to wait for");
}

#[test]
fn a_minority_may_be_down() {
    let (fleet, store) = begun(5);
    fleet.nodes()[0].kill();
    fleet.nodes()[1].pause();
    store.tenure("run x --wait 10s -- true").exits(0);
    fleet.nodes()[1].resume();
}

#[test]
fn without_a_quorum_it_is_69_and_each_missing_node_is_named() {
    let (fleet, store) = begun(5);
    let down = &fleet.nodes()[2..];
    down.iter().for_each(Redis::kill);
    for command in ["run x --no-wait -- true", "run x --wait 2s -- true", "acquire x --wait 2s", "show x"] {
        let mut refused = store.tenure(command).exits(69).says("no quorum: 3 of 5 nodes are needed");
        for node in down {
            refused = refused.says(&format!("{}: cannot connect", node.address()));
        }
        assert!(!refused.stderr.contains(&format!("{}: ", fleet.nodes()[0].address())), "{refused:?}");
    }
}

#[test]
fn a_fleet_without_a_quorum_is_tried_again() {
    let (fleet, store) = begun(3);
    let down = &fleet.nodes()[1..];
    down.iter().for_each(Redis::kill);
    let alive = &fleet.nodes()[0];
    let connections = || {
        let stats = alive.cli(&["info", "stats"]);
        let count = stats.lines().find_map(|line| line.trim().strip_prefix("total_connections_received:"));
        count.unwrap().parse::<u64>().unwrap()
    };
    let mut known = connections();
    let run = Running::of(&mut store.sh_command("x --wait 18s", "exit 5"));
    let mut theirs = 0;
    eventually("it has come several times", || {
        // Every look is a connection, too.
        let now = connections();
        theirs += now - known - 1;
        known = now;
        theirs > 6
    });
    down.iter().for_each(Redis::restart);
    run.wait().exits(5);
}

#[test]
fn a_lost_quorum_ends_the_command_by_the_deadline_and_names_the_nodes() {
    let (fleet, store) = begun(5);
    let run = store.start("x --ttl 2s", STUBBORN);
    let down = &fleet.nodes()[..3];
    down.iter().for_each(Redis::kill);
    let mut ended = run.wait().exits(76).says("x: the lease was lost").says("no quorum: 3 of 5 nodes are needed");
    assert!(!is_alive(store.pid("up")));
    for node in down {
        ended = ended.says(&format!("{}: ", node.address()));
    }
}

#[test]
fn an_outage_of_the_quorum_that_is_shorter_than_the_lease_is_ridden_out() {
    let (fleet, store) = begun(3);
    let run = store.start("x --ttl 15s", UNTIL_GO);
    let [alive, down @ ..] = fleet.nodes() else { panic!("no nodes") };
    down.iter().for_each(Redis::kill);
    let left = || alive.cli(&["pttl", "tenure:redlock:{:x}"]).parse::<i64>().unwrap();
    let mut before = left();
    eventually("a renewal finds no quorum", || {
        let now = left();
        std::mem::replace(&mut before, now) < now
    });
    down.iter().for_each(Redis::restart);
    let held = || store.show("x")["holders"][0]["expires_in_ms"].as_u64();
    let before = held().expect("the nodes kept it");
    eventually("it was renewed", || held().expect("still held") > before);
    fs::write(store.file("go"), "").unwrap();
    run.wait().exits(5);
}

#[test]
fn a_nested_run_shares_the_outers_claim_and_token() {
    let (_fleet, store) = begun(3);
    let script = "echo $TENURE_TOKEN; $TENURE run x --no-wait -- sh -c 'echo $TENURE_TOKEN; echo $TENURE_HELD'";
    let seen = store.sh("x", script).exits(0).text();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], lines[1], "the same token");
    let held: Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(held[0], held[1], "and the same claim");
}

#[test]
fn the_outer_run_still_holds_after_the_one_that_shared_has_ended() {
    let (_fleet, store) = begun(3);
    let script = "$TENURE run x -- true || exit; env -u TENURE_HELD $TENURE run x --no-wait -- true";
    store.sh("x", script).exits(75);
    store.tenure("run x --no-wait -- true").exits(0);
}

#[test]
fn a_share_renews_the_outers_claim() {
    let (_fleet, store) = begun(3);
    // The outer run is stopped, so nobody but the nested one renews.
    let nested = "$TENURE run x --ttl 30s -- sh -c 'touch in; until [ -e go ]; do sleep 0.02; done; exit 5'";
    let outer = store.start_until("x --ttl 30s", nested, "in");
    let left = || store.show("x")["holders"][0]["expires_in_ms"].as_u64().unwrap();
    outer.signal(Signal::STOP);
    let before = left();
    eventually("it was renewed", || left() > before);
    outer.signal(Signal::CONT);
    fs::write(store.file("go"), "").unwrap();
    outer.wait().exits(5);
}

#[test]
fn a_share_is_lost_when_the_outer_run_ends() {
    let (_fleet, store) = begun(3);
    let nested = format!("echo $$ > up.tmp; mv up.tmp up; {STUBBORN}");
    let script = format!(
        "($TENURE run x --ttl 3s -- sh -c \"{nested}\"; echo $? > code.tmp; mv code.tmp code) 2> told &
        until [ -e up ]; do sleep 0.02; done"
    )
    .replace("$$ >", "\\$\\$ >");
    store.sh("x --ttl 3s", &script).exits(0);
    eventually("the nested run has ended", || store.file("code").exists());
    assert_eq!(store.read("code").trim(), "76");
    assert!(store.read("told").contains("the enclosing run, whose lock this run shares, no longer holds it"));
    assert!(!is_alive(store.pid("up")));
    assert_eq!(store.show("x")["holders"], json!([]), "and nothing was put back");
}

#[test]
fn a_run_within_one_that_no_longer_holds_is_a_run_like_any_other() {
    let (_fleet, store) = begun(3);
    let held = store.sh("x", "echo $TENURE_HELD").exits(0).text();
    let seen = done(store.sh_command("x --no-wait", "echo $TENURE_OWNER").env("TENURE_HELD", &held));
    assert!(!held.contains(&seen.exits(0).text()), "a new owner");
}

#[test]
fn a_password_is_seen_neither_in_the_process_list_nor_in_tenure_held_nor_in_errors() {
    let users = "user default on >s3same ~* &* +@all";
    let fleet = Fleet::builder(3).each(|node| node.users(users).login("default", "s3same")).start();
    let store = patient(&fleet);
    let script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' > ps; echo \"$TENURE_HELD\" > held; env > env";
    store.sh("x", script).exits(0);
    assert!(store.read("ps").contains("run x"), "the list was read");
    assert!(!store.read("ps").contains("s3same") && !store.read("held").contains("s3same"));
    let env = store.read("env");
    let with: Vec<&str> = env.lines().filter(|line| line.contains("s3same")).collect();
    assert_eq!(with, [format!("TENURE_URL={}", store.url())]);
    fleet.nodes()[1..].iter().for_each(Redis::kill);
    for command in ["run x --no-wait -- true", "doctor", "doctor --json"] {
        let told = store.tenure(command);
        assert!(!format!("{}{}", told.text(), told.stderr).contains("s3same"), "{told:?}");
    }
}

#[test]
fn a_wrong_password_is_69() {
    let users = "user default on >right ~* &* +@all";
    let fleet = Fleet::builder(3).each(|node| node.users(users).login("default", "wr0ng")).start();
    for command in ["run x -- true", "show x", "doctor", "acquire x --wait 1s"] {
        let refused = patient(&fleet).tenure(command).exits(69).says("refused the user or password");
        assert!(!refused.stderr.contains("wr0ng"), "{refused:?}");
    }
}

#[test]
fn bad_urls_are_64_and_show_no_password() {
    for url in ["redlock://u:hidden@a,b", "redlock://u:hidden@a,b,a", "redlock://u:hidden@a,b,c?layout=redisson"] {
        for command in ["show", "doctor"] {
            let name = if command == "show" { &["x"][..] } else { &[] };
            let refused = done(bare(&[command, "--on", url]).args(name)).exits(64);
            assert!(!refused.stderr.contains("hidden"), "{refused:?}");
        }
    }
}

#[test]
fn the_help_and_the_manual_name_it() {
    let offered = ["__complete", "--", "tenure", "run", "--on", "redl"];
    for args in [&["--help"][..], &["doctor", "--help"], &["man"], &offered] {
        let text = done(&mut bare(args)).exits(0).text();
        assert!(text.contains("redlock://"), "{args:?}: {text}");
    }
}
