//! The command over ZooKeeper, on a server as most are: ticks of 2 s, by which leases lag.

use tenure_testkit::servers::shared;

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
