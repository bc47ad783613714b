//! Runs one case on one store, as it is or with faults.

use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt as _;
use tokio::task::JoinSet;

use crate::cases::{CASES, Case};
use crate::fixture::{Fixture, Store};
use crate::waiters::Waiters;

/// With how many seeds a case is run over the unreliable network, unless `TENURE_SEED` names one.
pub const SEEDS_PER_CASE: u64 = 8;

/// Runs a case.
///
/// # Panics
///
/// If the store breaks the promise.
pub fn run<F>(case: &str, store: impl Fn() -> F)
where
    F: Future<Output = Store>,
{
    let case = find(case);
    runtime().block_on(async { (case.run)(&Fixture::new(store().await)).await });
}

/// Runs a case with faults, each time on a new store: with several seeds side by side, or with `TENURE_SEED`.
///
/// # Panics
///
/// If the store breaks the promise; the seed is printed.
pub fn run_unreliable<F>(case: &str, store: impl Fn() -> F)
where
    F: Future<Output = Store>,
{
    let case = find(case);
    runtime().block_on(async {
        let mut running = JoinSet::new();
        for seed in seeds() {
            let store = store().await;
            running.spawn(async move {
                let fixture = Fixture::unreliable(store, seed);
                let outcome = AssertUnwindSafe((case.run)(&fixture)).catch_unwind().await;
                outcome.inspect_err(|_| eprintln!("{}: replay with TENURE_SEED={seed}", case.name))
            });
        }
        while let Some(outcome) = running.join_next().await {
            if let Err(panic) = outcome.expect("its panics are caught") {
                resume_unwind(panic);
            }
        }
    });
}

/// Lets `each` tasks of each of these clients wait for one name.
///
/// # Panics
///
/// If they are not served as [`Waiters::are_served`] says.
pub fn run_waiters<K>(clients: usize, each: usize, url: impl Fn(usize) -> (String, K)) {
    let (url, kept) = url(clients);
    let waiters = Waiters { clients, each };
    runtime().block_on(waiters.are_served(&url));
    drop(kept);
}

fn seeds() -> Vec<u64> {
    if let Ok(seed) = std::env::var("TENURE_SEED") {
        return vec![seed.parse().expect("TENURE_SEED is a number")];
    }
    (0..SEEDS_PER_CASE).map(|_| rand::random()).collect()
}

fn find(name: &str) -> Case {
    *CASES.iter().find(|case| case.name == name).expect("the tests are made from the list of cases")
}

/// Two threads, so that clients really meet.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}
