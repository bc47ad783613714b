//! On which threads it may wait.

use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use tenure::blocking::{Guard, Lock, MultiLock, Tenure, examine};
use tenure::{ErrorKind, Owner, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::{LocalSet, block_in_place, coop, spawn_blocking};

use crate::store::BOUND;

fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

struct Given {
    tenure: Tenure,
    held: Guard,
    free: Lock,
}

impl Given {
    fn new() -> Self {
        let tenure = Tenure::connect("memory:").unwrap();
        Self { held: tenure.lock("held").acquire().unwrap(), free: tenure.lock("free"), tenure }
    }

    /// Calls everything that waits.
    fn all_are_refused(&self) {
        let Self { tenure, held, free } = self;
        let owner = Owner::new("script").unwrap();
        is_refused("connect", Tenure::connect("memory:"));
        is_refused("builder", Tenure::builder("memory:").label("x").connect());
        is_refused("examine", examine("memory:"));
        is_refused("acquire", free.acquire());
        is_refused("acquire_within", free.acquire_within(BOUND));
        is_refused("try_acquire", free.try_acquire());
        is_refused("lock_all", tenure.lock_all(["free", "other"]).acquire());
        is_refused("lock_all of none", MultiLock::of([]).try_acquire());
        is_refused("inspect", tenure.inspect("free"));
        is_refused("list", tenure.list(""));
        is_refused("memo", tenure.memo("free"));
        is_refused("explain", tenure.explain("free"));
        is_refused("break", tenure.break_holders("held", None, ""));
        is_refused("renew_as", tenure.renew_as("held", &owner, None));
        is_refused("release_as", tenure.release_as("held", &owner));
        is_refused("doctor", tenure.doctor());
        is_refused("close", tenure.close());
        is_refused("watch", tenure.watch("").next().unwrap());
        is_refused("look", tenure.watch("").look());
        is_refused("lost", held.lost());
        is_refused("lost_within", held.lost_within(Duration::ZERO));
        is_refused("renew", held.renew());
        is_refused("write_memo", held.write_memo("x"));
        // What does not wait is allowed.
        assert!(held.is_held() && held.token().is_some() && held.protect(|| true).unwrap());
    }

    /// Nothing was done.
    fn is_as_before(&self) {
        let names: Vec<_> = self.tenure.list("").unwrap().into_iter().map(|view| view.name).collect();
        assert_eq!(names, [self.held.name().clone()]);
        assert!(self.held.is_held() && self.free.acquire().is_ok() && self.tenure.memo("held").unwrap().is_none());
    }
}

fn is_refused<T>(what: &str, outcome: Result<T>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} was allowed"));
    assert_eq!(error.kind(), ErrorKind::Invalid, "{what}: {error}");
    assert!(error.to_string().contains("spawn_blocking"), "{error}");
}

#[test]
fn in_async_code_every_call_that_waits_is_refused() {
    let (given, threads, thread) = (Given::new(), multi_thread(), current_thread());
    threads.block_on(async { given.all_are_refused() });
    thread.block_on(async { given.all_are_refused() });
    LocalSet::new().block_on(&thread, async { given.all_are_refused() });
    given.is_as_before();
    let in_a_task = |given: Given| async move {
        given.all_are_refused();
        given
    };
    let given = threads.block_on(threads.spawn(in_a_task(given))).unwrap();
    let given = thread.block_on(thread.spawn(in_a_task(given))).unwrap();
    // A runtime's thread that may block is an async one again within `block_on`.
    let handle = threads.handle().clone();
    let blocking = spawn_blocking_on(&threads, move || handle.block_on(in_a_task(given)));
    blocking.is_as_before();
}

#[test]
fn a_refusal_costs_the_task_nothing_of_its_budget() {
    let given = Given::new();
    for runtime in [multi_thread(), current_thread()] {
        runtime.block_on(async {
            tokio::task::yield_now().await;
            let before = budget();
            is_refused("acquire", given.free.acquire());
            assert_eq!(budget(), before);
            assert!(before > 0);
            // Nor is it allowed once there is nothing left.
            while coop::has_budget_remaining() {
                spend();
            }
            is_refused("acquire", given.free.acquire());
        });
    }
}

fn spend() -> bool {
    match coop::poll_proceed(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(spent) => spent.made_progress(),
        Poll::Pending => return false,
    }
    true
}

/// How much this task may do before it must yield.
fn budget() -> usize {
    let Poll::Ready(_given_back) = coop::poll_proceed(&mut Context::from_waker(Waker::noop())) else { return 0 };
    1 + (0..1_000).take_while(|_| spend()).count()
}

fn spawn_blocking_on<T: Send + 'static>(runtime: &Runtime, work: impl FnOnce() -> T + Send + 'static) -> T {
    let _here = runtime.enter();
    let running = spawn_blocking(work);
    runtime.block_on(running).unwrap()
}

/// Connects, waits and releases.
fn works() {
    let tenure = Tenure::connect("memory:").unwrap();
    let guard = tenure.lock("x").acquire().unwrap();
    assert_eq!(tenure.lock("x").acquire_within(Duration::from_millis(5)).unwrap_err().kind(), ErrorKind::Timeout);
    guard.release().unwrap();
    tenure.close().unwrap();
}

#[test]
fn threads_that_may_block_may_wait() {
    for runtime in [multi_thread(), current_thread()] {
        spawn_blocking_on(&runtime, works);
        // With the runtime entered, which makes it current, and within a task's own thread.
        let entered = runtime.enter();
        works();
        drop(entered);
        runtime.block_on(async { thread::spawn(works).join().unwrap() });
        let handle = runtime.handle().clone();
        thread::spawn(move || {
            let _here = handle.enter();
            works();
        })
        .join()
        .unwrap();
    }
    let threads = multi_thread();
    threads.block_on(async { block_in_place(works) });
    threads.block_on(threads.spawn(async { block_in_place(works) })).unwrap();
    assert!(Handle::try_current().is_err());
    works();
}

#[test]
fn a_release_in_async_code_is_refused_and_made_in_the_background() {
    let given = Given::new();
    let other = given.tenure.lock("held");
    current_thread().block_on(async move { is_refused("release", given.held.release()) });
    assert!(other.acquire_within(BOUND).is_ok());
}

#[test]
fn values_go_between_threads() {
    fn is_send_sync<T: Send + Sync>() {}
    is_send_sync::<Tenure>();
    is_send_sync::<Lock>();
    is_send_sync::<Guard>();
    is_send_sync::<MultiLock>();
    is_send_sync::<tenure::blocking::MultiGuard>();
    is_send_sync::<tenure::blocking::Session>();
    is_send_sync::<tenure::blocking::RwLock>();
    is_send_sync::<tenure::blocking::Striped>();
    is_send_sync::<tenure::blocking::TenureBuilder>();
    fn is_send<T: Send>() {}
    is_send::<tenure::blocking::Watch>();
}
