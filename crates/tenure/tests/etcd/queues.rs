//! Queues: longer than is read at once, and with claims that are there twice or half.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tenure::backend::{Backend as _, ClaimRequest, Event, ReleaseRequest, Released, Renewed};
use tenure::clock::SystemClock;
use tenure::{ErrorKind, Owner};
use tenure_testkit::servers::Etcd;

use crate::support::{
    LONG, connect, name, put_long, renewal, renewed, request, soon, stands, store, turn, until, until_waiting,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_readers_than_are_read_at_once_are_all_counted() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let mut held = Vec::new();
    for _ in 0..260 {
        held.push(a.rwlock("x").read().ttl(LONG).acquire().await.unwrap());
    }
    let session = a.session();
    let outer = soon("a grant", session.rwlock("x").read().ttl(LONG).try_acquire()).await.unwrap();
    let outer = outer.expect("readers hold together, however many");
    let inner = soon("a grant", session.rwlock("x").read().ttl(LONG).try_acquire()).await.unwrap().unwrap();
    assert_eq!(inner.token(), outer.token(), "it re-enters");
    let upgrade = soon("an answer", session.rwlock("x").write().ttl(LONG).try_acquire()).await.unwrap_err();
    assert_eq!(upgrade.kind(), ErrorKind::Conflict, "{upgrade}");
    let writer = a.rwlock("x").write().ttl(LONG);
    assert!(soon("an answer", writer.try_acquire()).await.unwrap().is_none());
    let writer = tokio::spawn(async move { writer.acquire().await });
    until_waiting(&a, "x", 1).await;
    assert!(a.rwlock("x").read().ttl(LONG).try_acquire().await.unwrap().is_none(), "a writer waits");
    for guard in held.into_iter().chain([inner, outer]) {
        guard.release().await.unwrap();
    }
    turn(writer).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn far_back_in_a_queue_names_below_it_are_not_waited_for() {
    let etcd = Etcd::builder().members(1).start();
    let a = connect(&etcd.url()).await;
    let held = a.lock("x").ttl(LONG).acquire().await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..260 {
        let lock = a.lock("x").ttl(LONG).strict_fifo();
        waits.push(tokio::spawn(async move {
            // On a busy machine 260 at once may take longer than the engine asks for one that was never answered.
            let guard = loop {
                match lock.acquire().await {
                    Err(error) if error.kind() == ErrorKind::Unavailable => {}
                    other => break other.unwrap(),
                }
            };
            guard.release().await.unwrap();
        }));
    }
    until_waiting(&a, "x", 260).await;
    let below = a.lock("x/below").ttl(LONG).acquire().await.unwrap();
    // Below the engine: it looks again only if it is told to.
    let (store, last) = (store(&etcd, Arc::new(SystemClock)).await, request(LONG));
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    store.listen(Arc::new(move |event| drop(tell.send(event))));
    assert!(stands(&store, "x", &last).await.state.is_err());
    held.release().await.unwrap();
    for wait in waits {
        soon("its turn", wait).await.unwrap();
    }
    let granted = async {
        loop {
            match told.recv().await.unwrap() {
                Event::Granted { id, .. } if id == last.id => return,
                _ => {}
            }
        }
    };
    soon("the last one's turn", granted).await;
    store.release(&name("x"), ReleaseRequest::of(&last)).await.unwrap();
    below.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_is_there_twice_is_not_granted_by_the_other_key() {
    let etcd = Etcd::builder().members(1).start();
    let a = store(&etcd, Arc::new(SystemClock)).await;
    let lease = etcd.etcdctl(&["lease", "grant", "600"]).split_whitespace().nth(1).unwrap().to_owned();
    let put = |value: &str| etcd.etcdctl(&["put", &format!("--lease={lease}"), &format!("x/{lease}"), value]);
    put("");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    a.listen(Arc::new(move |event| drop(tell.send(event))));
    let waits = request(LONG);
    let standing = stands(&a, "x", &waits).await;
    assert!(standing.state.is_err(), "{standing:?}");
    // A claim with the same id, by a key that was there before.
    let (id, owner) = (waits.id, Owner::random());
    put(&format!(
        r#"{{"owner":"{owner}","claims":[{{"id":"{id}","label":"","shape":"Exclusive","ttl":600000000,"since":0}}]}}"#
    ));
    assert_eq!(a.inspect(&name("x")).await.unwrap().holders[0].claims[0].0, id, "it is read as that");
    let ended = async {
        loop {
            match told.recv().await.unwrap() {
                Event::Ended { id: ended, number, .. } if ended == id => return number,
                Event::Granted { .. } => panic!("it has what another key was given"),
                _ => {}
            }
        }
    };
    assert_eq!(soon("it is told", ended).await, standing.number);
    let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", "x/"]);
    assert_eq!(keys.split_whitespace().count(), 1, "the first one stands: {keys}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_re_entry_whose_answer_was_lost_is_released() {
    let etcd = Etcd::builder().members(1).start();
    let a = store(&etcd, Arc::new(SystemClock)).await;
    for queue in [true, false] {
        let outer = ClaimRequest { solo: false, ..request(LONG) };
        let inner = ClaimRequest { owner: outer.owner.clone(), queue, solo: false, ..request(LONG) };
        stands(&a, "x", &outer).await;
        let claims = async || a.inspect(&name("x")).await.unwrap().holders.iter().map(|held| held.claims.len()).sum();
        let mut joining = a.claim(&name("x"), inner.clone());
        until("it has joined", async || {
            assert!(joining.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it goes on to renew");
            // So that what was sent has arrived, and its answer is not looked at any more.
            tokio::time::sleep(Duration::from_millis(50)).await;
            let joined: usize = claims().await;
            joined == 2
        })
        .await;
        drop(joining);
        assert_eq!(a.release(&name("x"), ReleaseRequest::of(&inner)).await.unwrap(), Released::Yes);
        assert_eq!(claims().await, 1);
        assert_eq!(a.release(&name("x"), ReleaseRequest::of(&outer)).await.unwrap(), Released::Yes);
        assert!(a.inspect(&name("x")).await.unwrap().is_free());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_too_large_to_be_read_keeps_no_other_claim_from_being_renewed() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (store(&etcd, Arc::new(SystemClock)).await, store(&etcd, Arc::new(SystemClock)).await);
    let [large, small, other] = [(); 3].map(|()| request(LONG));
    stands(&b, "large", &request(LONG)).await;
    stands(&b, "small", &request(LONG)).await;
    stands(&a, "large", &large).await;
    stands(&a, "small", &small).await;
    stands(&a, "other", &other).await;
    for number in 0..50 {
        put_long(&etcd, &format!("large/below/{number}"), &vec![b'x'; 1_400_000]);
    }
    let batch = vec![renewal("other", &other), renewal("large", &large), renewal("small", &small)];
    let answer = soon("an answer", a.renew(batch, false)).await.unwrap().value;
    assert!(matches!(&answer[0], Renewed::Stands(standing) if standing.state.is_ok()), "{answer:?}");
    // It is watched, so that nobody has to read it.
    assert!(matches!(&answer[1], Renewed::Stands(standing) if standing.state.is_err()), "{answer:?}");
    assert!(matches!(&answer[2], Renewed::Stands(standing) if standing.state.is_err()), "{answer:?}");
    // Without its watch it has to be read, and cannot be.
    etcd.kill(0);
    etcd.restart(0);
    until("it is unknown how it stands", async || {
        let batch = vec![renewal("other", &other), renewal("large", &large), renewal("small", &small)];
        let Ok(answer) = soon("an answer", a.renew(batch, false)).await else { return false };
        let Renewed::Unknown(why) = &answer.value[1] else { return false };
        let others = [&answer.value[0], &answer.value[2]];
        why.contains("too large") && others.iter().all(|other| matches!(other, Renewed::Stands(_)))
    })
    .await;
    // Nobody can say that it is this one's turn, nor that it is not.
    let alone = renewed(&a, "large", &large).await;
    assert!(matches!(&alone, Renewed::Unknown(why) if why.contains("too large")), "{alone:?}");
    assert_eq!(soon("a release", a.release(&name("large"), ReleaseRequest::of(&large))).await.unwrap(), Released::Yes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_names_are_listed_by_few_requests_and_as_each_is_by_itself() {
    let etcd = Etcd::builder().members(1).start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let mut held = Vec::new();
    for n in 0..150 {
        held.push(a.lock(format!("many/{n:03}")).ttl(LONG).acquire().await.unwrap());
    }
    let waiter = crate::support::waiting(&b, "many/070", LONG);
    until_waiting(&a, "many/070", 1).await;
    let calls = || -> f64 {
        let methods = ["Range", "Txn", "LeaseTimeToLive"].map(|method| format!("grpc_method=\"{method}\""));
        methods.iter().map(|method| etcd.counts(0, "grpc_server_handled_total", &[method])).sum()
    };
    let before = calls();
    let listed = a.list("many/").await.unwrap();
    let made = calls() - before;
    assert!((1.0..50.0).contains(&made), "{made} requests for {} names", listed.len());
    assert_eq!(listed.len(), 150);
    for (n, view) in listed.iter().enumerate() {
        let alone = a.inspect(format!("many/{n:03}")).await.unwrap();
        let claims = |view: &tenure::NameView| {
            let held: Vec<_> = view.holders.iter().map(|held| (held.claims.clone(), held.token)).collect();
            (view.name.clone(), held, view.waiters.iter().map(|waiter| waiter.claim).collect::<Vec<_>>())
        };
        assert_eq!(claims(view), claims(&alone));
        assert!(view.holders[0].expires_in.is_some_and(|left| left <= LONG) && view.holders[0].renewed.is_some());
    }
    assert_eq!(listed[70].waiters.len(), 1);
    drop(held);
    turn(waiter).await.release().await.unwrap();
}
