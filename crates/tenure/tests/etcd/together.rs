//! Requests that travel together, and links that hang.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tenure::Name;
use tenure::backend::Backend as _;
use tenure::backends::etcd::EtcdBackend;
use tenure::clock::SystemClock;
use tenure_testkit::servers::Etcd;

use crate::support::{LONG, connect, soon, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_asked_for_together_are_answered_each_for_itself() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let mut taken = Vec::new();
    for number in (0..200).step_by(2) {
        taken.push(b.lock(format!("n{number}")).ttl(LONG).acquire().await.unwrap());
    }
    let asked = (0..200).map(|number| {
        let lock = a.lock(format!("n{number}")).ttl(LONG);
        async move { (number, lock.try_acquire().await.unwrap()) }
    });
    let mut held = Vec::new();
    for (number, guard) in soon("the answers", join_all(asked)).await {
        assert_eq!(guard.is_some(), number % 2 == 1, "n{number}");
        held.extend(guard.map(|guard| (number, guard)));
    }
    let revisions: HashSet<_> = held.iter().map(|(_, guard)| guard.token()).collect();
    assert!(revisions.len() < held.len() / 2, "{} claims in {} transactions", held.len(), revisions.len());
    for (number, guard) in &held {
        let view = b.inspect(format!("n{number}")).await.unwrap();
        assert_eq!(view.holders.iter().map(|holder| holder.token).collect::<Vec<_>>(), [guard.token()]);
    }
    let released = held.into_iter().map(|(_, guard)| guard.release());
    for released in soon("the releases", join_all(released)).await {
        released.unwrap();
    }
    let left = etcd.etcdctl(&["get", "--prefix", "--keys-only", "n"]);
    assert_eq!(left.split_whitespace().count(), taken.len(), "{left}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_is_gone_fails_nobody_who_travels_with_it() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let short = Duration::from_secs(6);
    let _ends = a.lock("short").ttl(short).acquire().await.unwrap();
    let leases = etcd.etcdctl(&["lease", "list"]);
    let lease = leases.lines().nth(1).unwrap().to_owned();
    let _lives = a.lock("long").ttl(LONG).acquire().await.unwrap();
    etcd.etcdctl(&["lease", "revoke", &lease]);
    let asked = (0..100).map(|number| {
        let lock = a.lock(format!("n{number}")).ttl(if number % 2 == 0 { short } else { LONG });
        async move { lock.acquire().await.unwrap() }
    });
    for guard in soon("the grants", join_all(asked)).await {
        assert!(guard.is_held());
        guard.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_name_that_many_ask_for_keeps_no_other_waiting() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = b.lock("hot").ttl(LONG).acquire().await.unwrap();
    let asking: Vec<_> = (0..20)
        .map(|_| {
            let lock = a.lock("hot").ttl(LONG);
            tokio::spawn(async move {
                loop {
                    assert!(lock.try_acquire().await.unwrap().is_none());
                }
            })
        })
        .collect();
    for number in 0..20 {
        let other = soon("another name's grant", a.lock(format!("n{number}")).ttl(LONG).acquire()).await.unwrap();
        soon("its release", other.release()).await.unwrap();
    }
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_hangs_is_left_although_nobody_waits_for_it_to_the_end() {
    let etcd = Etcd::start();
    let backend = EtcdBackend::open(&etcd.url(), Arc::new(SystemClock)).await.unwrap();
    let name = Name::new("x").unwrap();
    let answers = async || tokio::time::timeout(Duration::from_millis(500), backend.inspect(&name)).await.is_ok();
    let mut hung = 0;
    // A pause may cost the member in use its leader, so that the client goes to one that had its turn: then all over
    // again.
    for turn in 0..4 * etcd.size() {
        if turn >= etcd.size() && hung > 0 {
            break;
        }
        let member = turn % etcd.size();
        etcd.pause(member);
        if !answers().await {
            hung += 1;
        }
        until("another member answers", answers).await;
        etcd.resume(member);
    }
    assert!(hung > 0, "the member in use was among them");
}

#[test]
fn a_runtime_that_ends_takes_what_waits_with_it() {
    let etcd = Etcd::builder().members(1).start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let a = connect(&etcd.url()).await;
        let mut held = Vec::new();
        for _ in 0..400 {
            held.push(a.rwlock("x").read().ttl(LONG).acquire().await.unwrap());
        }
        etcd.pause(0);
        // Their releases wait for each other, as they are about one name.
        drop(held);
        tokio::task::yield_now().await;
    });
    drop(runtime);
    etcd.resume(0);
}
