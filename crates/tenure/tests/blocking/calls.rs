//! Every call, from threads that know of no runtime.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tenure::blocking::{MultiLock, Tenure, examine};
use tenure::fence::Gate;
use tenure::watch::ChangeKind;
use tenure::{ErrorKind, Loss, Owner};

use crate::store::{BOUND, LONG, Store, stores};

const MOMENT: Duration = Duration::from_millis(20);

#[test]
fn a_lock_is_waited_for_held_and_released() {
    for store in stores("held") {
        let tenure = store.connect();
        let lock = tenure.lock("orders/42").label("a test");
        let guard = lock.acquire().unwrap();
        assert!(guard.is_held() && guard.check().is_ok() && guard.remaining() > LONG / 2, "{guard:?}");
        assert!(guard.token().is_some() && guard.renew().unwrap() > LONG / 2);
        assert!(lock.try_acquire().unwrap().is_none());
        let late = lock.acquire_within(MOMENT).unwrap_err();
        assert_eq!((late.kind(), &*late.holder().unwrap().label), (ErrorKind::Timeout, "a test"));
        assert_eq!(guard.protect(|| 7).unwrap(), 7);

        let view = tenure.inspect("orders/42").unwrap();
        assert_eq!((view.holders.len(), &view.name), (1, guard.name()));
        assert_eq!(tenure.list("orders/").unwrap().len(), 1);
        assert_eq!(tenure.list_page("orders/", None, 10).unwrap().len(), 1);
        guard.release().unwrap();
        assert!(tenure.inspect("orders/42").unwrap().is_free());
        assert_eq!(tenure.recent()[0].name, view.name);
        assert!(!tenure.guarantees().store.is_empty() && tenure.capabilities().tokens);
        assert!(tenure.explain("orders/42").is_ok() && tenure.doctor().is_ok() && examine(&store.url).is_ok());

        tenure.close().unwrap();
        assert_eq!(lock.acquire().unwrap_err().kind(), ErrorKind::Closed);
    }
}

#[test]
fn every_shape_is_there() {
    for store in stores("shapes") {
        let tenure = store.connect();
        let session = tenure.session();
        let outer = session.lock("a").acquire().unwrap();
        assert_eq!(session.lock("a").acquire().unwrap().token(), outer.token());
        assert!(tenure.lock("a").try_acquire().unwrap().is_none());

        let table = tenure.rwlock("table");
        let readers = [table.read().acquire().unwrap(), table.read().acquire().unwrap()];
        assert!(table.write().try_acquire().unwrap().is_none());
        drop(readers);
        assert!(table.write().acquire_within(BOUND).unwrap().is_held());

        let printers = tenure.semaphore("printers", 3);
        let two = printers.clone().units(2).acquire().unwrap();
        assert!(printers.clone().units(2).try_acquire().unwrap().is_none());
        assert!(two.fence().is_err() && printers.acquire().unwrap().is_held());

        let carts = tenure.striped("cart", 8);
        let cart = carts.of("user").acquire().unwrap();
        assert!(carts.of("user").try_acquire().unwrap().is_none());
        drop(cart);

        let both = tenure.lock_all(["y", "x", "y"]).each(|lock| lock.label("both")).acquire().unwrap();
        let names: Vec<_> = both.guards().iter().map(|guard| guard.name().as_str()).collect();
        assert_eq!(names, ["shapes/x", "shapes/y"]);
        assert!(tenure.lock_all(["z", "y"]).try_acquire().unwrap().is_none());
        assert!(tenure.lock_all(["z", "y"]).acquire_within(MOMENT).is_err());
        assert!(tenure.lock("z").acquire_within(BOUND).unwrap().is_held(), "it was undone");
        assert_eq!(both.lost_within(MOMENT).unwrap().map(|(_, loss)| loss), None);
        assert_eq!(both.protect(|| 7).unwrap(), 7);
        both.release().unwrap();
        assert!(MultiLock::of([]).acquire().unwrap().is_held());
    }
}

#[test]
fn locks_of_several_clients_are_held_together() {
    let stores = stores("several");
    let clients = stores.each_ref().map(Store::connect);
    let all = MultiLock::of(clients.iter().rev().map(|tenure| tenure.lock("x")));
    let held = all.acquire().unwrap();
    assert!(clients.iter().all(|tenure| tenure.lock("x").try_acquire().unwrap().is_none()));
    clients[1].break_holders("x", None, "to show it").unwrap();
    let broken = held.guards().iter().find(|guard| guard.renew().is_err()).unwrap();
    let (lost, loss) = held.lost().unwrap();
    assert_eq!((lost.claim_id(), lost.name()), (broken.claim_id(), broken.name()), "{loss}");
    assert!(!held.is_held() && held.check().is_err());
    // The threads of all clients go on, also for those that are gone.
    drop(clients);
    assert_eq!(held.release().unwrap_err().kind(), ErrorKind::Lost);
    for store in &stores {
        assert!(store.connect().lock("x").try_acquire().unwrap().is_some(), "{}", store.url);
    }
}

#[test]
fn a_loss_wakes_whoever_waits_for_it() {
    for store in stores("lost") {
        let tenure = store.connect();
        let guard = tenure.lock("x").acquire().unwrap();
        assert_eq!(guard.lost_within(MOMENT).unwrap(), None);
        let loss = thread::scope(|threads| {
            let waiting = threads.spawn(|| guard.lost().unwrap());
            assert_eq!(tenure.break_holders("x", None, "to show it").unwrap(), 1);
            assert_eq!(guard.renew().unwrap_err().kind(), ErrorKind::Lost);
            waiting.join().unwrap()
        });
        assert!(matches!(&loss, Loss::Broken { reason, .. } if reason == "to show it"), "{loss}");
        assert_eq!(guard.lost_within(BOUND).unwrap(), Some(loss));
        assert!(!guard.is_held() && guard.remaining().is_zero());
        assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
        assert!(guard.protect(|| panic!("the lease is lost")).is_err());
        assert_eq!(guard.release().unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[test]
fn work_that_outlives_the_lease_is_told() {
    let tenure = Tenure::connect("memory:").unwrap();
    let guard = tenure.lock("x").acquire().unwrap();
    let outcome = guard.protect(|| tenure.break_holders("x", None, "meanwhile").and_then(|_| guard.renew()).is_err());
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
}

#[test]
fn memos_are_written_and_read() {
    for store in stores("memos") {
        let tenure = store.connect();
        if !tenure.capabilities().memos {
            assert_eq!(tenure.memo("x").unwrap_err().kind(), ErrorKind::Invalid, "{}", store.url);
            continue;
        }
        assert!(tenure.memo("x").unwrap().is_none());
        let guard = tenure.lock("x").acquire().unwrap();
        guard.write_memo("one").unwrap();
        let version = guard.write_memo_for("two", LONG).unwrap();
        guard.release().unwrap();
        let memo = tenure.memo("x").unwrap().unwrap();
        assert_eq!((&*memo.bytes, memo.version), (&b"two"[..], version));
    }
}

#[test]
fn a_claim_is_left_renewed_and_released_by_its_owner() {
    for store in stores("left") {
        let tenure = store.connect();
        let owner = Owner::new("script").unwrap();
        let left = tenure.session_as(owner.clone()).lock("x").repeatable().acquire().unwrap().leave();
        assert_eq!(tenure.renew_as("x", &owner, None).unwrap().token, left.token);
        assert!(tenure.release_as("x", &owner).unwrap());
        assert!(!tenure.release_as("x", &owner).unwrap());
    }
}

#[test]
fn a_watch_is_an_iterator() {
    for store in stores("watch") {
        let tenure = store.connect();
        let mut watch = tenure.watch("orders/").every(MOMENT);
        assert_eq!(watch.look().unwrap(), 0);
        let guard = tenure.lock("orders/42").acquire().unwrap();
        let change = watch.next().unwrap().unwrap();
        assert_eq!((change.kind, &change.name), (ChangeKind::Granted, guard.name()));
        assert_eq!(watch.names().len(), 1);
        guard.release().unwrap();
        let kinds: Vec<_> = watch.by_ref().take(1).map(|change| change.unwrap().kind).collect();
        assert_eq!(kinds, [ChangeKind::Released]);
    }
}

#[test]
fn threads_exclude_each_other_and_pass_guards_on() {
    const THREADS: u32 = 8;
    const ROUNDS: u32 = 25;
    for store in stores("threads") {
        // Two clients, as two processes would have.
        let clients = [store.connect(), store.connect()];
        let fenced = Gate::new(0);
        let count = AtomicU32::new(0);
        thread::scope(|threads| {
            for number in 0..THREADS {
                let (tenure, fenced, count) = (&clients[number as usize % 2], &fenced, &count);
                threads.spawn(move || {
                    for _ in 0..ROUNDS {
                        let guard = tenure.lock("x").acquire().unwrap();
                        let seen = count.load(Ordering::SeqCst);
                        thread::yield_now();
                        count.store(seen + 1, Ordering::SeqCst);
                        fenced.write_as(&guard.fence().unwrap(), |fenced| *fenced += 1).unwrap();
                        // Another thread gives it back.
                        thread::scope(|others| others.spawn(|| guard.release().unwrap()).join().unwrap());
                    }
                });
            }
        });
        assert_eq!((count.into_inner(), fenced.into_inner()), (THREADS * ROUNDS, THREADS * ROUNDS), "{}", store.url);
    }
}
