//! One server: the connection that carries all claims, and the batches that go over it.
//!
//! Operations that are pending at the same moment go as one script call; one that is alone goes at once. A few
//! calls are under way at a time, so that what comes meanwhile is batched by itself.

use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Value};
use smallvec::smallvec;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::error::of_text;
use super::failure::{Answered, Failure, Redirect, Reply, Values};
use super::lane::{BATCH_MAX, Job, Lane, Work};
use super::memo;
use super::op::Op;
use super::place::{CONNECT_MAX, Place};
use super::script::{NATIVE, Script};
use super::wire;
use crate::clock::{Clock, Moment};
use crate::error::{Certainty, Error, ErrorKind, Result};

/// How many calls are under way at a time.
const FLIGHTS_MAX: usize = 4;
/// How many operations may wait for the server before more are refused.
const PENDING_MAX: usize = 200_000;
/// A connection that has answered nothing for this long is left for a new one.
const SUSPECT_AFTER: Duration = Duration::from_secs(1);
/// How long an answer is waited for at all. Whoever asked has given up long before.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// The key that keeps the highest token of names without a record.
pub(in crate::backends) const LAST_KEY: &str = "tenure:last";

/// Which script operations go to, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) enum Dialect {
    /// Queues of claims; tokens are kept per server, and operations share calls.
    Server,
    /// The same per name, one operation a call, as a cluster needs it.
    Cluster,
    /// Ballots of a fleet.
    #[cfg(feature = "redlock")]
    Ballots,
}

/// One server, as this client uses it.
pub(in crate::backends) struct Node {
    pub(in crate::backends) place: Place,
    dialect: Dialect,
    /// The highest token this client has been given.
    seen: Arc<AtomicU64>,
    /// Which node of a fleet this is to be; empty while that is not known.
    #[cfg(feature = "redlock")]
    meant: Mutex<Arc<str>>,
    clock: Arc<dyn Clock>,
    runtime: tokio::runtime::Handle,
    /// Tells the inbox to subscribe anew.
    pub(in crate::backends) inbox_restart: Arc<Notify>,
    lane: Mutex<Lane>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Node {
    pub(in crate::backends) fn new(
        place: Place,
        dialect: Dialect,
        seen: Arc<AtomicU64>,
        clock: Arc<dyn Clock>,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Self> {
        let inbox_restart = Arc::default();
        Arc::new(Self {
            place,
            dialect,
            seen,
            #[cfg(feature = "redlock")]
            meant: Mutex::new("".into()),
            clock,
            runtime,
            inbox_restart,
            lane: Mutex::default(),
        })
    }

    fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends work; it is on its way when this returns. `fresh` if an earlier call may hang.
    pub(in crate::backends) fn call(
        self: &Arc<Self>,
        work: Work,
        fresh: bool,
        asking: bool,
    ) -> impl Future<Output = Answered> + Send + use<> {
        self.submit(work, fresh, asking, false)
    }

    /// Sends work, also if its answer is not waited for.
    #[cfg(feature = "redlock")]
    pub(in crate::backends) fn call_and_keep(
        self: &Arc<Self>,
        work: Work,
        fresh: bool,
    ) -> impl Future<Output = Result<Reply>> + Send + use<> {
        let answer = self.submit(work, fresh, false, true);
        async move { answer.await.map_err(Error::from) }
    }

    /// From now on it answers only if it is this node.
    #[cfg(feature = "redlock")]
    pub(in crate::backends) fn mean(&self, node: &str) {
        let mut meant = self.meant.lock().unwrap_or_else(PoisonError::into_inner);
        if &**meant != node {
            *meant = node.into();
        }
    }

    /// For how long the server has owed an answer.
    #[cfg(feature = "redlock")]
    pub(in crate::backends) fn silent_for(&self) -> Duration {
        let lane = self.lane();
        if lane.in_flight == 0 { Duration::ZERO } else { self.clock.now().since(lane.progress) }
    }

    fn submit(
        self: &Arc<Self>,
        work: Work,
        fresh: bool,
        asking: bool,
        keep: bool,
    ) -> impl Future<Output = Answered> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let mut lane = self.lane();
        if lane.in_flight > 0 && (fresh || self.clock.now().since(lane.progress) > SUSPECT_AFTER) {
            lane.leave_connection();
        }
        let refused = lane.pending_ops >= PENDING_MAX;
        if !refused {
            lane.push_back(Job { work, reply, keep, again: false, asking });
            self.pump(&mut lane);
        }
        drop(lane);
        async move {
            if refused {
                return Err(unavailable("too much is waiting for Redis already").into());
            }
            // It may have been sent.
            let closed = || unavailable("the client of Redis was closed").with_certainty(Certainty::Unknown);
            answer.await.unwrap_or_else(|_| Err(closed().into()))
        }
    }

    /// Sends a command and answers its value.
    pub(in crate::backends) async fn command(self: &Arc<Self>, command: Cmd) -> Result<Value> {
        let reply = self.call(Work::Command(command), false, false).await?;
        Ok(reply.values.into_iter().next().unwrap_or(Value::Nil))
    }

    /// Forgets the connection: the next call opens a new one, to whatever server the place is by then.
    pub(in crate::backends) fn leave_connection(&self) {
        self.lane().leave_connection();
    }

    /// Forgets the connection if nothing is under way on it: the server it leads to may be gone.
    pub(in crate::backends) fn leave_idle_connection(&self) {
        let mut lane = self.lane();
        // One that is just being opened is not to be given up for an inbox that fails again and again.
        if lane.in_flight == 0 && lane.connection.is_some() {
            lane.leave_connection();
        }
    }

    /// Whether it has all the names, rather than its share of them.
    pub(in crate::backends) fn is_alone(&self) -> bool {
        self.dialect != Dialect::Cluster
    }

    pub(in crate::backends) fn runtime(&self) -> &tokio::runtime::Handle {
        &self.runtime
    }

    /// Connects now, so that a wrong address or password is known at once.
    pub(in crate::backends) async fn connect(self: &Arc<Self>) -> Result<()> {
        let answered = self.command(redis::cmd("PING")).await;
        answered.map(drop).map_err(|error| error.with_certainty(Certainty::NotApplied))
    }

    fn pump(self: &Arc<Self>, lane: &mut Lane) {
        while !lane.pending.is_empty() {
            if lane.connection.is_none() {
                if !lane.connecting {
                    lane.connecting = true;
                    self.runtime.spawn(self.clone().open());
                }
                return;
            }
            if lane.in_flight >= if self.is_alone() { FLIGHTS_MAX } else { BATCH_MAX * FLIGHTS_MAX } {
                return;
            }
            let jobs = lane.take_batch(self.is_alone());
            if !jobs.is_empty() {
                self.launch(lane, jobs);
            }
        }
    }

    async fn open(self: Arc<Self>) {
        let asked_in = self.lane().generation;
        let opened = match timeout(CONNECT_MAX, self.place.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(unavailable(&format!("no answer from Redis within {CONNECT_MAX:?} of connecting"))),
        };
        let mut lane = self.lane();
        lane.connecting = false;
        match opened {
            // Left while it was being opened: the server is another one by now.
            Ok(_) if lane.generation != asked_in => self.pump(&mut lane),
            Ok(connection) => {
                lane.leave_connection();
                lane.connection = Some(connection);
                self.pump(&mut lane);
            }
            Err(error) => {
                lane.pending_ops = 0;
                let failed = std::mem::take(&mut lane.pending);
                drop(lane);
                for job in failed {
                    job.fail(error.again().into());
                }
            }
        }
    }

    /// Sends a batch: the request is handed to the connection before anybody has to be scheduled.
    fn launch(self: &Arc<Self>, lane: &mut Lane, jobs: Vec<Job>) {
        let Some(connection) = lane.connection.clone() else { return };
        if lane.in_flight == 0 {
            lane.progress = self.clock.now();
        }
        lane.in_flight += 1;
        let generation = lane.generation;
        let command = self.command_of(&jobs, false);
        let asking = jobs.iter().any(|job| job.asking);
        let mut request = Box::pin(send(connection.clone(), command, asking));
        let mut first = request.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if let Poll::Ready(Err(error)) = &first
            && error.code().is_none()
            && jobs.iter().all(|job| !job.again)
        {
            // Closed while it was idle, so that nothing was sent; or, if this thread was held up just now, at once
            // after that.
            lane.leave_connection();
            for mut job in jobs.into_iter().rev() {
                job.again = true;
                lane.push_front(job);
            }
            return;
        }
        let node = self.clone();
        self.runtime.spawn(async move {
            let answer = match std::mem::replace(&mut first, Poll::Pending) {
                Poll::Ready(answer) => Ok(answer),
                Poll::Pending => timeout(ANSWER_MAX, request).await,
            };
            let answer = match answer {
                Ok(Err(error)) if error.code() == Some("NOSCRIPT") => {
                    timeout(ANSWER_MAX, send(connection, node.command_of(&jobs, true), asking)).await
                }
                answer => answer,
            };
            let broken = !matches!(&answer, Ok(Ok(_))) && !matches!(&answer, Ok(Err(error)) if error.code().is_some());
            let moved_away = match &answer {
                Ok(Err(error)) => error.code() == Some("READONLY"),
                Ok(Ok(Value::Array(values))) => values.iter().any(wire::is_read_only),
                _ => false,
            };
            let mut lane = node.lane();
            if lane.generation == generation {
                lane.in_flight = lane.in_flight.saturating_sub(1);
                lane.progress = node.clock.now();
                if broken || moved_away {
                    lane.leave_connection();
                }
                if moved_away {
                    // Nobody is told here; the master may be elsewhere by now.
                    node.inbox_restart.notify_one();
                }
            }
            node.pump(&mut lane);
            drop(lane);
            node.distribute(jobs, answer);
        });
    }

    fn command_of(&self, jobs: &[Job], in_full: bool) -> Cmd {
        match jobs.first().map(|job| &job.work) {
            Some(Work::Command(command)) => command.clone(),
            Some(Work::Script { script, key, args }) => script_call(script, key, args, in_full),
            Some(Work::Memo(memo)) => memo.command(in_full),
            _ => {
                let ops = jobs.iter().filter_map(|job| if let Work::Ops(ops) = &job.work { Some(ops) } else { None });
                self.batch(&ops.flatten().collect::<Vec<_>>(), in_full)
            }
        }
    }

    /// The command for one piece of work, sent by itself.
    pub(in crate::backends) fn command_for(&self, work: &Work, in_full: bool) -> Cmd {
        match work {
            Work::Ops(ops) => self.batch(&ops.iter().collect::<Vec<_>>(), in_full),
            Work::Command(command) => command.clone(),
            Work::Script { script, key, args } => script_call(script, key, args, in_full),
            Work::Memo(memo) => memo.command(in_full),
        }
    }

    fn batch(&self, ops: &[&Op], in_full: bool) -> Cmd {
        let (mut count, mut args, mut bytes) = (0, 0, 0);
        for op in ops {
            let (more, size) = op.size();
            count += 1;
            args += more;
            bytes += size;
        }
        let (script, own_keys) = match self.dialect {
            Dialect::Server => (&NATIVE, &[LAST_KEY][..]),
            Dialect::Cluster => (&NATIVE, &[][..]),
            #[cfg(feature = "redlock")]
            Dialect::Ballots => (&super::script::BALLOTS, &super::script::BALLOT_KEYS[..]),
        };
        let mut command = script.call_sized(in_full, 6 + count + args, bytes);
        command.arg(count + own_keys.len());
        for key in own_keys {
            command.arg(key);
        }
        for op in ops {
            command.arg(op.key());
        }
        match self.dialect {
            Dialect::Server | Dialect::Cluster => {
                command.arg(u8::from(self.is_alone())).arg(self.seen.load(Ordering::Acquire))
            }
            #[cfg(feature = "redlock")]
            Dialect::Ballots => command
                .arg(ops.iter().map(|op| op.ballot).max().unwrap_or(0))
                .arg(&**self.meant.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        for op in ops {
            op.write_args(&mut command);
        }
        command
    }

    fn distribute(
        &self,
        jobs: Vec<Job>,
        answer: std::result::Result<redis::RedisResult<Value>, tokio::time::error::Elapsed>,
    ) {
        let value = match answer {
            Ok(Ok(value)) => value,
            Ok(Err(error)) => return fail(jobs, &Failure::of(&error)),
            Err(_) => {
                return fail(jobs, &no_answer().into());
            }
        };
        if !matches!(jobs.first(), Some(Job { work: Work::Ops(_), .. })) {
            let Some(job) = jobs.into_iter().next() else { return };
            let moving = if let Work::Memo(_) = job.work { memo::is_moving(&value) } else { None };
            return match moving.filter(|_| !self.is_alone()) {
                Some(text) => job.fail(Failure { error: of_text(text), redirect: Some(Redirect::TryAgain) }),
                None => drop(job.reply.send(Ok(Reply { now: Moment(0), values: smallvec![value], again: job.again }))),
            };
        }
        let Value::Array(values) = value else { return fail(jobs, &odd().into()) };
        let mut values = values.into_iter();
        let Some(now) = values.next().as_ref().and_then(wire::number) else { return fail(jobs, &odd().into()) };
        for job in jobs {
            let Work::Ops(ops) = &job.work else { continue };
            let own: Values = values.by_ref().take(ops.len()).collect();
            let moving = own.iter().find_map(wire::moving).filter(|_| !self.is_alone());
            let reply = if let Some(text) = moving {
                Err(Failure { error: of_text(text), redirect: Some(Redirect::TryAgain) })
            } else if own.len() == ops.len() {
                Ok(Reply { now: Moment(now), values: own, again: job.again })
            } else {
                Err(odd().into())
            };
            match reply {
                Ok(reply) => drop(job.reply.send(Ok(reply))),
                Err(failure) => job.fail(failure),
            }
        }
    }
}

/// Sends a command; after `ASKING`, if a cluster says so.
async fn send(mut connection: MultiplexedConnection, command: Cmd, asking: bool) -> redis::RedisResult<Value> {
    if asking {
        let mut pipeline = redis::Pipeline::new();
        pipeline.cmd("ASKING").ignore().add_command(command);
        let mut values = connection.send_packed_commands(&pipeline, 1, 1).await?;
        return values.pop().unwrap_or(Value::Nil).extract_error();
    }
    connection.send_packed_command(&command).await?.extract_error()
}

fn script_call(script: &Script, key: &str, args: &[String], in_full: bool) -> Cmd {
    let mut command = script.call(in_full);
    command.arg(1).arg(key);
    for arg in args {
        command.arg(arg);
    }
    command
}

fn fail(jobs: Vec<Job>, failure: &Failure) {
    for job in jobs {
        job.fail(failure.again());
    }
}

pub(in crate::backends) fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message).with_certainty(Certainty::NotApplied)
}

pub(super) fn no_answer() -> Error {
    unavailable("no answer from Redis").with_certainty(Certainty::Unknown)
}

fn odd() -> Error {
    Error::new(ErrorKind::Store, "Redis did not answer each operation").with_certainty(Certainty::Unknown)
}
