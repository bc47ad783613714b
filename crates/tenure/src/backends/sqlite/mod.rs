//! The embedded store: one SQLite file for all processes of one machine.
//!
//! `sqlite:` is the default file ([`default_path`](crate::default_path)), `sqlite:PATH` another one, on a local
//! file system. Each name is one row that holds its queue of claims; every operation runs the pure
//! machine inside `BEGIN IMMEDIATE`, in WAL mode. Operations that are pending at the same moment share one
//! transaction. A waiter in another process is woken through the FIFO of its client, not by polling.
//!
//! | fault | exclusion |
//! |---|---|
//! | client crash, `kill -9` at any moment | kept: its claims end one ttl later at the latest |
//! | client pause | kept: the deadline is the client's own |
//! | machine crash or restart | every claim ends: claims of another boot are dead |
//! | wall clock step | kept: only `CLOCK_BOOTTIME` counts |
//!
//! Tokens grow as long as the file lives. If it is deleted, or a power loss takes the last commits, they go
//! on from the wall clock.
//!
//! Not for network file systems (those known by their `statfs` number are refused), nor for file systems shared
//! with the kernel of another machine, a virtual one included, nor for processes in different time namespaces.

mod error;
mod inbox;
mod memos;
mod place;
mod rows;
mod schema;
mod waited_for;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::oneshot;

use self::inbox::Inbox;
use self::worker::{Job, Worker};
use crate::backend::{
    Answer, Backend, Block, BreakRequest, Call, Capabilities, ClaimRequest, Claimed, Guarantees, Listener, Memo,
    MemoWrite, MemoWritten, MemosSurvive, ReleaseRequest, Released, RenewRequest, Renewed, Survival, WaitedFor,
    WaiterBreak,
};
use crate::clock::Clock;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{NameView, Op, Outcome};
use crate::name::Name;
use crate::outcome;
use crate::owner::ClaimId;
use crate::token::Token;

/// One client of the embedded store.
#[derive(Debug)]
pub struct SqliteBackend {
    jobs: mpsc::Sender<Job>,
    inbox: Inbox,
    clock: Arc<dyn Clock>,
    url: String,
}

impl SqliteBackend {
    /// Opens the file, and makes it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`] if the file cannot be used: on a network file system, no permission, a read-only
    /// or full disk, corrupt, not a tenure store, or made by a newer tenure.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst an empty store was made.
    pub async fn open(path: PathBuf, clock: Arc<dyn Clock>) -> Result<Self> {
        let (opened, opening) = oneshot::channel();
        let (jobs, queue) = mpsc::channel();
        let worker_clock = clock.clone();
        let thread = std::thread::Builder::new().name("tenure-sqlite".to_owned());
        let spawned = thread.spawn(move || match Worker::open(path, worker_clock) {
            Ok((worker, inbox, url)) => {
                if opened.send(Ok((inbox, url))).is_ok() {
                    worker.run(&queue);
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        });
        spawned.map_err(|error| Error::new(ErrorKind::Store, "no thread for the store").because(error))?;
        let (inbox, url) = opening.await.map_err(|_| gone())??;
        Ok(Self { jobs, inbox, clock, url })
    }

    /// Runs operations in one transaction; the outcomes in order.
    fn apply(&self, ops: Vec<(Name, Op)>) -> impl Future<Output = Result<Vec<Outcome>>> + Send + 'static {
        self.ask(|reply| Job::Apply { ops, reply })
    }

    /// Gives the store's thread a job, and waits for what it answers.
    fn ask<T: Send + 'static>(&self, job: impl FnOnce(oneshot::Sender<Result<T>>) -> Job) -> Call<T> {
        let (reply, answer) = oneshot::channel();
        let sent = self.jobs.send(job(reply));
        Box::pin(async move {
            sent.map_err(|_| gone())?;
            answer.await.map_err(|_| gone())?
        })
    }

    fn apply_one(&self, name: &Name, op: Op) -> impl Future<Output = Result<Outcome>> + Send + 'static {
        let applied = self.apply(vec![(name.clone(), op)]);
        async move { applied.await?.pop().ok_or_else(gone) }
    }
}

/// The store's thread ended, which it only does with its client.
fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "the embedded store was closed").with_certainty(Certainty::Unknown)
}

impl Backend for SqliteBackend {
    fn capabilities(&self) -> Capabilities {
        Capabilities::ALL
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "sqlite",
            time: "the machine's boot-time clock",
            client_crash: Survival::Kept,
            client_pause: Survival::Kept,
            store_crash: Survival::ClaimsEnd,
            failover: Survival::Never,
            partition: Survival::Never,
            clock_step: Survival::Kept,
            tokens: "while the file lives; after its loss while the wall clock does not step back",
            memos: Some(MemosSurvive::new(true, true, true)),
        }
    }

    fn url(&self) -> &str {
        &self.url
    }

    fn listen(&self, listener: Listener) {
        self.inbox.listen(listener);
    }

    fn claim(&self, name: &Name, mut request: ClaimRequest) -> Call<Answer<Claimed>> {
        let counted_from = self.clock.now();
        request.inbox = self.inbox.address();
        let applied = self.apply_one(name, Op::Claim(request));
        Box::pin(async move { Ok(Answer { value: outcome::claimed(applied.await?), counted_from }) })
    }

    fn renew(&self, batch: Vec<RenewRequest>, _fresh: bool) -> Call<Answer<Vec<Renewed>>> {
        let counted_from = self.clock.now();
        let op = |RenewRequest { name, id, ttl, number, .. }| (name, Op::Renew { id, ttl, number });
        let ops = batch.into_iter().map(op).collect();
        let applied = self.apply(ops);
        Box::pin(async move {
            let value = applied.await?.into_iter().map(outcome::renewed).collect();
            Ok(Answer { value, counted_from })
        })
    }

    fn release(&self, name: &Name, request: ReleaseRequest) -> Call<Released> {
        let applied = self.apply_one(name, request.into());
        Box::pin(async move { applied.await.map(outcome::released) })
    }

    fn next_block(&self, name: &Name, id: ClaimId, block_end: Token, mut next: ClaimRequest) -> Call<Answer<Block>> {
        let counted_from = self.clock.now();
        next.inbox = self.inbox.address();
        let applied = self.apply_one(name, Op::NextBlock { id, block_end, next });
        Box::pin(async move { Ok(Answer { value: outcome::block(applied.await?), counted_from }) })
    }

    fn break_holders(&self, name: &Name, request: BreakRequest) -> Call<usize> {
        let applied = self.apply_one(name, request.into());
        Box::pin(async move { Ok(outcome::evicted(&applied.await?)) })
    }

    fn break_waiter(&self, name: &Name, request: WaiterBreak) -> Call<bool> {
        let applied = self.apply_one(name, request.into());
        Box::pin(async move { Ok(outcome::waiter_ended(&applied.await?)) })
    }

    fn inspect(&self, name: &Name) -> Call<NameView> {
        let name = name.clone();
        self.ask(|reply| Job::Inspect { name, reply })
    }

    fn write_memo(&self, name: &Name, write: MemoWrite) -> Call<MemoWritten> {
        let name = name.clone();
        self.ask(|reply| Job::WriteMemo { name, write, reply })
    }

    fn memo(&self, name: &Name) -> Call<Option<Memo>> {
        let name = name.clone();
        self.ask(|reply| Job::Memo { name, reply })
    }

    fn time(&self) -> Call<SystemTime> {
        let time = UNIX_EPOCH + Duration::from_micros(self.clock.wall_micros());
        Box::pin(std::future::ready(Ok(time)))
    }

    fn waited_for(&self, after: Option<Name>, limit: usize) -> Call<WaitedFor> {
        self.ask(|reply| Job::WaitedFor { after, limit, reply })
    }

    fn scan(&self, prefix: &str, after: Option<Name>, limit: usize) -> Call<Vec<NameView>> {
        let prefix = prefix.to_owned();
        self.ask(|reply| Job::Scan { prefix, after, limit, reply })
    }
}
