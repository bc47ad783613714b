//! The command over ZooKeeper, on a server as most are: ticks of 2 s, by which leases lag.

use tenure_testkit::servers::{Zookeeper, shared};

use crate::support::Store;

fn store(chroot: &str) -> Store {
    Store::on(shared::zookeeper_usual().url_below(chroot))
}

#[test]
fn scripts_acquire_renew_and_release_by_owner_at_every_ttl() {
    let store = store("/scripts");
    for ttl in ["4s", "10s", "40s"] {
        let acquire = format!("acquire x --ttl {ttl} --owner me --no-wait");
        let got = store.tenure(&acquire).exits(0).json();
        let again = store.tenure(&acquire).exits(0).json();
        assert_eq!(got["token"], again["token"], "a repeat is a retry: {ttl}");
        for renew in ["renew x --owner me".to_owned(), format!("renew x --owner me --ttl {ttl}")] {
            assert_eq!(store.tenure(&renew).exits(0).json()["token"], got["token"], "{ttl}");
        }
        store.tenure("acquire x --owner you --ttl 10s --no-wait").exits(75);
        store.tenure("release x --owner me").exits(0);
        store.tenure("release x --owner me").exits(1);
    }
}

#[test]
fn a_command_outlives_the_shortest_ttl_that_is_accepted() {
    // Long enough for three leases.
    store("/short").tenure("run x --ttl 4s -- sleep 7").exits(0);
}

#[test]
fn what_a_lease_cannot_be_kept_with_is_refused_with_what_it_can() {
    let store = store("/refused");
    store.tenure("run x --ttl 3900ms -- true").exits(64).says("4s to 40s");
    store.tenure("run x --ttl 41s -- true").exits(64).says("4s to 40s");
    store.tenure("run x --ttl 6s --grace 2s -- true").exits(64).says("at most 1s 600ms").says("a ttl of 6s 667ms");
    store.tenure("run x --ttl 6667ms --grace 2s -- true").exits(0);
    store.tenure("run x --grace 2s -- true").exits(0);
}

/// How many sessions a server has, and the claims that live by them.
fn left(server: &Zookeeper) -> (usize, String) {
    let told = server.word(0, "dump").unwrap();
    let lines = || told.lines().map(str::trim);
    // Sessions with nodes are told of once more, with a colon.
    let sessions = lines().filter(|line| line.starts_with("0x") && !line.ends_with(':')).count();
    let claims: Vec<&str> = lines().filter(|line| line.starts_with('/') && line.contains("lock-")).collect();
    (sessions, claims.join(" "))
}

#[test]
fn a_command_leaves_no_session_but_that_of_a_claim_which_lives_on() {
    let server = Zookeeper::builder().members(1).usual_ticks().start();
    let store = Store::on(server.url());
    for command in ["show x", "ls"] {
        store.tenure(command).exits(0);
        assert_eq!(left(&server), (0, String::new()), "{command}");
    }
    for (command, sessions) in [
        ("acquire x --ttl 40s --owner me", 1),
        ("acquire y --ttl 40s --owner me", 2),
        // The claim moves into a session of this process. The one it leaves has lost its process, and times out.
        ("renew x --owner me", 3),
        ("show x", 3),
    ] {
        store.tenure(command).exits(0);
        assert_eq!(left(&server).0, sessions, "{command}");
    }
    let (_, claims) = left(&server);
    assert!(claims.contains("/x/") && claims.contains("/y/"), "{claims}");
    for command in ["release x --owner me", "release y --owner me"] {
        store.tenure(command).exits(0);
    }
    assert_eq!(left(&server).1, "");
}
