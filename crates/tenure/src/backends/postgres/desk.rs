//! Where operations are asked for, and the connections that serve them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::timeout;

use super::errand::Errand;
use super::error::{no_answer, unavailable};
use super::lanes::{Kind, Lane, Outcomes, State, Task};
use super::link::Link;
use super::preparing::Preparing;
use super::sheet::since_asked;
use super::statements::Statements;
use super::sweep;
use super::url::Settings;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{Op, Outcome};
use crate::name::Name;
use crate::owner::ClaimId;

/// How many connections look at names.
const LOOKS_MAX: usize = 2;
/// How many connections write memos.
const MEMO_WRITES_MAX: usize = 2;
/// How long a connection without work is kept.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How often a transaction is tried that others were in the way of.
pub(super) const TRIES_MAX: u32 = 5;

pub(super) struct Desk {
    pub(super) settings: Arc<Settings>,
    pub(super) statements: Statements,
    pub(super) preparing: Arc<Preparing>,
    pub(super) runtime: tokio::runtime::Handle,
    state: Mutex<State>,
    /// Rung when there was work, after which there may be something to sweep.
    pub(super) worked: Arc<Notify>,
    pub(super) looks: Arc<Semaphore>,
    /// The connections that write memos: those may have to wait for a row.
    pub(super) memo_writes: Arc<Semaphore>,
    /// Whether the table of memos is known to be there.
    pub(super) has_memos: AtomicBool,
}

impl Desk {
    pub(super) fn new(settings: Arc<Settings>, preparing: Arc<Preparing>, first: Link) -> Arc<Self> {
        let statements = Statements::of(&settings.schema);
        let desk = Arc::new(Self {
            settings,
            statements,
            preparing,
            runtime: tokio::runtime::Handle::current(),
            state: Mutex::default(),
            worked: Arc::default(),
            looks: Arc::new(Semaphore::new(LOOKS_MAX)),
            memo_writes: Arc::new(Semaphore::new(MEMO_WRITES_MAX)),
            has_memos: AtomicBool::new(false),
        });
        desk.state().idle.push(first);
        desk.runtime.spawn(close_idle(Arc::downgrade(&desk)));
        desk.runtime.spawn(sweep::keep(Arc::downgrade(&desk), desk.worked.clone()));
        desk
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Cancel safety
    ///
    /// Cancel safe: a connection that is not finished is closed.
    pub(super) async fn open_link(&self) -> Result<Link> {
        let (settings, preparing) = (self.settings.clone(), self.preparing.clone());
        // It is used by others when this caller's runtime, if it has its own, is long gone.
        let opened = self.runtime.spawn(async move { Link::open(&settings, &preparing).await });
        opened.await.map_err(|_| unavailable("the client of PostgreSQL was closed"))?
    }

    /// Keeps a connection for whoever needs one next.
    pub(super) fn give_back(&self, link: Option<Link>) {
        if let Some(link) = link {
            self.state().idle.push(link);
        }
    }

    /// Asks for operations of one kind: one, or renewals. One result for each, in order.
    pub(super) fn ask(
        self: &Arc<Self>,
        ops: Vec<(Name, Op)>,
        fresh: bool,
    ) -> impl Future<Output = Result<Outcomes>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let kind = ops.first().map_or(Kind::Other, |(_, op)| Kind::of(op));
        let mut state = self.state();
        let (refused, nothing) = (state.is_full(), ops.is_empty());
        if !refused && !nothing {
            if fresh {
                // An earlier call may hang, and so may other connections; but not one that has answered since that
                // call. To open new ones in place of those makes a server that is only slow slower still.
                state.idle.close_silent(since_asked(&ops));
            }
            let lane = state.push(Task { kind, ops, reply }, fresh);
            self.start(&mut state, lane);
        }
        drop(state);
        async move {
            if refused {
                return Err(unavailable("too much is waiting for PostgreSQL already"));
            }
            if nothing {
                return Ok(Vec::new());
            }
            answered(answer).await
        }
    }

    /// Asks for one operation.
    pub(super) fn ask_one(
        self: &Arc<Self>,
        name: &Name,
        op: Op,
    ) -> impl Future<Output = Result<Outcome>> + Send + use<> {
        let hired = self.state().hire_caller(name, &op);
        let (errand, asked) = match hired {
            Some(hired) => (Some(Errand::new(self, hired, name.clone(), op)), None),
            None => (None, Some(self.ask(vec![(name.clone(), op)], false))),
        };
        async move {
            match (errand, asked) {
                (Some(errand), _) => errand.run().await,
                (None, Some(asked)) => only(asked.await?),
                (None, None) => Err(odd()),
            }
        }
    }

    /// One more worker, if there is work for it.
    pub(super) fn start(self: &Arc<Self>, state: &mut State, lane: Lane) {
        if state.hire(lane) {
            let link = state.idle.pop();
            self.runtime.spawn(self.clone().work(lane, link));
        }
    }
}

/// What whoever does it answers.
///
/// # Cancel safety
///
/// Cancel safe: it only waits.
pub(super) async fn answered(answer: oneshot::Receiver<Outcomes>) -> Result<Outcomes> {
    // He gave it up, or is gone with the client: nobody knows how far he came.
    answer.await.map_err(|_| no_answer())
}

/// The outcome of one operation.
pub(super) fn only(mut outcomes: Outcomes) -> Result<Outcome> {
    outcomes.pop().unwrap_or_else(|| Err(odd()))
}

/// Closes connections that have had nothing to do for a while.
async fn close_idle(desk: std::sync::Weak<Desk>) {
    loop {
        let _ = timeout(IDLE_MAX, std::future::pending::<()>()).await;
        let Some(desk) = desk.upgrade() else { return };
        desk.state().idle.close_unneeded();
    }
}

/// The claims an operation is about, for who keeps account of those that wait.
pub(super) fn waits(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Stands(standing) | Outcome::Moved(standing) => Some(standing.state.is_err()),
        Outcome::Gone | Outcome::Broken(_) | Outcome::Released | Outcome::Busy(_) | Outcome::Refused(_) => Some(false),
        // One that holds has yet to hear what it was given.
        Outcome::Evicted(_) | Outcome::WaiterEnded { .. } | Outcome::Done | Outcome::Holds => None,
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
        Op::Break { .. } | Op::BreakWaiter { .. } | Op::Skip { .. } => None,
    }
}
