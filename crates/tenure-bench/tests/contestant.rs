//! tenure as a contestant, as `bench/README.md` has it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};
use tenure_testkit::servers::{Redis, leftovers};

fn contestant(order: &Value) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-bench"));
    command
        .args(["contestant", &order.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn order(server: &Redis, mut more: Value) -> Value {
    let target = json!({ "peer": "tenure", "store": "redis", "urls": [server.url()], "ttl_ms": 10_000 });
    more.as_object_mut().unwrap().extend(target.as_object().unwrap().clone());
    more
}

fn last_line(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn it_says_which_locks_it_has() {
    let output = contestant(&json!({ "do": "list" })).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let listed: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stores: Vec<&Value> =
        listed.iter().filter(|lock| lock["peer"] == "tenure").map(|lock| &lock["store"]).collect();
    assert_eq!(stores, ["redis", "redlock", "embedded", "etcd", "postgres", "service", "zookeeper", "memory"]);
    let first: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    assert_eq!(keys(&first), ["library", "peer", "renews", "settings", "store", "version"]);
}

#[test]
fn what_makes_no_sense_is_1_and_told() {
    let unknown = json!({ "do": "take", "peer": "tenure", "store": "mysql", "urls": [], "ttl_ms": 1, "name": "x" });
    for (order, part) in [(unknown, "no tenure over mysql"), (json!({ "do": "dance" }), "dance")] {
        let output = contestant(&order).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{output:?}");
    }
}

#[test]
fn each_order_is_answered_as_it_should_be() {
    let server = Redis::start();
    let pairs = json!({ "do": "pairs", "tasks": 4, "names": 2, "prefix": "p", "warmup_s": 0.1, "seconds": 0.3 });
    let result = last_line(&contestant(&order(&server, pairs)).output().unwrap());
    assert_eq!(keys(&result), ["all", "cpu_s", "max_us", "p50_us", "p99_us", "pairs", "seconds"]);
    assert_eq!(leftovers(&server), Vec::<String>::new());
    let output = contestant(&order(&server, json!({ "do": "take", "name": "x" }))).output().unwrap();
    assert_eq!(keys(&last_line(&output)), ["got_us"]);
    assert!(output.stdout.starts_with(b"asking\n"));
    let leases = json!({ "do": "leases", "leases": 300, "prefix": "l", "seconds": 0.1 });
    let result = last_line(&contestant(&order(&server, leases)).output().unwrap());
    assert_eq!(keys(&result), ["bytes_per_lease", "cpu_percent", "held", "leases"]);
    assert_eq!((&result["leases"], &result["held"]), (&json!(300), &json!(300)));
}

#[test]
fn a_hot_name_starts_when_it_is_told_and_ends_in_the_midst() {
    let server = Redis::start();
    let hot = json!({ "do": "hot", "tasks": 3, "name": "hot", "prefix": "h", "warmup_pairs": 200, "seconds": 0.3 });
    let mut child = contestant(&order(&server, hot)).spawn().unwrap();
    assert_eq!(first_line(&mut child), "ready\n");
    writeln!(child.stdin.take().unwrap(), "{}", tenure_load::epoch_micros()).unwrap();
    let output = child.wait_with_output().unwrap();
    let result = last_line(&output);
    assert_eq!(keys(&result), ["cpu_s", "turns", "waiting"]);
    assert!(result["turns"].as_array().unwrap().iter().all(|turn| turn.as_array().unwrap().len() == 3));
}

/// Reads byte by byte, so that the rest is left for who reads next.
fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(1, child.stdout.as_mut().unwrap());
    reader.read_line(&mut line).unwrap();
    line
}

#[test]
fn a_holder_keeps_it_until_it_is_killed() {
    let server = Redis::start();
    let mut holder = contestant(&order(&server, json!({ "do": "hold", "name": "x" }))).spawn().unwrap();
    assert_eq!(first_line(&mut holder), "held\n");
    assert!(!leftovers(&server).is_empty());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert!(!leftovers(&server).is_empty(), "nobody gave it back");
}
