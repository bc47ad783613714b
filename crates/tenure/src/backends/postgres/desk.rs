//! What waits for the server, and what of it goes together.
//!
//! A few connections at most work at the same time, each with one statement or transaction. Operations that are pending when
//! one becomes free go as one: releases first, then what was asked for first, with all others of its kind.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::error::unavailable;
use super::link::{Link, Param, Preparing};
use super::rows::cell;
use super::statements::Statements;
use super::url::Settings;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{Op, Outcome, Standing};
use crate::name::Name;
use crate::owner::ClaimId;

/// How many connections work at the same time.
const LINKS_MAX: usize = 4;
/// How many more look at names, which nobody's lease depends on.
const LOOKS_MAX: usize = 2;
/// The most operations in one statement, unless they come as one.
const BATCH_MAX: usize = 64;
/// How many operations may wait before more are refused.
const PENDING_MAX: usize = 200_000;
/// How long a connection without work is kept.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How often a transaction is tried that others were in the way of.
pub(super) const TRIES_MAX: u32 = 5;
/// How many names are remembered as contended.
const CONTENDED_MAX: usize = 4096;
/// How many pieces of work pass between two looks for dead names.
const SWEEP_EVERY: u32 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Release,
    Claim,
    Renew,
    /// What needs the rule: the queue is read, changed and written.
    Other,
}

impl Kind {
    fn of(op: &Op) -> Self {
        match op {
            Op::Claim(request) if request.reenter.is_none() && request.presumed.is_zero() => Self::Claim,
            Op::Renew { .. } => Self::Renew,
            Op::Release { .. } => Self::Release,
            _ => Self::Other,
        }
    }
}

/// Operations of one kind that were asked for together.
struct Task {
    kind: Kind,
    ops: Vec<(Name, Op)>,
    reply: oneshot::Sender<Result<Vec<Outcome>>>,
}

#[derive(Default)]
struct State {
    releases: VecDeque<Task>,
    others: VecDeque<Task>,
    pending: usize,
    working: usize,
    idle: Vec<Link>,
    /// Names that others wanted too.
    contended: HashSet<Name>,
    since_sweep: u32,
    /// The name up to which dead ones were looked for.
    swept: String,
}

pub(super) struct Desk {
    pub(super) settings: Arc<Settings>,
    pub(super) statements: Statements,
    pub(super) preparing: Arc<Preparing>,
    runtime: tokio::runtime::Handle,
    state: Mutex<State>,
    /// Rung when a worker has become idle.
    rested: Arc<Notify>,
    looks: Arc<Semaphore>,
}

/// A connection to look at names with; given back when dropped.
pub(super) struct Look {
    desk: Arc<Desk>,
    link: Option<Link>,
    _permit: OwnedSemaphorePermit,
}

impl Look {
    /// Runs one statement by itself.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only looks.
    pub(super) async fn query(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        let link = match self.link.take().filter(|link| !link.is_closed()) {
            Some(link) => link,
            None => Link::open(&self.desk.settings, &self.desk.preparing).await?,
        };
        // Not put back if this is dropped on the way: the answer would be the next one's.
        let rows = link.query(sql, params).await;
        self.link = Some(link);
        rows
    }
}

impl Drop for Look {
    fn drop(&mut self) {
        if let Some(link) = self.link.take().filter(|link| !link.is_closed()) {
            self.desk.state().idle.push(link);
            self.desk.rested.notify_one();
        }
    }
}

impl Desk {
    pub(super) fn new(settings: Arc<Settings>, preparing: Arc<Preparing>, first: Link) -> Arc<Self> {
        let statements = Statements::of(&settings.schema);
        let state = State { idle: vec![first], since_sweep: SWEEP_EVERY, ..State::default() };
        let desk = Arc::new(Self {
            settings,
            statements,
            preparing,
            runtime: tokio::runtime::Handle::current(),
            state: Mutex::new(state),
            rested: Arc::default(),
            looks: Arc::new(Semaphore::new(LOOKS_MAX)),
        });
        desk.runtime.spawn(close_idle(Arc::downgrade(&desk)));
        desk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for operations of one kind; one outcome for each, in order.
    pub(super) fn ask(
        self: &Arc<Self>,
        ops: Vec<(Name, Op)>,
        fresh: bool,
    ) -> impl Future<Output = Result<Vec<Outcome>>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let kind = ops.first().map_or(Kind::Other, |(_, op)| Kind::of(op));
        let mut state = self.state();
        let (refused, nothing) = (state.pending >= PENDING_MAX, ops.is_empty());
        if !refused && !nothing {
            state.pending += ops.len();
            let task = Task { kind, ops, reply };
            if kind == Kind::Release {
                state.releases.push_back(task)
            } else {
                state.others.push_back(task)
            }
            if fresh {
                // An earlier call may hang.
                state.idle.clear();
            }
            if state.working < LINKS_MAX + usize::from(fresh) {
                state.working += 1;
                let link = state.idle.pop();
                self.runtime.spawn(self.clone().work(link));
            }
        }
        drop(state);
        async move {
            if refused {
                return Err(unavailable("too much is waiting for PostgreSQL already"));
            }
            if nothing {
                return Ok(Vec::new());
            }
            answer.await.unwrap_or_else(|_| Err(unavailable("the client of PostgreSQL was closed")))
        }
    }

    /// A connection to look with, once others have looked.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: it only waits.
    pub(super) async fn look(self: &Arc<Self>) -> Result<Look> {
        let permit = self.looks.clone().acquire_owned().await;
        let permit = permit.map_err(|_| unavailable("the client of PostgreSQL was closed"))?;
        let link = self.state().idle.pop();
        Ok(Look { desk: self.clone(), link, _permit: permit })
    }

    /// Works until nothing is pending.
    async fn work(self: Arc<Self>, mut link: Option<Link>) {
        loop {
            let (tasks, sweep) = {
                let mut state = self.state();
                let tasks = state.next_batch();
                if tasks.is_empty() {
                    state.working -= 1;
                    state.idle.extend(link.filter(|link| !link.is_closed()));
                    drop(state);
                    self.rested.notify_one();
                    return;
                }
                state.since_sweep += 1;
                let sweep = state.since_sweep >= SWEEP_EVERY;
                if sweep {
                    state.since_sweep = 0;
                }
                (tasks, sweep)
            };
            let open = match link.take().filter(|link| !link.is_closed()) {
                Some(open) => Ok(open),
                None => Link::open(&self.settings, &self.preparing).await,
            };
            match open {
                Ok(open) => {
                    self.answer(&open, tasks).await;
                    if sweep {
                        self.sweep(&open).await;
                    }
                    link = Some(open);
                }
                Err(error) => {
                    for task in tasks {
                        drop(task.reply.send(Err(error.again())));
                    }
                }
            }
        }
    }

    async fn answer(&self, link: &Link, tasks: Vec<Task>) {
        let ops: Vec<&(Name, Op)> = tasks.iter().flat_map(|task| &task.ops).collect();
        let kind = tasks.first().map_or(Kind::Other, |task| task.kind);
        let mut outcomes = self.outcomes(link, kind, &ops).await.into_iter();
        for task in tasks {
            let own = outcomes.by_ref().take(task.ops.len()).collect();
            drop(task.reply.send(own));
        }
    }

    /// What each operation answers: by one statement where it is the plain case, by the rule where not. One that fails by the rule takes
    /// nothing from those that were done before it.
    async fn outcomes(&self, link: &Link, kind: Kind, ops: &[&(Name, Op)]) -> Vec<Result<Outcome>> {
        let apart = self.contended(ops);
        let plain = match kind {
            Kind::Claim => self.claim(link, ops, &apart).await,
            Kind::Release => self.release(link, ops, &apart).await,
            Kind::Renew => self.renew(link, ops).await,
            Kind::Other => Ok(HashMap::new()),
        };
        let mut plain = match plain {
            Ok(plain) => plain,
            Err(error) => return ops.iter().map(|_| Err(error.again())).collect(),
        };
        let mut outcomes: Vec<Option<Result<Outcome>>> = (0..ops.len()).map(|at| plain.remove(&at).map(Ok)).collect();
        let left: Vec<usize> = (0..ops.len()).filter(|index| outcomes[*index].is_none()).collect();
        for some in left.chunks(BATCH_MAX) {
            let asked: Vec<&(Name, Op)> = some.iter().map(|index| ops[*index]).collect();
            let answered = self.together(link, &asked).await;
            self.note_contended(&asked, &answered);
            for (index, outcome) in some.iter().zip(answered) {
                outcomes[*index] = Some(outcome);
            }
        }
        outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(odd()))).collect()
    }

    /// Which of them are about names that others wanted when this client last looked: the plain statement would be in vain, and a commit.
    fn contended(&self, ops: &[&(Name, Op)]) -> Vec<bool> {
        let state = self.state();
        if state.contended.is_empty() {
            return Vec::new();
        }
        ops.iter().map(|(name, _)| state.contended.contains(name)).collect()
    }

    fn note_contended(&self, ops: &[&(Name, Op)], outcomes: &[Result<Outcome>]) {
        let mut state = self.state();
        for ((name, _), outcome) in ops.iter().zip(outcomes) {
            match outcome {
                Ok(Outcome::Stands(Standing { state: Err(_), .. }) | Outcome::Moved(_) | Outcome::Busy(_)) => {
                    if state.contended.len() >= CONTENDED_MAX {
                        state.contended.clear();
                    }
                    state.contended.insert(name.clone());
                }
                Ok(Outcome::Stands(_)) => drop(state.contended.remove(name)),
                _ => {}
            }
        }
    }

    /// By the rule: in one transaction, or, should the store refuse one of them, each in its own.
    async fn together(&self, link: &Link, ops: &[&(Name, Op)]) -> Vec<Result<Outcome>> {
        let error = match self.by_the_rule(link, ops).await {
            Ok(outcomes) => return outcomes.into_iter().map(Ok).collect(),
            Err(error) => error,
        };
        if ops.len() == 1 || error.kind() != ErrorKind::Store || error.certainty() != Certainty::NotApplied {
            return ops.iter().map(|_| Err(error.again())).collect();
        }
        let mut outcomes = Vec::with_capacity(ops.len());
        for one in ops {
            let outcome = self.by_the_rule(link, &[one]).await;
            outcomes.push(outcome.and_then(|mut outcomes| outcomes.pop().ok_or_else(odd)));
        }
        outcomes
    }

    /// Forgets names that nobody has used for a minute; a bounded number of them, and best effort.
    async fn sweep(&self, link: &Link) {
        let after = self.state().swept.clone();
        let rows = link.query(&self.statements.sweep, &[(&after, Type::TEXT)]).await.unwrap_or_default();
        let until = rows.first().and_then(|row| cell::<_, Option<String>>(row, 0).ok().flatten());
        self.state().swept = until.unwrap_or_default();
    }
}

impl State {
    fn next_batch(&mut self) -> Vec<Task> {
        let queue = if self.releases.is_empty() { &mut self.others } else { &mut self.releases };
        let (mut batch, mut later, mut size) = (Vec::new(), VecDeque::new(), 0);
        let mut kind = None;
        while let Some(task) = queue.pop_front() {
            // Whoever asked has left, and was told nothing. A release is done all the same; and it may overtake what it ends, which
            // therefore must not come after it.
            if task.reply.is_closed() && task.kind != Kind::Release {
                self.pending -= task.ops.len();
                continue;
            }
            let joins = kind.is_none_or(|kind| kind == task.kind && size + task.ops.len() <= BATCH_MAX);
            if !joins {
                later.push_back(task);
                if size >= BATCH_MAX {
                    break;
                }
                continue;
            }
            kind = Some(task.kind);
            size += task.ops.len();
            self.pending -= task.ops.len();
            batch.push(task);
        }
        while let Some(task) = later.pop_back() {
            queue.push_front(task);
        }
        batch
    }
}

/// Closes connections that have had nothing to do for a while.
async fn close_idle(desk: std::sync::Weak<Desk>) {
    loop {
        let Some(rested) = desk.upgrade().map(|desk| desk.rested.clone()) else { return };
        let busy = timeout(IDLE_MAX, rested.notified()).await.is_ok();
        if !busy && let Some(desk) = desk.upgrade() {
            desk.state().idle.clear();
        }
    }
}

/// The claims an operation is about, for who keeps account of those that wait.
pub(super) fn waits(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Stands(standing) | Outcome::Moved(standing) => Some(standing.state.is_err()),
        Outcome::Gone | Outcome::Broken(_) | Outcome::Released | Outcome::Busy(_) | Outcome::Refused(_) => Some(false),
        Outcome::Evicted(_) | Outcome::Done => None,
    }
}

/// An outcome that is missing though the server answered.
pub(super) fn odd() -> Error {
    Error::new(ErrorKind::Store, "PostgreSQL did not answer each operation").with_certainty(Certainty::Unknown)
}

/// The claim an operation is about.
pub(super) fn claim_of(op: &Op) -> Option<ClaimId> {
    match op {
        Op::Claim(request) => Some(request.id),
        Op::Renew { id, .. } | Op::Release { id, .. } => Some(*id),
        Op::NextBlock { next, .. } => Some(next.id),
        Op::Break { .. } | Op::Skip { .. } => None,
    }
}
