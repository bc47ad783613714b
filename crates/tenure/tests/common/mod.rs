//! What the engine's tests share: a world with a clock they drive and a store whose replies they gate.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::disallowed_methods)]

mod gated;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

#[allow(unused_imports)] // not every file of tests gates replies
pub(crate) use gated::{Gated, Reply};
use tenure::Tenure;
use tenure::backends::memory::MemoryStore;
use tenure_testkit::ManualClock;

pub(crate) const TTL: Duration = Duration::from_secs(10);

/// A memory store on a clock the test drives.
pub(crate) struct World {
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) store: Arc<MemoryStore>,
}

impl World {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let store = MemoryStore::on(clock.clone());
        Self { clock, store }
    }

    /// A client with honest replies.
    pub(crate) fn client(&self, label: &str) -> Tenure {
        Tenure::over(Arc::new(self.store.client()), self.clock.clone(), label)
    }

    /// A client whose replies the test gates.
    pub(crate) fn gated(&self, label: &str) -> (Tenure, Arc<Gated>) {
        let gate = Arc::new(Gated::new(Arc::new(self.store.client())));
        (Tenure::over(gate.clone(), self.clock.clone(), label), gate)
    }

    /// Runs a future while time passes, for at most a minute of it.
    pub(crate) async fn drive<F: Future>(&self, what: &str, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        for _ in 0..1_200 {
            if let Poll::Ready(output) = poll_once(future.as_mut()) {
                return output;
            }
            self.pass(Duration::from_millis(50)).await;
        }
        panic!("{what} did not resolve within a minute");
    }

    /// Lets time pass in steps small enough for every timer on the way.
    pub(crate) async fn pass(&self, time: Duration) {
        let step = Duration::from_millis(50);
        let mut left = time;
        settle().await;
        while left > Duration::ZERO {
            let now = step.min(left);
            self.clock.advance(now);
            settle().await;
            left -= now;
        }
    }
}

/// Lets every task that can run, run. The tests' runtime has one thread, so nothing happens between.
pub(crate) async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

/// Polls a future once.
pub(crate) fn poll_once<F: Future + ?Sized>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Runs a future that must not have to wait for time.
pub(crate) async fn now<F: Future>(what: &str, future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    for _ in 0..50 {
        if let Poll::Ready(output) = poll_once(future.as_mut()) {
            return output;
        }
        settle().await;
    }
    panic!("{what} did not resolve");
}

/// Asserts that a future is still pending once everything has settled.
pub(crate) async fn still_pending<F: Future>(future: Pin<&mut F>) {
    settle().await;
    assert!(poll_once(future).is_pending(), "resolved too early");
}

/// Counts the warnings that are logged while `work` runs.
pub(crate) async fn count_warnings(work: impl Future<Output = ()>) -> usize {
    #[derive(Clone, Default)]
    struct Counter(Arc<AtomicUsize>);
    impl tracing::Subscriber for Counter {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let counter = Counter::default();
    let logged = tracing::subscriber::set_default(counter.clone());
    work.await;
    drop(logged);
    counter.0.load(Ordering::Relaxed)
}
