//! `doctor`: each finding appears with what causes it, and goes with it.

use serde_json::Value;
use tenure_testkit::servers::{Cluster, Redis, Sentinel, shared, wait_until};

use crate::support::{Done, Store, bare, done, eventually, keys};

/// A server that doctor has nothing to say about.
fn sound() -> Redis {
    Redis::builder().config("appendonly", "yes").config("appendfsync", "always").start()
}

pub(crate) fn set(redis: &Redis, name: &str, value: &str) {
    assert_eq!(redis.cli(&["config", "set", name, value]), "OK", "{name} {value}");
}

/// What doctor says of a server that is slow, which a good one is while the machine of a test is busy.
const SLOW: &str = "a round trip takes";

/// The findings, but for a server that is slow: severity and what.
pub(crate) fn findings(store: &Store) -> Vec<(String, String)> {
    all_findings(store).into_iter().filter(|(_, what)| !what.contains(SLOW)).collect()
}

/// What doctor says, once it has reached the servers: on a busy machine they may take their time.
pub(crate) fn looked_at(store: &Store) -> Done {
    let mut said = None;
    eventually("doctor reaches the store", || said.insert(store.tenure("doctor --json")).code != 69);
    said.unwrap()
}

/// All findings: severity and what.
pub(crate) fn all_findings(store: &Store) -> Vec<(String, String)> {
    let done = looked_at(store);
    let report = done.json();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(done.code, i32::from(!findings.is_empty()), "{done:?}");
    for finding in findings {
        assert_eq!(keys(finding), ["fix", "fix_commands", "severity", "what", "why"]);
        for field in ["fix", "severity", "what", "why"] {
            assert!(!finding[field].as_str().unwrap().is_empty(), "{finding}");
        }
    }
    let text = |finding: &Value, field: &str| finding[field].as_str().unwrap().to_owned();
    findings.iter().map(|finding| (text(finding, "severity"), text(finding, "what"))).collect()
}

pub(crate) fn has(store: &Store, severity: &str, part: &str) -> bool {
    findings(store).iter().any(|(found, what)| found == severity && what.contains(part))
}

/// What doctor says when the server is not slow.
fn quick(store: &Store, args: &str) -> Done {
    let mut last = store.tenure(args);
    eventually("its round trips are short", || {
        let slow = last.text().contains(SLOW);
        if slow {
            last = store.tenure(args);
        }
        !slow
    });
    last
}

#[test]
fn a_sound_server_is_0_and_its_facts_are_told() {
    let redis = sound();
    let store = Store::on(redis.url());
    let report = quick(&store, "doctor --json").exits(0).json();
    assert_eq!(keys(&report), ["facts", "findings", "store"]);
    assert_eq!(report["store"], redis.url());
    assert_eq!(report["findings"], Value::Array(vec![]));
    for fact in ["version", "round trip", "clock", "memory", "eviction", "persistence", "replicas", "clients"] {
        assert!(report["facts"][fact].is_string(), "{fact}: {report}");
    }
    let text = quick(&store, "doctor").exits(0).text();
    assert!(text.starts_with(redis.url()) && text.ends_with("nothing to change"), "{text}");
}

#[test]
fn each_setting_is_found_and_its_fix_named() {
    let redis = sound();
    let store = Store::on(redis.url());
    for (name, bad, good, severity, part) in [
        ("appendfsync", "everysec", "always", "advice", "appendfsync everysec"),
        ("appendfsync", "no", "always", "problem", "appendfsync no"),
        ("appendonly", "no", "yes", "problem", "nothing is persisted"),
        ("maxmemory-policy", "volatile-lru", "noeviction", "advice", "volatile-lru"),
        ("timeout", "300", "0", "advice", "timeout 300"),
        ("lua-time-limit", "1", "5000", "advice", "slow after 1 ms"),
        ("min-replicas-to-write", "1", "0", "problem", "0 of the 1 replicas"),
    ] {
        assert_eq!(findings(&store), [], "before {name}");
        set(&redis, name, bad);
        let found = findings(&store);
        assert_eq!(found.len(), 1, "{name} {bad}: {found:?}");
        assert!(found[0].0 == severity && found[0].1.contains(part), "{found:?}");
        let text = store.tenure("doctor").exits(1).text();
        assert!(text.contains(&severity.to_uppercase()) && text.contains(&format!("CONFIG SET {name}")), "{text}");
        set(&redis, name, good);
    }
    assert_eq!(findings(&store), []);
}

/// Pastes all commands that doctor offers into a shell.
pub(crate) fn paste_fixes(store: &Store) {
    let report = store.tenure("doctor --json").exits(1).json();
    let findings = report["findings"].as_array().unwrap();
    let lines = findings.iter().flat_map(|finding| finding["fix_commands"].as_array().unwrap());
    let script: Vec<&str> = lines.map(|line| line.as_str().unwrap()).collect();
    done(std::process::Command::new("sh").args(["-c", &script.join("\n")])).exits(0);
}

#[test]
fn commands_that_mend_it_can_be_pasted_and_outlast_a_restart() {
    let redis = sound();
    let store = Store::on(redis.url());
    for (name, bad) in [
        ("appendfsync", "no"),
        ("appendonly", "no"),
        ("maxmemory-policy", "volatile-lru"),
        ("timeout", "300"),
        ("lua-time-limit", "1"),
        ("min-replicas-to-write", "1"),
    ] {
        set(&redis, name, bad);
    }
    assert_eq!(findings(&store).len(), 6 - 1, "without a file it does not matter how often it is synced");
    paste_fixes(&store);
    assert_eq!(findings(&store), []);
    for (name, bad) in [("maxmemory", "1"), ("maxclients", "3")] {
        set(&redis, name, bad);
        assert_eq!(findings(&store).len(), 1, "{name}");
        paste_fixes(&store);
        assert_eq!(findings(&store), [], "{name}");
    }
    redis.restart();
    assert_eq!(findings(&store), []);
}

#[test]
fn eviction_and_full_memory_are_problems_where_there_is_a_limit() {
    let redis = sound();
    let store = Store::on(redis.url());
    set(&redis, "maxmemory", "1gb");
    assert_eq!(findings(&store), []);
    for policy in ["allkeys-lru", "volatile-ttl"] {
        set(&redis, "maxmemory-policy", policy);
        assert!(has(&store, "problem", policy));
    }
    set(&redis, "maxmemory-policy", "noeviction");
    set(&redis, "maxmemory", "1");
    assert!(has(&store, "problem", "memory is nearly full"));
    set(&redis, "maxmemory", "0");
    assert_eq!(findings(&store), []);
}

#[test]
fn connections_that_run_out_are_a_problem() {
    let redis = sound();
    let store = Store::on(redis.url());
    set(&redis, "maxclients", "3");
    assert!(has(&store, "problem", "of 3 connections"));
    set(&redis, "maxclients", "1000");
    assert_eq!(findings(&store), []);
}

#[test]
fn an_open_door_is_found() {
    let redis =
        Redis::builder().config("appendonly", "yes").config("appendfsync", "always").config("bind", "0.0.0.0").start();
    let store = Store::on(redis.url());
    assert_eq!(findings(&store), [], "protected-mode keeps others out");
    set(&redis, "protected-mode", "no");
    assert!(has(&store, "advice", "anybody who reaches it"));
}

#[test]
fn replicas_that_nobody_waits_for_are_found() {
    let master = sound();
    let replica = Redis::builder().config("replicaof", &format!("127.0.0.1 {}", master.port())).start();
    wait_until("the replica follows", || master.cli(&["info", "replication"]).contains("state=online"));
    let store = Store::on(master.url());
    assert!(has(&store, "advice", "1 replica and min-replicas-to-write 0"));
    let facts = store.tenure("doctor --json").json()["facts"].clone();
    assert_eq!(facts["replicas"], "1");
    let clock = facts[format!("replica {}", replica.address())].as_str().unwrap().to_owned();
    assert!(clock.starts_with("clock"), "{clock}");
    set(&master, "min-replicas-to-write", "1");
    eventually("nothing is found", || findings(&store).is_empty());
    set(&master, "min-replicas-to-write", "2");
    assert!(has(&store, "problem", "1 of the 2 replicas"));
}

#[test]
fn what_may_not_be_looked_at_is_said_with_the_command_that_shows_it() {
    let tls = shared::tls();
    let store = Store::on(tls.url());
    let done = store.tenure("doctor --json").exits(1);
    let report = done.json();
    let hidden = report["findings"].as_array().unwrap().iter().find(|finding| {
        finding["severity"] == "advice" && finding["what"].as_str().unwrap().contains("CONFIG GET is not allowed")
    });
    let hidden = hidden.unwrap_or_else(|| panic!("{report}"));
    assert!(hidden["what"].as_str().unwrap().contains("appendfsync"), "{hidden}");
    assert!(hidden["fix_commands"][0].as_str().unwrap().contains("--tls CONFIG GET"), "{hidden}");
    assert!(has(&store, "problem", "no append-only file"), "INFO tells that: {report}");
    let text = format!("{}{}", done.text(), done.stderr);
    assert!(!text.contains("s3cret"), "{text}");
}

#[test]
fn sentinels_are_looked_at() {
    let servers = Sentinel::start();
    let store = Store::on(servers.url());
    let report = store.tenure("doctor --json").exits(1).json();
    assert_eq!(report["facts"]["sentinels"], "3 of 3 asked, quorum 2");
    assert_eq!(report["facts"]["replicas"], "2");
    assert!(!has(&store, "problem", "sentinel"), "{report}");
    servers.sentinels()[0].kill();
    servers.sentinels()[1].kill();
    assert!(has(&store, "problem", &format!("the sentinel at {} does not answer", servers.sentinels()[0].address())));
    eventually("the last one sees no quorum", || has(&store, "problem", "sees no quorum"));
}

#[test]
fn a_cluster_is_looked_at_master_by_master() {
    let servers = Cluster::start();
    let store = Store::on(servers.url());
    let report = store.tenure("doctor --json").exits(1).json();
    assert_eq!(report["facts"]["cluster"], "ok, 6 nodes, 3 masters");
    assert!(!has(&store, "problem", "slots") && !has(&store, "advice", "has no replica"), "{report}");
    let master = servers.master_of("tenure:{:x}");
    assert!(report["facts"][format!("{} version", master.address())].is_string(), "{report}");
    set(master, "timeout", "300");
    assert!(has(&store, "advice", &format!("{}: idle connections", master.address())));
    set(master, "timeout", "0");
    let all_or_nothing = format!("{}: it refuses everything while any other master is gone", master.address());
    assert!(has(&store, "advice", &all_or_nothing));
    set(master, "cluster-require-full-coverage", "no");
    assert!(!has(&store, "advice", &all_or_nothing));
    servers.replica_of(master).kill();
    let alone = format!("the master {} has no replica", master.address());
    eventually("it is alone", || has(&store, "advice", &alone));
}

#[test]
fn a_store_that_is_not_reached_is_69_and_a_bad_url_64() {
    let redis = Redis::start();
    redis.kill();
    Store::on(redis.url()).tenure("doctor").exits(69).says(&redis.address());
    done(&mut bare(&["doctor", "--on", "redis://a,b"])).exits(64);
    let told = Store::on(redis.url()).tenure("doctor --json").exits(69).stderr;
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["exit"], 69);
}

#[test]
fn the_embedded_store_is_looked_at() {
    use std::os::unix::fs::PermissionsExt;
    let store = Store::new();
    store.tenure("run x -- true").exits(0);
    let report = store.tenure("doctor --json").exits(0).json();
    assert_eq!(report["facts"]["journal"], "write-ahead log");
    std::fs::set_permissions(store.file("locks.db"), std::fs::Permissions::from_mode(0o666)).unwrap();
    assert!(has(&store, "advice", "everybody on this machine"));
    done(&mut bare(&["doctor", "--on", "memory:"])).exits(0);
}
