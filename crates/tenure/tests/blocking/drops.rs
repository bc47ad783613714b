//! Dropping works anywhere.

use std::cell::RefCell;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tenure::backends::memory::MemoryStore;
use tenure::blocking::{Guard, Tenure};
use tenure::clock::SystemClock;
use tokio::runtime::Builder;

use crate::store::{BOUND, LONG, Store, redis, sqlite, stores};

/// Whether the lock is released, long before its ttl.
fn is_released(store: &Store) {
    let released = store.connect().lock("x").acquire_within(BOUND);
    assert!(released.is_ok(), "{}: {}", store.url, released.unwrap_err());
}

#[test]
fn a_guard_outlives_its_client_and_is_released_when_the_drop_returns() {
    for store in stores("outlives") {
        let other = store.connect();
        let guard = store.connect().lock("x").ttl(Duration::from_secs(3)).acquire().unwrap();
        let first = guard.deadline();
        let wait = || guard.lost_within(Duration::from_millis(50)).unwrap();
        let renewed = (0..1_200).any(|_| wait().is_none() && guard.deadline() > first);
        assert!(renewed && guard.is_held(), "{}", store.url);
        drop(guard);
        assert!(other.lock("x").try_acquire().unwrap().is_some(), "{}", store.url);
    }
}

#[test]
fn guards_are_dropped_in_async_code() {
    for store in stores("async") {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.enable_all().build().unwrap();
            // With its client: the last values of it.
            let guard = store.connect().lock("x").acquire().unwrap();
            runtime.block_on(async move { drop(guard) });
            is_released(&store);
            // As a runtime ends, with the tasks that have them.
            let guard = store.connect().lock("x").acquire().unwrap();
            runtime.spawn(async move {
                std::future::pending::<()>().await;
                drop(guard);
            });
            drop(runtime);
            is_released(&store);
        }
    }
}

#[test]
fn a_panic_releases_what_its_thread_holds() {
    for store in stores("panic") {
        let guard = store.connect().lock("x").acquire().unwrap();
        let panicking = thread::spawn(move || {
            let _guard = guard;
            // No message on stderr.
            std::panic::resume_unwind(Box::new("as the test wants it"));
        });
        assert!(panicking.join().is_err());
        is_released(&store);
    }
}

#[test]
fn thread_locals_are_dropped_in_whatever_order() {
    thread_local! {
        static KEPT: RefCell<Option<Guard>> = const { RefCell::new(None) };
    }
    for store in stores("local") {
        for kept_first in [true, false] {
            let (tenure, lock) = (store.connect(), store.connect().lock("x"));
            thread::spawn(move || {
                // Those of the runtime are made by the first call: they go before the guard, or after it.
                if kept_first {
                    KEPT.with(|kept| *kept.borrow_mut() = Some(lock.acquire().unwrap()));
                } else {
                    let guard = lock.acquire().unwrap();
                    KEPT.with(|kept| *kept.borrow_mut() = Some(guard));
                }
                drop(tenure);
            })
            .join()
            .unwrap();
            is_released(&store);
        }
    }
}

/// Both parts: the test's, and that of the process it starts.
#[test]
fn what_is_dropped_at_the_end_of_main_is_released() {
    const URL: &str = "TENURE_TEST_URL";
    const NAME: &str = "drops::what_is_dropped_at_the_end_of_main_is_released";
    if let Ok(url) = std::env::var(URL) {
        let guard = Tenure::connect(url).unwrap().lock("end/x").ttl(LONG).acquire().unwrap();
        drop(guard);
        std::process::exit(0);
    }
    for store in [sqlite("end"), redis("end")] {
        let mut main = Command::new(std::env::current_exe().unwrap());
        let output = main.args(["--exact", NAME]).env(URL, &store.url).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(store.connect().lock("x").try_acquire().unwrap().is_some(), "{}", store.url);
    }
}

#[test]
fn nothing_is_left_of_a_client_once_its_last_value_is_gone() {
    let backend = Arc::new(MemoryStore::new().client());
    let left = Arc::downgrade(&backend);
    let tenure = Tenure::over(backend, Arc::new(SystemClock), "test").unwrap();
    let (lock, session, watch) = (tenure.lock("x"), tenure.session(), tenure.watch(""));
    let guard = lock.acquire().unwrap();
    drop((tenure, session, watch));
    assert!(left.upgrade().is_some() && guard.is_held());
    drop(guard);
    assert!(left.upgrade().is_some() && lock.acquire().is_ok());
    drop(lock);
    assert!(left.upgrade().is_none());
}
