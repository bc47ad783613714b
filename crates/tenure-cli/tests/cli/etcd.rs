//! What is special on etcd.

use tenure_testkit::servers::shared;

use crate::support::Store;

/// There a claim that re-enters lives by the lease of the outer one.
#[test]
fn a_nested_run_with_a_longer_ttl_is_not_ended_before_its_lease_is_renewed() {
    let store = Store::on(shared::etcd().url());
    let name = format!("nested-{:016x}", rand::random::<u64>());
    let inner = format!("$TENURE run {name} --ttl 20s -- sh -c 'sleep 6; exit 7'");
    store.sh(&format!("{name} --ttl 4s"), &inner).exits(7);
}
