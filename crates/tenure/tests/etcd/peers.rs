//! `etcdctl lock` on the same names.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use tenure_testkit::servers::{Etcd, shared};

use crate::support::{LONG, connect, has_key, soon, turn, until, until_waiting, waiting};

/// `etcdctl lock NAME`, which prints the key it holds.
fn etcdctl_lock(etcd: &Etcd, name: &str) -> Child {
    etcd.etcdctl_command(&["lock", name, "--ttl=5"]).stdout(Stdio::piped()).spawn().unwrap()
}

/// Waits until it prints its key.
async fn until_it_holds(child: &mut Child) -> String {
    let stdout = child.stdout.take().unwrap();
    let read = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        line
    });
    soon("etcdctl's turn", read).await.unwrap().trim_end().to_owned()
}

fn interrupt(mut child: Child) {
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_etcdctl_holds_is_waited_for_and_shown() {
    let etcd = shared::etcd();
    let a = connect(&etcd.url()).await;
    let mut held = etcdctl_lock(etcd, "foreign");
    let key = until_it_holds(&mut held).await;
    assert!(key.starts_with("foreign/"), "{key}");
    assert!(a.lock("foreign").ttl(LONG).try_acquire().await.unwrap().is_none());
    let view = a.inspect("foreign").await.unwrap();
    assert!(view.holders[0].owner.is_none() && view.holders[0].expires_in.is_some(), "{view:?}");
    let next = waiting(&a, "foreign", LONG);
    until_waiting(&a, "foreign", 1).await;
    interrupt(held);
    turn(next).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_that_is_held_is_waited_for_by_etcdctl() {
    let etcd = shared::etcd();
    let a = connect(&etcd.url()).await;
    let held = a.lock("ours").ttl(LONG).acquire().await.unwrap();
    let mut theirs = etcdctl_lock(etcd, "ours");
    until_waiting(&a, "ours", 1).await;
    let behind = waiting(&a, "ours", LONG);
    until_waiting(&a, "ours", 2).await;
    held.release().await.unwrap();
    until_it_holds(&mut theirs).await;
    assert_eq!(a.inspect("ours").await.unwrap().waiters.len(), 1, "in the order they came");
    interrupt(theirs);
    turn(behind).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_holder_that_dies_is_waited_for_no_longer_than_its_lease() {
    let etcd = shared::etcd();
    let a = connect(&etcd.url()).await;
    let mut held = etcdctl_lock(etcd, "dies");
    until_it_holds(&mut held).await;
    held.kill().unwrap();
    held.wait().unwrap();
    let next = soon("its turn", a.lock("dies").ttl(LONG).acquire()).await.unwrap();
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_ends_a_foreign_holder_too() {
    let etcd = shared::etcd();
    let a = connect(&etcd.url()).await;
    let mut held = etcdctl_lock(etcd, "broken");
    until_it_holds(&mut held).await;
    assert_eq!(a.break_holders("broken", None, "stuck").await.unwrap(), 1);
    until("it is free", async || a.inspect("broken").await.unwrap().is_free()).await;
    a.lock("broken").ttl(Duration::from_secs(5)).acquire().await.unwrap().release().await.unwrap();
    held.kill().unwrap();
    held.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_under_a_name_is_no_claim_and_is_left_alone() {
    let etcd = shared::etcd();
    let a = connect(&etcd.url()).await;
    etcd.etcdctl(&["put", "data/7f", "of somebody else"]);
    assert!(a.inspect("data").await.unwrap().is_free());
    assert_eq!(a.break_holders("data", None, "test").await.unwrap(), 0);
    let held = soon("a grant", a.lock("data").ttl(LONG).try_acquire()).await.unwrap().expect("nobody holds it");
    let next = waiting(&a, "data", LONG);
    until_waiting(&a, "data", 1).await;
    assert_eq!(a.break_holders("data", None, "test").await.unwrap(), 1);
    soon("the loss", held.lost()).await;
    turn(next).await.release().await.unwrap();
    assert!(has_key(etcd, "data/7f"));
}
