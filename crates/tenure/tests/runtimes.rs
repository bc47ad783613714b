//! A client whose runtime has ended says so, at once: nothing hangs and nothing panics.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::time::Duration;

use tenure::{Error, ErrorKind, Guard, Loss, Owner, Tenure};
use tokio::runtime::{Builder, Runtime};

/// Far more than anything here takes, and less than any limit of a request.
const BOUND: Duration = Duration::from_secs(5);

fn runtimes() -> [Runtime; 2] {
    let threads = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    [threads, Builder::new_current_thread().enable_all().build().unwrap()]
}

/// Stores that need no server.
fn stores() -> [(String, Option<tempfile::TempDir>); 2] {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("sqlite:{}", dir.path().join("tenure.db").display());
    [("memory:".to_owned(), None), (file, Some(dir))]
}

async fn soon<T>(what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(BOUND, work).await.unwrap_or_else(|_| panic!("{what} hangs"))
}

fn is_closed<T>(what: &str, outcome: Result<T, Error>) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} succeeded"));
    assert_eq!(error.kind(), ErrorKind::Closed, "{what}: {error}");
}

#[test]
fn everything_is_refused_once_the_runtime_has_ended() {
    for (url, _dir) in stores() {
        for (prefix, runtime) in ["threads", "thread"].into_iter().zip(runtimes()) {
            let connected = async {
                let tenure = Tenure::connect(&url).await.unwrap();
                let mut guards: Vec<Guard> = Vec::new();
                for name in ["a", "b", "c"] {
                    guards.push(tenure.lock(format!("{prefix}/{name}")).acquire().await.unwrap());
                }
                (tenure, guards)
            };
            let (tenure, mut guards) = runtime.block_on(connected);
            drop(runtime);
            let other = Builder::new_current_thread().enable_all().build().unwrap();
            other.block_on(async {
                let owner = Owner::new("script").unwrap();
                is_closed("acquire", soon("acquire", tenure.lock("x").acquire()).await);
                is_closed("acquire", soon("acquire", tenure.lock(format!("{prefix}/a")).acquire()).await);
                is_closed("acquire_within", soon("acquire_within", tenure.lock("x").acquire_within(BOUND * 2)).await);
                is_closed("try_acquire", soon("try_acquire", tenure.session().lock("x").try_acquire()).await);
                is_closed("inspect", soon("inspect", tenure.inspect("x")).await);
                is_closed("list", soon("list", tenure.list("")).await);
                is_closed("doctor", soon("doctor", tenure.doctor()).await);
                is_closed("break", soon("break", tenure.break_holders("x", None, "")).await);
                is_closed("renew_as", soon("renew_as", tenure.renew_as("x", &owner, None)).await);
                is_closed("release_as", soon("release_as", tenure.release_as("x", &owner)).await);
                let guard = guards.pop().unwrap();
                assert_eq!(soon("lost", guard.lost()).await, Loss::SessionEnded, "nobody renews it any more");
                assert!(!guard.is_held());
                is_closed("release", soon("release", guard.release()).await);
                drop(guards.pop());
                is_closed("close", soon("close", tenure.close()).await);
            });
            // Nor does a guard need a runtime to be dropped.
            drop(guards);
            drop(tenure);
        }
    }
}

#[test]
fn whoever_waits_when_the_runtime_ends_is_told() {
    for (url, _dir) in stores() {
        for (name, runtime) in ["x", "y"].into_iter().zip(runtimes()) {
            let tenure = runtime.block_on(Tenure::connect(&url)).unwrap();
            let other = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
            let held = other.block_on(tenure.lock(name).acquire()).unwrap();
            // Behind a local task, in the store, and for a limited time.
            let locks = [tenure.lock(name), tenure.lock(name).strict_fifo(), tenure.lock(name).label("other")];
            let mut waiting = Vec::new();
            for lock in locks {
                let limited = lock.clone();
                waiting.push(other.spawn(async move { lock.acquire().await.map(drop) }));
                waiting.push(other.spawn(async move { limited.acquire_within(BOUND * 4).await.map(drop) }));
            }
            // A current-thread runtime does nothing unless it is driven.
            let all_wait = async {
                while tenure.inspect(name).await.unwrap().waiters.len() < 4 {
                    tokio::task::yield_now().await;
                }
            };
            runtime.block_on(soon("waiting", all_wait));
            drop(runtime);
            other.block_on(async {
                for task in waiting {
                    is_closed("a waiting task", soon("a waiting task", task).await.unwrap());
                }
                assert_eq!(soon("lost", held.lost()).await, Loss::SessionEnded);
            });
        }
    }
}

#[test]
fn what_a_runtime_drops_as_it_ends_is_released_if_the_store_needs_no_runtime() {
    let other = Builder::new_current_thread().enable_all().build().unwrap();
    let watcher = other.block_on(Tenure::connect("memory:ends")).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let tenure = runtime.block_on(Tenure::connect("memory:ends")).unwrap();
    for name in ["x", "y", "z"] {
        let guard = runtime.block_on(tenure.lock(name).acquire()).unwrap();
        runtime.spawn(async move {
            std::future::pending::<()>().await;
            drop(guard);
        });
    }
    // One more, so that the runtime still has a task whichever of the others it ends last.
    runtime.spawn(std::future::pending::<()>());
    drop(runtime);
    other.block_on(async {
        let left = watcher.list("").await.unwrap().len();
        assert!(left <= 1, "{left} of 3 are left");
    });
}
