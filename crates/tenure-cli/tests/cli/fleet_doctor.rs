//! `doctor` over a fleet: each finding appears with what causes it; nodes need not work for it, and nothing is written.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use tenure_testkit::servers::{Fleet, Redis, wait_until};

use crate::doctor::{all_findings, findings, has, set};
use crate::support::{Store, bare, done, eventually};

/// A fleet that doctor has nothing to say about.
fn sound(size: usize) -> (Fleet, Store) {
    let fleet = Fleet::durable(size);
    begin(&fleet.url());
    let store = patient(&fleet.url());
    (fleet, store)
}

/// The first client begins a new fleet, with a short ttl.
fn begin(url: &str) {
    let store = patient(url);
    store.tenure("acquire begin --ttl 1s --owner first").exits(0);
    // It may have ended by itself.
    let ended = store.tenure("release begin --owner first");
    assert!([0, 1].contains(&ended.code), "{ended:?}");
}

/// The nodes may take their time: the machine of a test may be busy.
fn patient(url: &str) -> Store {
    Store::on(format!("{url}?node_timeout=500ms"))
}

/// A fleet whose nodes' clocks can be set.
fn with_clocks(size: usize) -> (Fleet, Store) {
    let durable = |node: tenure_testkit::servers::Builder| {
        node.shifted_clock().config("appendonly", "yes").config("appendfsync", "always")
    };
    let fleet = Fleet::builder(size).each(durable).start();
    begin(&fleet.url());
    let store = patient(&fleet.url());
    (fleet, store)
}

fn url_of(nodes: &[&Redis]) -> String {
    let addresses: Vec<String> = nodes.iter().map(|node| node.address()).collect();
    format!("redlock://{}", addresses.join(","))
}

/// One finding and no other: a problem of this node.
fn only_problem(store: &Store, node: &Redis, part: &str) {
    only(store, "problem", &format!("{}: ", node.address()), part);
}

fn only(store: &Store, severity: &str, begins: &str, part: &str) {
    let found = findings(store);
    assert_eq!(found.len(), 1, "{part}: {found:?}");
    let (how, what) = &found[0];
    assert!(how == severity && what.starts_with(begins) && what.contains(part), "{part}: {found:?}");
}

fn fact(store: &Store, name: &str) -> String {
    let report = store.tenure("doctor --json").json();
    report["facts"][name].as_str().unwrap_or_else(|| panic!("{name}: {report}")).to_owned()
}

#[test]
fn a_sound_fleet_is_0_and_its_facts_are_told() {
    let (fleet, store) = sound(5);
    assert_eq!(findings(&store), []);
    assert_eq!(fact(&store, "fleet"), "5 of 5 nodes take part, 3 are needed");
    assert_eq!(fact(&store, "layout"), "native");
    let node = fact(&store, &format!("node {}", fleet.nodes()[4].address()));
    for part in ["takes part; Redis ", "round trip ", "clock within", "fsync always"] {
        assert!(node.contains(part), "{part}: {node}");
    }
    let text = store.tenure("doctor").exits(0).text();
    assert!(text.starts_with(&fleet.url()) && text.ends_with("nothing to change"), "{text}");
}

#[test]
fn nothing_is_written_to_a_node() {
    let fleet = Fleet::durable(3);
    for options in ["", "layout=plain"] {
        let store = Store::on(fleet.url_with(options));
        assert_eq!(findings(&store), []);
        assert_eq!(store.tenure("doctor --json").json()["facts"]["new"].is_string(), options.is_empty());
        for node in fleet.nodes() {
            assert_eq!(node.cli(&["dbsize"]), "0");
        }
    }
}

#[test]
fn each_setting_of_a_node_is_found_and_its_fix_named() {
    let (fleet, store) = sound(3);
    let node = &fleet.nodes()[1];
    for (name, bad, good, severity, part) in [
        ("appendfsync", "everysec", "always", "problem", "appendfsync everysec"),
        ("appendfsync", "no", "always", "problem", "appendfsync no"),
        ("appendonly", "no", "yes", "problem", "appendonly no"),
        ("maxmemory-policy", "volatile-lru", "noeviction", "advice", "volatile-lru"),
        ("timeout", "300", "0", "advice", "timeout 300"),
        ("lua-time-limit", "1", "5000", "advice", "slow after 1 ms"),
        ("min-replicas-to-write", "1", "0", "problem", "0 of the 1 replicas"),
    ] {
        set(node, name, bad);
        only(&store, severity, &format!("{}: ", node.address()), part);
        let text = store.tenure("doctor").exits(1).text();
        assert!(text.contains(&format!("-p {} CONFIG SET {name} {good}", node.port())), "{text}");
        set(node, name, good);
    }
    set(node, "maxmemory", "1");
    only_problem(&store, node, "memory is nearly full");
    set(node, "maxmemory", "0");
    assert_eq!(findings(&store), []);
}

#[test]
fn nodes_that_are_down_or_hang_are_found_and_a_lost_quorum_is_no_obstacle() {
    let (fleet, store) = sound(5);
    fleet.nodes()[0].kill();
    only_problem(&store, &fleet.nodes()[0], "cannot be looked at");
    assert_eq!(fact(&store, "fleet"), "4 of 5 nodes take part, 3 are needed");
    fleet.nodes()[1].pause();
    fleet.nodes()[2].kill();
    assert!(has(&store, "problem", "no quorum: 2 of 5 nodes take part, 3 are needed"));
    for node in &fleet.nodes()[..3] {
        assert!(has(&store, "problem", &format!("{}: it cannot be looked at", node.address())));
    }
    fleet.nodes()[1].resume();
}

#[test]
fn a_fleet_of_which_nothing_is_seen_is_69_and_each_node_is_named() {
    let fleet = Fleet::start(3);
    fleet.nodes().iter().for_each(Redis::kill);
    let mut refused = Store::on(fleet.url()).tenure("doctor").exits(69);
    for node in fleet.nodes() {
        refused = refused.says(&format!("{}: cannot connect", node.address()));
    }
}

#[test]
fn one_server_behind_two_addresses_is_found() {
    let (fleet, _) = sound(3);
    let [a, b, _] = fleet.nodes() else { panic!("three") };
    let double = format!("localhost:{}", a.port());
    for options in ["", "?layout=plain"] {
        let store = Store::on(format!("redlock://{},{},{double}{options}", a.address(), b.address()));
        only(&store, "problem", &format!("{double}: "), &format!("the same server as {}", a.address()));
    }
}

#[test]
fn replicas_and_copies_are_found() {
    let (fleet, store) = sound(3);
    let [a, b, c] = fleet.nodes() else { panic!("three") };
    b.cli(&["replicaof", "127.0.0.1", &a.port().to_string()]);
    wait_until("it follows", || b.cli(&["info", "replication"]).contains("master_link_status:up"));
    assert!(has(
        &store,
        "problem",
        &format!("{}: it is a replica of {0}, the node {0}", a.address()).replacen(&a.address(), &b.address(), 1)
    ));
    assert!(has(&store, "advice", &format!("{}: it has 1 replica", a.address())));
    assert!(!has(&store, "problem", "no quorum"), "two are left");

    let outside = Redis::start();
    for node in [b, c] {
        node.cli(&["replicaof", "127.0.0.1", &outside.port().to_string()]);
        wait_until("it follows", || node.cli(&["info", "replication"]).contains("master_link_status:up"));
    }
    let both = format!("{}: it is a replica of {}, as {} is", b.address(), outside.address(), c.address());
    assert!(has(&store, "problem", &both));
    assert!(has(&store, "problem", "no quorum: 1 of 3"));
}

#[test]
fn a_node_made_from_another_ones_data_is_found() {
    let (fleet, store) = sound(3);
    let [a, b, _] = fleet.nodes() else { panic!("three") };
    b.cli(&["replicaof", "127.0.0.1", &a.port().to_string()]);
    wait_until("it follows", || b.cli(&["info", "replication"]).contains("master_link_status:up"));
    b.cli(&["replicaof", "no", "one"]);
    eventually("its master knows", || a.cli(&["info", "replication"]).contains("connected_slaves:0"));
    only_problem(&store, b, &format!("it has the data of {}", a.address()));
}

#[test]
fn an_even_number_of_nodes_is_found() {
    let (_fleet, store) = sound(4);
    only(&store, "advice", "the fleet has 4 nodes", "an even number");
}

#[test]
fn a_server_of_another_kind_is_found() {
    let (fleet, _) = sound(3);
    let cluster = Redis::builder().config("cluster-enabled", "yes").start();
    let store = Store::on(url_of(&[&fleet.nodes()[0], &fleet.nodes()[1], &cluster]));
    assert!(has(&store, "problem", &format!("{}: it is part of a cluster", cluster.address())));
}

#[test]
fn clocks_that_differ_are_found() {
    let (fleet, store) = with_clocks(3);
    let node = &fleet.nodes()[1];
    for (seconds, severity, part) in [
        (20, "problem", "s ahead of the others'"),
        (-20, "problem", "s behind the others'"),
        (3, "advice", "ahead of the others'"),
        (-3, "advice", "behind the others'"),
    ] {
        node.shift_clock(seconds);
        only(&store, severity, &format!("{}: its clock is ", node.address()), part);
        let taking_part = if severity == "problem" { 2 } else { 3 };
        assert_eq!(fact(&store, "fleet"), format!("{taking_part} of 3 nodes take part, 2 are needed"));
    }
    node.shift_clock(0);
    assert_eq!(findings(&store), []);
    fleet.nodes().iter().for_each(|node| node.shift_clock(5));
    only(&store, "advice", "most nodes' clocks are", "ahead of this machine's");
}

#[test]
fn tokens_ahead_of_the_clocks_are_found() {
    let (fleet, store) = with_clocks(3);
    // Short of the ten seconds that a token may be ahead, and far from none: on a busy machine time passes until
    // somebody looks.
    for (seconds, severity) in [(9, "advice"), (60, "problem")] {
        fleet.nodes().iter().for_each(|node| node.shift_clock(seconds));
        store.tenure("run x -- true").exits(0);
        fleet.nodes().iter().for_each(|node| node.shift_clock(0));
        let found = findings(&store);
        assert_eq!(found.len(), 3, "{found:?}");
        for node in fleet.nodes() {
            let of_node = format!("{}: its highest token is ", node.address());
            assert!(found.iter().any(|(how, what)| how == severity && what.starts_with(&of_node)), "{found:?}");
        }
    }
}

/// The milliseconds in what doctor says of a round trip.
fn round_trip(finding: &Value) -> f64 {
    let what = finding["what"].as_str().unwrap();
    let (_, trip) = what.split_once("a round trip takes ").unwrap_or_else(|| panic!("{finding}"));
    trip.trim_end_matches(" ms").parse().unwrap_or_else(|_| panic!("{finding}"))
}

#[test]
fn a_node_that_answers_slowly_is_found() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let fleet = runtime.block_on(Fleet::durable(3).behind_proxies());
    begin(&fleet.url());
    let store = Store::on(fleet.url());
    assert_eq!(findings(&store), []);
    let slow = &fleet.proxies()[2];
    // The others may be slow as well, on a busy machine.
    let says_slow = |finding: &Value| finding["what"].as_str().unwrap().starts_with(&format!("{}: ", slow.address()));
    let of_slow = |store: &Store| {
        let mut found = all_findings(store);
        found.retain(|(_, what)| what.starts_with(&format!("{}: ", slow.address())));
        found
    };
    for delay in [60, 27, 8] {
        slow.delay_replies(Duration::from_millis(delay));
        let report = store.tenure("doctor --json").exits(1).json();
        let found: Vec<_> =
            report["findings"].as_array().unwrap().iter().filter(|finding| says_slow(finding)).collect();
        let [finding] = found[..] else { panic!("{report}") };
        // On a busy machine it is slower than that: what is said must fit what was measured.
        let trip = round_trip(finding);
        assert!(trip >= delay as f64, "{finding}");
        let (severity, why) = match trip {
            _ if trip > 50.0 => ("problem", "a node may take 50.00 ms at a ttl of 10s: it does not count"),
            _ if trip > 25.0 => ("advice", "a node may take 50.00 ms at a ttl of 10s: a little slower"),
            _ => ("advice", "a node may take 5.00 ms at a ttl of 1s"),
        };
        assert_eq!(finding["severity"], severity, "{finding}");
        assert!(finding["why"].as_str().unwrap().starts_with(why), "{finding}");
    }
    slow.delay_replies(Duration::from_millis(60));
    assert_eq!(of_slow(&patient(&fleet.url())), [], "the URL gives it the time");
    slow.delay_replies(Duration::from_millis(8));
    let hasty = Store::on(fleet.url_with("node_timeout=6ms"));
    let found = of_slow(&hasty);
    assert!(found.iter().any(|(how, what)| how == "problem" && what.contains("a round trip takes")), "{found:?}");
}

#[test]
fn a_node_without_data_is_found_and_is_let_in_as_the_fix_says() {
    let (fleet, store) = sound(3);
    let node = &fleet.nodes()[2];
    node.cli(&["flushall"]);
    only_problem(&store, node, "it has no data");
    assert_eq!(node.cli(&["dbsize"]), "0", "and it is left as it is");
    let text = store.tenure("doctor").exits(1).text();
    assert!(text.contains("up for ") && text.contains("recorded (1 s)") && text.contains("-- sleep "), "{text}");
    let client = patient(&fleet.url());
    let run = client.start("admit --ttl 5s", "until [ -e go ]; do sleep 0.02; done");
    eventually("it takes part", || findings(&store).is_empty());
    fs::write(client.file("go"), "").unwrap();
    run.wait().exits(0);
}

#[test]
fn nodes_without_data_that_nobody_can_let_in_are_found() {
    let (fleet, store) = sound(3);
    fleet.nodes()[1..].iter().for_each(|node| drop(node.cli(&["flushall"])));
    for node in &fleet.nodes()[1..] {
        assert!(has(&store, "problem", &format!("{}: it has no data", node.address())));
    }
    let text = store.tenure("doctor").exits(1).text();
    assert!(text.contains("2 nodes with data are needed to let it in, and 1 are there"), "{text}");
    assert!(has(&store, "problem", "no quorum: 1 of 3"));
}

#[test]
fn a_new_fleet_that_cannot_begin_is_found() {
    let fleet = Fleet::durable(3);
    fleet.nodes()[0].kill();
    let text = Store::on(fleet.url()).tenure("doctor").exits(1).text();
    assert!(text.contains("a new fleet begins when a client reaches all nodes"), "{text}");
}

#[test]
fn nodes_of_other_fleets_are_found() {
    let ((one, _), (other, _)) = (sound(3), sound(3));
    let [a, b, _] = one.nodes() else { panic!("three") };
    let stranger = &other.nodes()[0];
    only_problem(&Store::on(url_of(&[a, b, stranger])), stranger, "it belongs to another fleet");
    let (larger, _) = sound(5);
    let stranger = &larger.nodes()[0];
    let store = Store::on(url_of(&[a, b, stranger]));
    only_problem(&store, stranger, "it belongs to a fleet of 5 nodes, not of 3");
    assert!(store.tenure("doctor").exits(1).text().contains("DEL tenure:redlock"));
}

#[test]
fn the_plain_layout_has_no_tokens_and_nothing_to_be_blank_of() {
    let (fleet, _) = sound(3);
    fleet.nodes()[0].cli(&["flushall"]);
    let store = Store::on(fleet.url_with("layout=plain"));
    assert_eq!(findings(&store), []);
    assert!(fact(&store, "tokens grow").contains("none") && fact(&store, "layout").contains("no tokens"));
    set(&fleet.nodes()[1], "appendfsync", "everysec");
    only_problem(&store, &fleet.nodes()[1], "appendfsync everysec");
    assert!(store.tenure("doctor").exits(1).text().contains("no token to protect"));
}

#[test]
fn what_may_not_be_looked_at_is_said_with_the_command_that_shows_it() {
    let users = "user default on >s3cret ~* &* +@all -hmget -config";
    let durable = |node: tenure_testkit::servers::Builder| {
        node.config("appendonly", "yes").config("appendfsync", "always").users(users).login("default", "s3cret")
    };
    let fleet = Fleet::builder(3).each(durable).start();
    let store = patient(&fleet.url());
    let found = findings(&store);
    assert_eq!(found.len(), 6, "{found:?}");
    assert!(found.iter().all(|(severity, _)| severity == "advice"), "{found:?}");
    let told = store.tenure("doctor").exits(1);
    assert!(told.text().contains("HGETALL tenure:redlock") && told.text().contains("CONFIG GET"), "{told:?}");
    assert!(!format!("{told:?}").contains("s3cret"));
}

#[test]
fn the_url_of_the_environment_is_named_when_it_is_wrong() {
    done(bare(&["doctor"]).env("TENURE_URL", "redlock://a,b")).exits(64).says("$TENURE_URL");
}

#[test]
fn nodes_that_want_a_password_are_found_and_do_not_take_part() {
    let users = "user default off\nuser me on >hidden ~* &* +@all";
    let fleet = Fleet::builder(3).each(|node| node.users(users).login("me", "hidden")).start();
    let addresses: Vec<String> = fleet.nodes().iter().map(|node| node.address()).collect();
    let store = Store::on(format!("redlock://{}", addresses.join(",")));
    for address in &addresses {
        assert!(has(&store, "problem", &format!("{address}: it wants a password, and the URL has none")));
    }
    assert!(has(&store, "problem", "no quorum: 0 of 3 nodes take part"));
}
