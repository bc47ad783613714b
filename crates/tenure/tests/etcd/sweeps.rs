//! What is ended because nobody wants it any more, and what is not.

use std::sync::Arc;
use std::time::Duration;

use tenure::backend::{Backend as _, ReleaseRequest, Renewed};
use tenure::clock::SystemClock;
use tenure_testkit::ManualClock;
use tenure_testkit::servers::Etcd;

use crate::support::{
    LONG, connect, has_key, leases, name, renewal, renewed, request, soon, stands, store, until, until_waiting, waiting,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_renewals_go_unanswered_is_not_ended_by_its_own_client() {
    let etcd = Etcd::builder().members(1).start();
    let clock = ManualClock::new();
    let a = store(&etcd, Arc::new(clock.clone())).await;
    let [answered, unanswered, left] = [(); 3].map(|()| request(LONG));
    stands(&a, "answered", &answered).await;
    stands(&a, "unanswered", &unanswered).await;
    stands(&a, "left", &left).await;
    assert_eq!(leases(&etcd).len(), 1, "they live by one lease");
    // Nothing is answered for a ttl, as the client counts it; etcd keeps the lease.
    clock.advance(LONG);
    etcd.pause(0);
    let hangs = a.renew(vec![renewal("unanswered", &unanswered)], false);
    assert!(tokio::time::timeout(Duration::from_millis(200), hangs).await.is_err());
    etcd.resume(0);
    assert!(matches!(renewed(&a, "answered", &answered).await, Renewed::Stands(_)));
    until("what nobody asks for is ended", async || a.inspect(&name("left")).await.unwrap().is_free()).await;
    let still = renewed(&a, "unanswered", &unanswered).await;
    assert!(matches!(&still, Renewed::Stands(standing) if standing.state.is_ok()), "{still:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_asked_for_anew_while_it_is_ended_holds_in_the_end() {
    let etcd = Etcd::builder().members(1).start();
    let clock = ManualClock::new();
    let a = store(&etcd, Arc::new(clock.clone())).await;
    for round in 0..20 {
        let (lives, again) = (request(LONG), request(LONG));
        let (living, name_again) = (format!("lives{round}"), format!("again{round}"));
        stands(&a, &living, &lives).await;
        stands(&a, &name_again, &again).await;
        clock.advance(LONG);
        assert!(matches!(renewed(&a, &living, &lives).await, Renewed::Stands(_)));
        // By now it is being ended, or has been.
        let standing = stands(&a, &name_again, &again).await;
        let token = standing.state.expect("nobody else wants it").token;
        let other = request(LONG);
        assert!(stands(&a, &name_again, &other).await.state.is_err(), "round {round}: it is held");
        let view = a.inspect(&name(&name_again)).await.unwrap();
        assert_eq!(view.holders.iter().map(|held| held.token).collect::<Vec<_>>(), [Some(token)], "round {round}");
        for (of, request) in [(&living, &lives), (&name_again, &again), (&name_again, &other)] {
            soon("a release", a.release(&name(of), ReleaseRequest::of(request))).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_lands_late_is_ended_also_where_locks_are_held_briefly() {
    let etcd = Etcd::builder().members(1).start();
    let a = store(&etcd, Arc::new(SystemClock)).await;
    // Released before a renewal is due.
    let brief = async || {
        let claim = request(Duration::from_secs(2));
        stands(&a, "brief", &claim).await;
        soon("a release", a.release(&name("brief"), ReleaseRequest::of(&claim))).await.unwrap();
    };
    brief().await;
    // As a request arrives that was given up: bound to the lease that all claims of this ttl share.
    let lease = leases(&etcd).pop().unwrap();
    let key = format!("late/{lease}-00000000000000aa");
    etcd.etcdctl(&["put", &format!("--lease={lease}"), &key, "late"]);
    let b = connect(&etcd.url()).await;
    let next = waiting(&b, "late", LONG);
    until_waiting(&b, "late", 1).await;
    until("it is ended", async || {
        brief().await;
        !has_key(&etcd, &key)
    })
    .await;
    assert_eq!(leases(&etcd).iter().filter(|other| **other == lease).count(), 1, "not with its lease");
    soon("the next one's turn", next).await.unwrap().unwrap().release().await.unwrap();
}
