//! The command over Redis: every kind of server, outages, refusals, other people's keys.

use std::fs;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};
use tenure_testkit::servers::{Redis, leftovers, shared};

use crate::support::{Running, Store, bare, done, eventually, is_alive};

/// A script that ignores every wish that it end.
const STUBBORN: &str = "trap '' TERM INT HUP; while :; do sleep 0.05; done";
/// A script that ends when it is told to.
const UNTIL_GO: &str = "until [ -e go ]; do sleep 0.02; done; exit 5";

#[test]
fn every_kind_of_server_runs_a_command() {
    let urls = [
        shared::redis().url().to_owned(),
        shared::tls().url().to_owned(),
        shared::sentinel().url(),
        shared::cluster().url(),
    ];
    for url in urls {
        let store = Store::on(url);
        let seen = store.sh("kinds", "echo $TENURE_TOKEN $TENURE_URL; exit 7").exits(7).text();
        let (token, url) = seen.split_once(' ').unwrap();
        assert!(token.parse::<u64>().unwrap() > 0);
        assert_eq!(url, store.url(), "complete, with the password");
    }
}

#[test]
fn busy_is_75_and_names_the_holder() {
    let redis = Redis::start();
    for layout in ["", "?layout=plain"] {
        let store = Store::on(format!("{}{layout}", redis.url()));
        let _holder = store.start("x --label build-7", "sleep 60");
        store.tenure("run x --no-wait -- true").exits(75).says("held by build-7");
        store.tenure("run x --wait 2s -- true").exits(75).says("held by build-7");
        redis.cli(&["flushall"]);
    }
}

#[test]
fn a_release_hands_over_to_the_run_that_waits() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let holder = store.start("x --ttl 1m", UNTIL_GO);
    let waiter = store.start_waiter("x", "--ttl 1m --wait 15s");
    fs::write(store.file("go"), "").unwrap();
    holder.wait().exits(5);
    waiter.wait().exits(0);
    assert_eq!(leftovers(&redis), [""; 0]);
}

#[test]
fn a_run_that_waits_on_a_store_without_a_queue_gets_its_turn() {
    let redis = Redis::start();
    for layout in ["plain", "redisson"] {
        let store = Store::on(format!("{}?layout={layout}", redis.url()));
        let holder = store.start("x --ttl 1m", UNTIL_GO);
        let waiter = Running::of(&mut store.sh_command("x --wait 15s", "exit 0"));
        fs::write(store.file("go"), "").unwrap();
        holder.wait().exits(5);
        waiter.wait().exits(0);
    }
}

#[test]
fn the_lock_of_a_run_that_was_killed_goes_to_the_waiter_when_its_ttl_is_over() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let holder = store.start("x --ttl 2s", STUBBORN);
    let waiter = store.start_waiter("x", "--wait 15s");
    holder.signal(Signal::KILL);
    waiter.wait().exits(0);
    assert!(!is_alive(store.pid("up")), "and its command is dead by then");
}

#[test]
fn a_server_that_hangs_ends_the_command_by_the_deadline() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let run = store.start("x --ttl 1s", STUBBORN);
    redis.pause();
    run.wait().exits(76).says("x: the lease was lost");
    assert!(!is_alive(store.pid("up")));
    redis.resume();
}

#[test]
fn a_server_that_is_gone_ends_the_command_by_the_deadline() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let run = store.start("x --ttl 1s", STUBBORN);
    redis.kill();
    run.wait().exits(76).says("x: the lease was lost");
    assert!(!is_alive(store.pid("up")));
}

#[test]
fn a_restart_that_keeps_the_data_is_ridden_out() {
    let redis = Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start();
    let store = Store::on(redis.url());
    let run = store.start("x --ttl 15s", UNTIL_GO);
    redis.restart();
    let held = || store.show("x")["holders"][0]["expires_in_ms"].as_u64();
    let (looked, before) = (Instant::now(), held().expect("the server kept it"));
    // Unless it is renewed it ends when it would have ended.
    let ends = || u128::from(held().expect("still held")) + looked.elapsed().as_millis();
    eventually("it was renewed", || ends() > u128::from(before) + 2_000);
    fs::write(store.file("go"), "").unwrap();
    run.wait().exits(5);
}

#[test]
fn a_restart_that_forgets_the_lock_is_a_loss() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let run = store.start("x --ttl 3s", STUBBORN);
    redis.restart();
    run.wait().exits(76).says("no longer has the claim");
    assert_eq!(store.show("x")["holders"], json!([]), "it was not put back");
}

#[test]
fn ctrl_c_leaves_nothing_behind() {
    let redis = Redis::start();
    let store = Store::on(redis.url());
    let holder = store.start("x --ttl 1m", "exec sleep 60");
    let waiter = store.start_waiter("x", "--ttl 1m");
    waiter.signal(Signal::INT);
    waiter.wait().exits(130).says("the claim was ended");
    holder.signal(Signal::INT);
    holder.wait().exits(130);
    assert_eq!(leftovers(&redis), [""; 0]);
}

#[test]
fn a_wrong_password_is_69_and_shown_nowhere() {
    let redis = Redis::builder().users("user default on >right ~* &* +@all").start();
    for (url, part) in [
        (format!("redis://:wr0ng@{}", redis.address()), "refused the user or password"),
        (format!("redis://{}", redis.address()), "wants a password"),
    ] {
        for args in ["run x -- true", "show x", "doctor", "acquire x --wait 1s"] {
            let refused = Store::on(&url).tenure(args).exits(69).says(part);
            assert!(!refused.stderr.contains("wr0ng"), "{refused:?}");
        }
    }
}

#[test]
fn a_right_that_is_lacking_is_69() {
    let users = "user default off\nuser weak on >pw ~* &* +@all -eval -evalsha";
    let redis = Redis::builder().users(users).login("weak", "pw").start();
    Store::on(redis.url()).tenure("run x -- true").exits(69).says("lacks a right");
}

#[test]
fn a_server_that_is_full_is_69() {
    let redis = Redis::start();
    redis.cli(&["config", "set", "maxmemory", "1"]);
    Store::on(redis.url()).tenure("run x --no-wait -- true").exits(69).says("out of memory");
}

#[test]
fn a_server_that_does_not_listen_is_69() {
    let redis = Redis::start();
    redis.kill();
    let store = Store::on(redis.url());
    let brief = store.tenure("run x --wait 900ms -- true").exits(69).says("Connection refused");
    assert_eq!(brief.stderr.matches("Connection refused").count(), 1, "{brief:?}");
    // Whoever waits for longer is told before the end, once.
    let long = store
        .tenure("run x --wait 2s -- true")
        .exits(69)
        .says("Connection refused (os error 111); trying for 2s in all");
    assert_eq!(long.stderr.lines().count(), 2, "{long:?}");
}

#[test]
fn the_wrong_kind_of_server_is_64_and_the_right_url_is_named() {
    let node = shared::cluster().nodes()[0].url();
    Store::on(node).tenure("run x -- true").exits(64).says("redis+cluster://");
    let cluster = format!("redis+cluster://{}", shared::redis().address());
    Store::on(cluster).tenure("run x -- true").exits(64).says("write redis://HOST");
}

#[test]
fn a_password_is_seen_neither_in_the_process_list_nor_in_tenure_held() {
    let redis = Redis::builder().users("user default on >s3same ~* &* +@all").start();
    let store = Store::on(format!("redis://:s3same@{}", redis.address()));
    let script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' > ps; echo \"$TENURE_HELD\" > held; env > env";
    store.sh("x", script).exits(0);
    assert!(store.read("ps").contains("run x"), "the list was read");
    assert!(!store.read("ps").contains("s3same") && !store.read("held").contains("s3same"));
    let env = store.read("env");
    let with: Vec<&str> = env.lines().filter(|line| line.contains("s3same")).collect();
    assert_eq!(with, [format!("TENURE_URL={}", store.url())]);
    let refused = store.tenure("run x --permits 2 --ttl 25h -- true").exits(64);
    assert!(!refused.stderr.contains("s3same"), "{refused:?}");
}

#[test]
fn too_few_replicas_are_69_with_the_counts_and_leave_nothing() {
    let redis = Redis::start();
    for layout in ["", "?layout=plain", "?layout=redisson"] {
        let store = Store::on(format!("{}{layout}", redis.url()));
        for command in ["run x --min-replicas 2 -- true", "acquire x --min-replicas 2"] {
            store.tenure(command).exits(69).says("0 of the 2 asked for");
            assert_eq!(store.show("x")["holders"], json!([]), "{layout} {command}");
        }
        store.tenure("run x --min-replicas majority -- true").exits(64).says("?replicas=2");
        let and = if layout.is_empty() { "?" } else { "&" };
        let told = Store::on(format!("{}{layout}{and}replicas=3", redis.url()));
        told.tenure("run x --min-replicas majority -- true").exits(69).says("0 of the 2 asked for");
    }
}

#[test]
fn enough_replicas_are_waited_for() {
    let store = Store::on(shared::sentinel().url());
    for replicas in ["1", "2", "majority"] {
        store.tenure(&format!("run replicated --min-replicas {replicas} -- true")).exits(0);
    }
    store.tenure("run replicated --min-replicas 3 -- true").exits(69).says("2 of the 3 asked for");
    let got = store.tenure("acquire replicated --min-replicas majority --owner a").exits(0).json();
    assert_eq!(got["owner"], "a");
    store.tenure("release replicated --owner a").exits(0);
}

#[test]
fn odd_names_work_all_the_way_in_every_layout() {
    let redis = Redis::start();
    let names = ["a{b}c", "{}", "two words", "ü/∆ 🔒", "it's \"so\"", "g*?[x]", "back\\slash", "$(no)"];
    for layout in ["", "?layout=plain", "?layout=redisson"] {
        let store = Store::on(format!("{}{layout}", redis.url()));
        let tenure = |args: &[&str]| done(&mut store.command(args.iter().copied()));
        for name in names {
            let got = tenure(&["acquire", name, "--owner", "me"]).exits(0).json();
            assert_eq!((&got["name"], got["token"].is_null()), (&json!(name), !layout.is_empty()));
            tenure(&["acquire", name, "--owner", "you", "--no-wait"]).exits(75);
            let renewed = tenure(&["renew", name, "--owner", "me", "--ttl", "1m"]).exits(0).json();
            assert_eq!(renewed["token"], got["token"]);
            assert_eq!(store.show(name)["holders"][0]["owner"], "me");
            let listed = tenure(&["ls", name, "--json"]).exits(0).json();
            assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &json!(name)));
        }
        let listed = store.tenure("ls --json").exits(0).json();
        assert_eq!(listed.as_array().unwrap().len(), names.len());
        for name in names {
            tenure(&["break", name]).exits(64).says("--yes");
            tenure(&["break", name, "--yes", "--owner", "me"]).exits(0);
            tenure(&["renew", name, "--owner", "me"]).exits(76);
            tenure(&["release", name, "--owner", "me"]).exits(1);
        }
        assert_eq!(store.tenure("ls --json").exits(0).json(), json!([]));
    }
}

#[test]
fn what_others_keep_under_a_name_is_shown_and_never_broken() {
    let redis = Redis::start();
    for (layout, make) in [
        ("plain", ["set", "x", "of another", "", ""]),
        ("plain", ["hset", "x", "field", "1", ""]),
        ("redisson", ["set", "x", "of another", "", ""]),
        ("redisson", ["hset", "x", "field", "1", ""]),
    ] {
        let made: Vec<&str> = make.into_iter().filter(|word| !word.is_empty()).collect();
        redis.cli(&made);
        let store = Store::on(format!("{}?layout={layout}", redis.url()));
        let holder = &store.show("x")["holders"][0];
        for field in ["owner", "label", "token", "shape", "units", "held_ms", "expires_in_ms"] {
            assert_eq!(holder[field], Value::Null, "{layout} {make:?} {field}");
        }
        store.tenure("run x --no-wait -- true").exits(75).says("held by a foreign client (no expiry is known)");
        for args in ["break x", "break x --yes"] {
            let refused = store.tenure(args).exits(64).says("a foreign client holds it");
            assert!(!refused.stderr.contains("add --yes"), "{refused:?}");
        }
        store.tenure("release x --owner a").exits(1);
        assert_eq!(redis.cli(&["exists", "x"]), "1", "it is still there");
        redis.cli(&["flushall"]);
    }
}

#[test]
fn a_shape_that_a_layout_lacks_is_64() {
    let store = Store::on(format!("{}?layout=plain", shared::redis().url()));
    store.tenure("run shapes --shared -- true").exits(64).says("no shared locks");
    store.tenure("run shapes --permits 2 -- true").exits(64).says("no semaphores");
}

#[test]
fn bad_urls_are_64_and_show_no_password() {
    for url in [
        "redis://u:hidden@a,b",
        "redis://u:hidden@a/x",
        "rediss://u:hidden@a?ca=/nowhere",
        "redis+cluster://u:hidden@a/1",
    ] {
        let refused = done(&mut bare(&["run", "x", "--on", url, "--", "true"])).exits(64);
        assert!(!refused.stderr.contains("hidden"), "{refused:?}");
    }
}

#[test]
fn what_cannot_get_better_is_said_at_once_with_what_to_write() {
    let (plain, tls) = (shared::redis(), shared::tls());
    let (ca, (cert, _)) = (tls.ca_path(), tls.client_certificate());
    let (ca, cert) = (ca.display(), cert.display());
    let store = Store::new();
    fs::write(store.file("empty.pem"), "no certificate").unwrap();
    done(std::process::Command::new("openssl").args(["genrsa", "-out"]).arg(store.file("other.key"))).exits(0);
    let (empty, other) = (store.file("empty.pem"), store.file("other.key"));
    let (empty, other) = (empty.display(), other.display());
    let at = tls.address();
    for (url, code, part) in [
        (format!("rediss://{}", plain.address()), 64, "it speaks without TLS there: write redis://"),
        (format!("redis://{at}"), 64, "it speaks TLS there: write rediss://"),
        (format!("rediss://{at}"), 69, "is not trusted: name the file of its CA by ?ca="),
        (format!("rediss://{at}?ca={empty}"), 64, "has no certificate in it"),
        (format!("rediss://{at}?ca={ca}&cert={cert}&key={empty}"), 64, "has no private key in it"),
        (format!("rediss://{at}?ca={ca}&cert={cert}&key={other}"), 64, "cannot be used together"),
        (format!("rediss://{at}?ca={ca}"), 69, "wants a password: write redis://USER:PASSWORD@HOST"),
        (format!("rediss://me:wrong@{at}?ca={ca}"), 69, "refused the user or password"),
        (format!("redis+sentinel://{}/main", plain.address()), 64, "this is a Redis and no sentinel"),
    ] {
        let refused = done(bare(&["run", "x", "--", "true"]).env("TENURE_URL", &url)).exits(code).says(part);
        assert!(!refused.stderr.contains("trying for"), "it is tried once: {refused:?}");
        assert_eq!(refused.stderr.lines().count(), 1, "{refused:?}");
    }
}
