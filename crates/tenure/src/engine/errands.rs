//! Work that goes on after its caller has left.
//!
//! Most of it is to end claims. If the first try to end one fails, or there is none because its lease was just lost, it
//! goes into a queue: one task for all of them, which asks for one at a time while the store fails. Claims that were
//! not tried yet go first, and that one is any of them, so that those which fail hold up nobody.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::core::{Core, ERRAND_PAUSE, RELEASE_TIMEOUT};
use super::live::LiveClaim;
use crate::backend::{Call, ReleaseRequest, Released};
use crate::clock::Moment;
use crate::lease;
use crate::name::Name;

/// How many claims of the queue are ended at a time while the store answers.
const TOGETHER: usize = 256;
/// The longest pause between two tries while it does not.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A claim that the store may have, to be ended.
#[derive(Debug)]
pub(crate) struct Ending {
    name: Name,
    request: ReleaseRequest,
    ttl: Duration,
}

impl Ending {
    pub(crate) fn of(claim: &LiveClaim, number: Option<u64>) -> Self {
        Self { name: claim.plan.name.clone(), request: claim.ending(number), ttl: claim.plan.ttl }
    }

    fn call(&self, core: &Core) -> Call<Released> {
        core.backend.release(&self.name, self.request.clone())
    }
}

/// What a client still has to do.
#[derive(Debug, Default)]
pub(crate) struct Errands {
    /// How many there are, those of the queue included.
    running: AtomicUsize,
    done: Notify,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// Not tried yet, each with the moment from which the claim is surely dead.
    untried: VecDeque<(Ending, Moment)>,
    /// Those that failed.
    failed: VecDeque<(Ending, Moment)>,
    /// Whether a task works on it.
    worked_on: bool,
}

impl Queue {
    fn next(&mut self) -> Option<(Ending, Moment)> {
        self.untried.pop_front().or_else(|| self.failed.pop_front())
    }

    /// One to find out whether the store ends others than those at the front: it may be that these alone fail.
    fn sample(&mut self) -> Option<(Ending, Moment)> {
        let index = rand::random_range(0..self.untried.len().max(1));
        self.untried.swap_remove_back(index).or_else(|| self.failed.pop_front())
    }
}

impl Errands {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        super::unpoisoned(self.queue.lock())
    }

    /// Up to `most` claims that may be alive. None are left if there are none: the task that works on them ends.
    fn take(&self, most: usize, now: Moment) -> Vec<(Ending, Moment)> {
        let mut taken = Vec::new();
        let mut dead = 0;
        let mut queue = self.queue();
        while taken.len() < most
            && let Some(ending) = if most == 1 { queue.sample() } else { queue.next() }
        {
            if now < ending.1 { taken.push(ending) } else { dead += 1 }
        }
        queue.worked_on = !taken.is_empty();
        drop(queue);
        self.over(dead);
        taken
    }

    fn over(&self, count: usize) {
        if count > 0 {
            self.running.fetch_sub(count, Ordering::AcqRel);
            self.done.notify_waiters();
        }
    }
}

/// Counts one errand, also when it is dropped with its runtime.
struct Running(Arc<Errands>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.over(1);
    }
}

/// The task that works on the queue. Dropped with its runtime, it forgets what is left.
struct Worker {
    errands: Arc<Errands>,
    /// How many claims it has taken from the queue.
    in_hand: usize,
    /// Whether the queue is its own.
    works: bool,
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.works {
            let mut queue = self.errands.queue();
            let left = std::mem::take(&mut *queue);
            drop(queue);
            self.errands.over(left.untried.len() + left.failed.len() + self.in_hand);
        }
    }
}

impl Core {
    /// Runs background work: at once as far as it goes, the rest on the client's runtime.
    pub(crate) fn errand(self: &Arc<Self>, mut work: Pin<Box<dyn Future<Output = ()> + Send>>) {
        if self.is_without_runtime() {
            return;
        }
        let idle = &mut Context::from_waker(Waker::noop());
        if !is_thread_ending() && work.as_mut().poll(idle).is_ready() {
            return;
        }
        self.errands.running.fetch_add(1, Ordering::AcqRel);
        let running = Running(self.errands.clone());
        self.runtime.spawn(async move {
            work.await;
            drop(running);
        });
    }

    /// How much background work there is.
    pub(crate) fn errands(&self) -> usize {
        self.errands.running.load(Ordering::Acquire)
    }

    /// Resolves when no background work is left.
    pub(crate) async fn idle(&self) {
        loop {
            let done = self.errands.done.notified();
            if self.errands() == 0 {
                return;
            }
            done.await;
        }
    }

    /// Ends a claim in the background, as long as the store may have it: it is asked before this returns, unless the
    /// thread is ending.
    pub(crate) fn end_behind(self: &Arc<Self>, ending: Ending) {
        if self.is_without_runtime() {
            return;
        }
        if is_thread_ending() {
            return self.queue_ending(ending, false);
        }
        let mut call = ending.call(self);
        match call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(_)) => {}
            Poll::Ready(Err(_)) => self.queue_ending(ending, true),
            Poll::Pending => {
                let core = self.clone();
                self.errand(Box::pin(async move {
                    let limit = || Some(lease::about(core.clock.now() + RELEASE_TIMEOUT.min(ending.ttl)));
                    if !matches!(core.within(limit, call).await, Some(Ok(_))) {
                        core.queue_ending(ending, true);
                    }
                }));
            }
        }
    }

    /// Ends a claim when its turn comes.
    pub(crate) fn end_later(self: &Arc<Self>, ending: Ending) {
        self.queue_ending(ending, false);
    }

    fn queue_ending(self: &Arc<Self>, ending: Ending, has_failed: bool) {
        if self.is_over() {
            // Nobody would work on the queue.
            return;
        }
        self.errands.running.fetch_add(1, Ordering::AcqRel);
        let dead_at = self.clock.now() + ending.ttl;
        let mut queue = self.errands.queue();
        if has_failed { &mut queue.failed } else { &mut queue.untried }.push_back((ending, dead_at));
        if !std::mem::replace(&mut queue.worked_on, true) {
            drop(queue);
            let worker = Worker { errands: self.errands.clone(), in_hand: 0, works: true };
            self.runtime.spawn(end_queued(self.clone(), worker));
        }
    }
}

/// Whether this thread drops its thread-local values, those of Tokio among them: no call can be polled here any more.
fn is_thread_ending() -> bool {
    Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed())
}

/// Ends the claims of the queue, until there are none.
async fn end_queued(core: Arc<Core>, mut worker: Worker) {
    let (mut most, mut pause) = (TOGETHER, ERRAND_PAUSE);
    loop {
        let taken = worker.errands.take(most, core.clock.now());
        worker.in_hand = taken.len();
        if taken.is_empty() {
            worker.works = false;
            return;
        }
        let tries = taken.into_iter().map(|(ending, dead_at)| {
            let (call, core) = (ending.call(&core), &core);
            async move {
                let limit = || Some(lease::about(dead_at.min(core.clock.now() + RELEASE_TIMEOUT)));
                let ended = matches!(core.within(limit, call).await, Some(Ok(_)));
                (!ended).then_some((ending, dead_at))
            }
        });
        let failed: Vec<_> = join_all(tries).await.into_iter().flatten().collect();
        let ended = worker.in_hand - failed.len();
        worker.in_hand = 0;
        worker.errands.queue().failed.extend(failed);
        worker.errands.over(ended);
        if ended > 0 {
            (most, pause) = (TOGETHER, ERRAND_PAUSE);
        } else {
            // One at a time, and seldom, until the store answers.
            core.alarm(core.clock.now() + pause).await;
            (most, pause) = (1, (pause * 2).min(PAUSE_MAX));
        }
    }
}
