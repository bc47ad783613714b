//! `acquire`, `renew`, `release`.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{Running, Store, done, eventually, keys};

const SHAPE: [&str; 5] = ["expires_in_ms", "name", "owner", "state", "token"];

#[test]
fn acquire_prints_what_a_script_needs_and_leaves_the_claim() {
    let store = Store::new();
    let got = store.tenure("acquire x --ttl 30s").exits(0).json();
    assert_eq!(keys(&got), SHAPE);
    assert_eq!((&got["name"], &got["state"]), (&json!("x"), &json!("held")));
    assert!(got["token"].is_u64());
    let left = got["expires_in_ms"].as_u64().unwrap();
    assert!((25_000..30_000).contains(&left), "{left}");
    assert_eq!(store.show("x")["holders"][0]["owner"], got["owner"]);
}

#[test]
fn the_same_owner_again_repeats_the_attempt() {
    let store = Store::new();
    let first = store.tenure("acquire x --owner ci-7").exits(0).json();
    let again = store.tenure("acquire x --owner ci-7 --no-wait").exits(0).json();
    assert_eq!(first["token"], again["token"]);
    assert_eq!(store.show("x")["holders"].as_array().unwrap().len(), 1);
}

#[test]
fn another_owner_is_75() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    store.tenure("acquire x --owner b --no-wait").exits(75);
    store.tenure("acquire x --owner b --wait 2s").exits(75);
    assert_eq!(store.show("x")["waiters"], json!([]));
}

#[test]
fn renew_prints_the_same_and_lengthens() {
    let store = Store::new();
    let first = store.tenure("acquire x --owner a --ttl 10s").exits(0).json();
    let renewed = store.tenure("renew x --owner a --ttl 1m").exits(0).json();
    assert_eq!(keys(&renewed), SHAPE);
    assert_eq!((&renewed["token"], &renewed["state"]), (&first["token"], &json!("held")));
    assert!(renewed["expires_in_ms"].as_u64().unwrap() > 50_000);
    let shorter = store.tenure("renew x --owner a --ttl 5s").exits(0).json();
    assert!(shorter["expires_in_ms"].as_u64().unwrap() > 50_000, "a shorter ttl keeps the longer");
}

#[test]
fn renew_of_what_is_gone_is_76() {
    let store = Store::new();
    store.tenure("renew x --owner a").exits(76);
    store.tenure("acquire x --owner a --ttl 100ms").exits(0);
    eventually("it ran out", || store.show("x")["holders"] == json!([]));
    store.tenure("renew x --owner a").exits(76);
}

#[test]
fn renew_of_what_was_broken_is_76_and_says_why() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    store.tenure("break x --yes --reason maintenance").exits(0);
    store.tenure("renew x --owner a").exits(76).says("maintenance");
}

#[test]
fn renew_of_what_only_waits_is_75_and_says_so() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    let _waiter = Running::of(&mut store.command(["acquire", "x", "--owner", "b"]));
    eventually("it waits", || store.show("x")["waiters"] != json!([]));
    let renewed = store.tenure("renew x --owner b").exits(75).says("still waits");
    assert_eq!(keys(&renewed.json()), SHAPE);
    assert_eq!((&renewed.json()["state"], &renewed.json()["token"]), (&json!("waiting"), &Value::Null));
    let told: Value = serde_json::from_str(&store.tenure("renew x --owner b --json").exits(75).stderr).unwrap();
    assert_eq!(told["exit"], 75);
}

#[test]
fn release_ends_the_claim_and_the_next_is_granted() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    let waiter = Running::of(&mut store.command(["acquire", "x", "--owner", "b", "--wait", "15s"]));
    eventually("it waits", || store.show("x")["waiters"] != json!([]));
    assert_eq!(store.tenure("release x --owner a").exits(0).text(), "");
    assert_eq!(waiter.wait().exits(0).json()["owner"], "b");
}

#[test]
fn release_of_nothing_is_1() {
    let store = Store::new();
    store.tenure("release x --owner a").exits(1).says("holds nothing");
    assert_eq!(store.tenure("release x --owner a --json").exits(1).json(), json!({"released": false}));
}

#[test]
fn release_tells_in_json() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    assert_eq!(store.tenure("release x --owner a --json").exits(0).json(), json!({"released": true}));
}

#[test]
fn a_signal_while_acquire_waits_ends_the_claim_first() {
    let store = Store::new();
    store.tenure("acquire x --owner a").exits(0);
    let waiter = Running::of(&mut store.command(["acquire", "x", "--owner", "b"]));
    eventually("it waits", || store.show("x")["waiters"] != json!([]));
    waiter.signal(Signal::TERM);
    waiter.wait().exits(143);
    assert_eq!(store.show("x")["waiters"], json!([]));
}

#[test]
fn a_claim_that_could_not_be_told_of_is_not_kept() {
    let store = Store::new();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = store.command(["acquire", "x"]);
    let status = command.stdout(writer).stderr(std::process::Stdio::null()).status().unwrap();
    assert_ne!(status.code(), Some(0));
    assert_eq!(store.show("x")["holders"], json!([]));
}

#[test]
fn an_odd_name_works_all_the_way() {
    let store = Store::new();
    let name = "it's a {\"name\"}";
    let got = done(&mut store.command(["acquire", name, "--owner", "a"])).exits(0).json();
    assert_eq!(got["name"], name);
    done(&mut store.command(["renew", name, "--owner", "a"])).exits(0);
    assert_eq!(store.show(name)["name"], name);
    done(&mut store.command(["release", name, "--owner", "a"])).exits(0);
}

#[test]
fn what_a_run_holds_is_not_a_scripts_to_renew_or_release() {
    let store = Store::new();
    let _run = store.start("x", "sleep 60");
    let owner = store.show("x")["holders"][0]["owner"].as_str().unwrap().to_owned();
    for (command, code) in [("renew", 76), ("release", 1)] {
        store.tenure(&format!("{command} x --owner {owner}")).exits(code).says("holds it through `tenure run`");
    }
    store.tenure("renew x --owner other").exits(76).says("no longer has the claim");
    store.tenure("release x --owner other").exits(1).says("holds nothing there");
}
