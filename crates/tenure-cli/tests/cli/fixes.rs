//! What `doctor` offers as commands, pasted into a shell: the finding is gone. Where no command helps, none is
//! offered, and the words say what to write where.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tenure_testkit::servers::{Builder, Cluster, Etcd, Fleet, Redis, Sentinel, Zookeeper, wait_until};

use crate::doctor::{findings, has, looked_at, set};
use crate::support::{BIN, Done, Store, done, eventually};

fn durable(node: Builder) -> Builder {
    node.config("appendonly", "yes").config("appendfsync", "always")
}

/// A fleet with these nodes that has begun.
fn begun(fleet: &Fleet) -> Store {
    let store = Store::on(fleet.url_with("node_timeout=500ms"));
    store.tenure("acquire begin --ttl 1s --owner first").exits(0);
    store
}

/// Every finding whose text has this part; there is at least one.
fn found(store: &Store, part: &str) -> Vec<Value> {
    let report = looked_at(store).exits(1).json();
    let all = report["findings"].as_array().unwrap().iter();
    let found: Vec<Value> = all.filter(|finding| finding["what"].as_str().unwrap().contains(part)).cloned().collect();
    assert!(!found.is_empty(), "{part}: {report}");
    found
}

fn gone(store: &Store, part: &str) -> bool {
    findings(store).iter().all(|(_, what)| !what.contains(part))
}

fn commands(findings: &[Value]) -> Vec<String> {
    let lines = findings.iter().flat_map(|finding| finding["fix_commands"].as_array().unwrap());
    lines.map(|line| line.as_str().unwrap().to_owned()).collect()
}

/// A script in a shell that finds our `tenure`, with these variables.
fn sh(script: &str, variables: &[(&str, &str)]) -> Done {
    let path = format!("{}:{}", Path::new(BIN).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", script]).env("PATH", path).env_remove("TENURE_URL").env_remove("REDISCLI_AUTH");
    done(shell.envs(variables.iter().copied()))
}

/// Pastes what is offered for the findings with this part, until doctor finds them no more.
fn paste(store: &Store, part: &str, variables: &[(&str, &str)]) {
    let script = commands(&found(store, part)).join("\n");
    assert!(!script.is_empty(), "{part}: {:?}", found(store, part));
    let pasted = sh(&script, variables).exits(0);
    eventually(&format!("{part} is gone by {script}: {pasted:?}"), || gone(store, part));
}

/// No command is offered for what has this part; the words have these.
fn only_words(store: &Store, part: &str, words: &[&str]) {
    for finding in found(store, part) {
        assert_eq!(finding["fix_commands"], Value::Array(Vec::new()), "{finding}");
        for word in words {
            assert!(finding["fix"].as_str().unwrap().contains(word), "{word}: {finding}");
        }
    }
}

/// The command that the words end with: one that only somebody who has thought about it should run.
fn command_in_words(store: &Store, part: &str) -> String {
    only_words(store, part, &["redis-cli"]);
    let fix = found(store, part)[0]["fix"].as_str().unwrap().to_owned();
    fix[fix.find("redis-cli").unwrap()..].to_owned()
}

#[test]
fn commands_reach_a_server_that_wants_tls_a_login_and_a_client_certificate() {
    let users = "user default off\nuser it's$}` on >s3cret ~* &* +@all";
    let redis = durable(Redis::builder()).tls().users(users).login("it's$}`", "s3cret").start();
    let (certificate, key) = redis.client_certificate();
    let store = Store::on(format!("{}&cert={}&key={}", redis.url(), certificate.display(), key.display()));
    assert_eq!(findings(&store), []);
    set(&redis, "appendfsync", "no");
    let script = commands(&found(&store, "appendfsync no")).join("\n");
    assert!(!script.contains("s3cret"), "{script}");
    assert!(sh(&script, &[]).stderr.contains("REDISCLI_AUTH"), "it says what is missing");
    paste(&store, "appendfsync no", &[("REDISCLI_AUTH", "s3cret")]);
}

#[test]
fn what_the_user_may_not_do_is_done_by_an_administrator() {
    let users = "user default off\nuser admin on >r00t ~* &* +@all\nuser locker on >s3cret ~* &* +@all -config";
    let redis = Redis::builder().users(users).login("locker", "s3cret").start();
    let store = Store::on(redis.url());
    let shown = sh(&commands(&found(&store, "CONFIG GET is not allowed")).join("\n"), &[]);
    assert!(shown.stderr.contains("REDISCLI_"), "it says what is missing: {shown:?}");
    let root = [("REDISCLI_USER", "admin"), ("REDISCLI_AUTH", "r00t")];
    let shown = sh(&commands(&found(&store, "CONFIG GET is not allowed")).join("\n"), &root).text();
    assert!(shown.contains("appendfsync\neverysec"), "{shown}");
    paste(&store, "no append-only file", &root);
    let redis = Redis::builder().users(&format!("{users} +config|get")).login("locker", "s3cret").start();
    paste(&Store::on(redis.url()), "nothing is persisted", &root);
}

#[test]
fn settings_of_a_fleet_are_mended() {
    let users = "user default on >s3cret ~* &* +@all";
    let fleet = Fleet::builder(3).each(|node| durable(node).users(users).login("default", "s3cret")).start();
    let store = begun(&fleet);
    for (index, name, bad) in [
        (0, "appendfsync", "everysec"),
        (1, "appendonly", "no"),
        (2, "appendfsync", "no"),
        (0, "maxmemory-policy", "volatile-lru"),
        (0, "timeout", "300"),
        (1, "lua-time-limit", "1"),
        (2, "min-replicas-to-write", "1"),
    ] {
        set(&fleet.nodes()[index], name, bad);
    }
    assert_eq!(findings(&store).len(), 7);
    let script = commands(&found(&store, "127.0.0.1")).join("\n");
    assert!(sh(&script, &[]).stderr.contains("REDISCLI_AUTH"), "it says what is missing");
    paste(&store, "127.0.0.1", &[("REDISCLI_AUTH", "s3cret")]);
    assert_eq!(findings(&store), []);
}

#[test]
fn a_replica_in_a_fleet_becomes_a_node_without_data_for_good() {
    let fleet = Fleet::builder(3).each(|node| durable(node).database(1)).start();
    let store = begun(&fleet);
    let [a, b, _] = fleet.nodes() else { panic!("three") };
    b.cli(&["replicaof", "127.0.0.1", &a.port().to_string()]);
    b.cli(&["config", "rewrite"]);
    wait_until("it follows", || b.cli(&["info", "replication"]).contains("master_link_status:up"));
    // Until the copy is on the disk a restart would bring back what it had before.
    wait_until("the copy is written", || {
        let info = b.cli(&["info", "persistence"]);
        ["aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"].iter().all(|idle| info.contains(idle))
    });
    only_words(&store, "it has 1 replica", &["let nothing promote"]);
    paste(&store, "it is a replica of", &[]);
    b.restart();
    assert!(gone(&store, "it is a replica of"), "the restart changes nothing");
    let blank = format!("{}: it has no data", b.address());
    assert!(has(&store, "problem", &blank), "{:?}", store.tenure("doctor").text());
    eventually("nobody follows", || gone(&store, "it has 1 replica"));
}

#[test]
#[ignore = "night: the node is let in after a ttl of 10 s"]
fn a_node_without_data_is_let_in() {
    let users = "user default on >s3cret ~* &* +@all";
    let fleet = Fleet::builder(3).each(|node| durable(node).users(users).login("default", "s3cret")).start();
    let store = begun(&fleet);
    fleet.nodes()[2].cli(&["flushall"]);
    let script = commands(&found(&store, "it has no data")).join("\n");
    assert!(sh(&script, &[]).stderr.contains("TENURE_URL"), "it says what is missing: {script}");
    paste(&store, "it has no data", &[("TENURE_URL", &store.url())]);
    let open = Fleet::durable(3);
    let store = begun(&open);
    open.nodes()[2].cli(&["flushall"]);
    paste(&store, "it has no data", &[]);
}

#[test]
fn data_that_may_be_needed_elsewhere_is_deleted_by_no_command() {
    let fleets = [Fleet::durable(3), Fleet::durable(3)];
    let store = begun(&fleets[0]);
    begun(&fleets[1]);
    let [a, b, _] = fleets[0].nodes() else { panic!("three") };
    let stranger = &fleets[1].nodes()[0];
    let mixed =
        Store::on(format!("redlock://{},{},{}?node_timeout=500ms", a.address(), b.address(), stranger.address()));
    sh(&command_in_words(&mixed, "it belongs to another fleet"), &[]).exits(0);
    assert!(gone(&mixed, "it belongs to another fleet"));
    b.cli(&["replicaof", "127.0.0.1", &a.port().to_string()]);
    wait_until("it follows", || b.cli(&["info", "replication"]).contains("master_link_status:up"));
    b.cli(&["replicaof", "no", "one"]);
    sh(&command_in_words(&store, "it has the data of"), &[]).exits(0);
    assert!(gone(&store, "it has the data of"));
}

#[test]
fn what_no_command_mends_in_a_fleet_is_said_in_words() {
    let fleet = Fleet::durable(4);
    let store = begun(&fleet);
    only_words(&store, "an even number", &["stop all clients", "DEL tenure:redlock"]);
    let [a, b, ..] = fleet.nodes() else { panic!("four") };
    let double = format!("redlock://{},{},localhost:{}", a.address(), b.address(), a.port());
    only_words(&Store::on(double), "the same server", &["once"]);
    fleet.nodes()[..3].iter().for_each(|node| drop(node.cli(&["flushall"])));
    only_words(&store, "it has no data", &["stop all clients"]);
    fleet.nodes()[3].kill();
    only_words(&store, "it cannot be looked at", &["start it again"]);
    only_words(&store, "no quorum", &["bring back"]);
}

#[test]
fn clocks_and_logins_of_a_fleet_are_mended_by_no_command() {
    let users = "user default off\nuser me on >hidden ~* &* +@all";
    let fleet = Fleet::builder(3).each(|node| durable(node).shifted_clock()).start();
    let closed = Redis::builder().users(users).login("me", "hidden").start();
    let store = begun(&fleet);
    let [a, b, _] = fleet.nodes() else { panic!("three") };
    a.shift_clock(20);
    only_words(&store, "its clock is", &["chronyc tracking"]);
    fleet.nodes().iter().for_each(|node| node.shift_clock(60));
    only_words(&store, "most nodes' clocks are", &["chronyc tracking"]);
    store.tenure("run x -- true").exits(0);
    fleet.nodes().iter().for_each(|node| node.shift_clock(0));
    only_words(&store, "its highest token is", &["have caught up"]);
    let mixed = Store::on(format!("redlock://{},{},{}", a.address(), b.address(), closed.address()));
    only_words(&mixed, "it wants a password", &["redlock://USER:PASSWORD@H1"]);
}

#[test]
fn a_master_waits_for_its_replicas_or_for_fewer() {
    let master = durable(Redis::builder()).start();
    let _replica = Redis::builder().config("replicaof", &format!("127.0.0.1 {}", master.port())).start();
    wait_until("the replica follows", || master.cli(&["info", "replication"]).contains("state=online"));
    let store = Store::on(format!("{}?replicas=2", master.url()));
    only_words(&store, "1 of 2 replicas are connected", &["replicaof 127.0.0.1", "redis.conf"]);
    let store = Store::on(master.url());
    paste(&store, "min-replicas-to-write 0", &[]);
    set(&master, "min-replicas-to-write", "2");
    paste(&store, "1 of the 2 replicas", &[]);
    assert_eq!(findings(&store), []);
}

#[test]
fn sentinels_that_want_too_many_or_watch_another_server_are_mended() {
    let servers = Sentinel::start();
    let store = Store::on(servers.url());
    let [first, second, third] = servers.sentinels() else { panic!("three") };
    second.cli(&["sentinel", "set", "mymaster", "quorum", "4"]);
    paste(&store, "sees no quorum", &[]);
    // The first of the URL is the one that is wrong.
    let other = servers.replicas()[0].port().to_string();
    first.cli(&["sentinel", "remove", "mymaster"]);
    first.cli(&["sentinel", "monitor", "mymaster", "127.0.0.1", &other, "2"]);
    paste(&store, "disagree on the master", &[]);
    let of_first = first.cli(&["sentinel", "master", "mymaster"]);
    assert!(of_first.contains("down-after-milliseconds\n2000\n"), "it is set as the others are: {of_first}");
    eventually("they know each other", || gone(&store, "sentinel"));
    third.kill();
    only_words(&store, "does not answer", &["start it again"]);
    for sentinel in [first, second] {
        sentinel.cli(&["sentinel", "reset", "mymaster"]);
    }
    eventually("two are left", || has(&store, "problem", "there are only 2 sentinels"));
    only_words(&store, "there are only 2 sentinels", &["sentinel.conf: sentinel monitor mymaster 127.0.0.1"]);
    second.kill();
    eventually("the last one sees no quorum", || has(&store, "problem", "sees no quorum"));
    only_words(&store, "sees no quorum", &["start the others again"]);
}

#[test]
fn settings_and_slots_of_a_cluster_are_mended() {
    let servers = Cluster::start();
    let store = Store::on(servers.url());
    for node in servers.nodes() {
        node.cli(&["cluster", "delslots", "7"]);
    }
    let parts =
        ["1 of 16384 slots", "nothing is persisted", "min-replicas-to-write 0", "cluster-require-full-coverage"];
    for part in parts {
        paste(&store, part, &[]);
    }
    eventually("nothing is found", || findings(&store).is_empty());
}

#[test]
fn a_replica_takes_the_place_of_its_master() {
    let servers = Cluster::hasty();
    let store = Store::on(servers.url());
    let master = servers.master_of("tenure:{:x}");
    set(servers.replica_of(master), "cluster-replica-no-failover", "yes");
    master.kill();
    let failed = format!("the master {} has failed", master.address());
    eventually("it has failed", || has(&store, "problem", &failed));
    paste(&store, &failed, &[]);
    eventually("all slots have a master", || gone(&store, "slots have no master"));
}

#[test]
fn a_replica_that_failed_is_forgotten_and_another_takes_its_place() {
    let servers = Cluster::hasty();
    let store = Store::on(servers.url());
    let master = servers.master_of("tenure:{:x}");
    let replica = servers.replica_of(master);
    replica.kill();
    let lost = format!("the replica {} has failed", replica.address());
    eventually("it has failed", || has(&store, "problem", &lost));
    sh(&command_in_words(&store, &lost), &[]).exits(0);
    eventually("it is forgotten", || gone(&store, &lost));

    let alone = format!("the master {} has no replica", master.address());
    let template = command_in_words(&store, &alone);
    let new = Redis::builder().config("cluster-enabled", "yes").start();
    assert!(template.contains("NEW_HOST:PORT"), "{template}");
    sh(&template.replace("NEW_HOST:PORT", &new.address()), &[]).exits(0);
    eventually("it has one", || gone(&store, &alone));
}

#[test]
fn slots_of_masters_that_are_away_are_given_to_no_other() {
    let servers = Cluster::hasty();
    let store = Store::on(servers.url());
    let url = store.url();
    let away = servers.nodes().iter().filter(|node| url.contains(&node.address())).skip(1).collect::<Vec<_>>();
    for node in servers.nodes() {
        set(node, "cluster-replica-no-failover", "yes");
    }
    away.iter().for_each(|node| node.kill());
    eventually("the cluster is down", || has(&store, "problem", "the cluster's state is fail"));
    only_words(&store, "the cluster's state is fail", &["start the masters again"]);
    only_words(&store, "cannot be looked at", &["start it again"]);
}

#[test]
fn a_failover_forgets_no_setting_that_was_mended() {
    let servers = Sentinel::start();
    let store = Store::on(servers.url());
    paste(&store, "min-replicas-to-write 0", &[]);
    servers.failover();
    servers.wait_until_whole();
    assert!(gone(&store, "min-replicas-to-write"), "{:?}", findings(&store));
}

/// Writes until there is no space left.
fn fill(etcd: &Etcd) {
    let value = "x".repeat(100_000);
    wait_until("it is full", || !etcd.etcdctl_command(&["put", "k", &value]).output().unwrap().status.success());
}

#[test]
fn an_etcd_without_space_writes_again() {
    let quota = "--quota-backend-bytes=1000000";
    let open = Etcd::builder().arg(quota).start();
    let closed = Etcd::builder().arg(quota).members(1).tls().login("locker", "s3cret", "/locks/").start();
    for (etcd, variables) in [(&open, [].as_slice()), (&closed, [("ETCDCTL_PASSWORD", "root")].as_slice())] {
        let store = Store::on(etcd.url());
        fill(etcd);
        let told = found(&store, "no space left");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(gone(&store, "tells of an error"), "it is told once");
        if !variables.is_empty() {
            assert!(
                sh(&commands(&told).join("\n"), &[]).stderr.contains("ETCDCTL_PASSWORD"),
                "it says what is missing"
            );
        }
        paste(&store, "no space left", variables);
        store.tenure("run x -- true").exits(0);
    }
}

#[test]
fn what_no_command_mends_in_an_etcd_is_said_in_words() {
    let etcd = Etcd::start();
    let one = Store::on(etcd.url_of([etcd.address(0)].into_iter(), ""));
    only_words(&one, "names 1 of 3 members", &[&etcd.address(1), &etcd.address(2)]);
    let store = Store::on(etcd.url());
    etcd.kill(2);
    only_words(&store, "does not answer", &["log"]);
    etcd.kill(1);
    only_words(&store, "no member answers for the cluster", &["start members"]);
    let [one, other] = [0, 1].map(|_| Etcd::builder().members(1).start());
    only_words(&Store::on(one.url()), "the cluster has one member", &["three or five"]);
    let both = Store::on(format!("{},{}", one.url(), other.address(0)));
    only_words(&both, "belong to different clusters", &["one cluster only"]);
}

/// The lines for `zoo.cfg` that are offered for these findings.
fn lines(store: &Store, parts: &[&str]) -> Vec<(String, String)> {
    let line = |part: &&str| {
        only_words(store, part, &["zoo.cfg", "restart"]);
        let fix = found(store, part)[0]["fix"].as_str().unwrap().to_owned();
        let word = fix.split([' ', ';']).find(|word| word.contains('=')).unwrap_or_else(|| panic!("{fix}"));
        let (name, value) = word.trim_end_matches(',').split_once('=').unwrap();
        (name.to_owned(), value.to_owned())
    };
    parts.iter().map(line).collect()
}

#[test]
fn lines_for_zoo_cfg_do_what_they_say() {
    let with = |lines: &[(String, String)]| {
        let server = Zookeeper::builder().members(1).usual_ticks();
        lines.iter().fold(server, |server, (name, value)| server.config(name, value)).start()
    };
    let told = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let silent = ["not every server tells its tickTime"];
    let server = with(&[told("4lw.commands.whitelist", "ruok")]);
    let mut written = lines(&Store::on(server.url()), &silent);
    let slow = ["minSessionTimeout is", "tickTime is"];
    let bad = [told("minSessionTimeout", "20000"), told("tickTime", "3000")];
    let server = with(&[written.as_slice(), &bad].concat());
    let store = Store::on(server.url());
    assert!(silent.iter().all(|part| gone(&store, part)), "{written:?}: {:?}", findings(&store));
    written.extend(lines(&store, &slow));
    let server = with(&written);
    let store = Store::on(server.url());
    assert!(slow.iter().all(|part| gone(&store, part)), "{written:?}: {:?}", findings(&store));
    only_words(&store, "standalone", &["three or five"]);
}

#[test]
fn what_no_command_mends_in_an_ensemble_is_said_in_words() {
    let servers = Zookeeper::builder().config_of(1, "maxSessionTimeout", "5000").start();
    let store = Store::on(servers.url());
    eventually("limits differ", || has(&store, "problem", "different limits"));
    only_words(
        &store,
        "different limits",
        &["zoo.cfg", "tickTime", "minSessionTimeout", "maxSessionTimeout", "restart"],
    );
    let one = Store::on(format!("zookeeper://127.0.0.1:{}/locks", servers.port(0)));
    only_words(&one, "names 1 of the servers", &["H1,H2,H3"]);
    let leader = servers.leader();
    servers.kill((0..3).find(|member| Some(*member) != leader).unwrap());
    eventually("it is missed", || has(&store, "problem", "do not answer"));
    only_words(&store, "do not answer", &["start them again"]);
}
