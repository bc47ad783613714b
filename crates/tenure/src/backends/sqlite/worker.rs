//! The thread that owns the file: jobs that are pending at the same moment share one transaction.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::error::{at_commit, before_commit, unreadable};
use super::inbox::{Inbox, News, Post};
use super::rows::{self, Rows};
use super::{memos, place, schema, waited_for};
use crate::backend::{Memo, MemoWrite, MemoWritten, WaitedFor};
use crate::clock::Clock;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{NameView, Op, Outcome, Queue, apply_reaching};
use crate::name::Name;

/// The most operations in one transaction, but for what one job brings: a transaction reads and writes the whole queue
/// of each name it is about, and others wait for the file meanwhile.
const OPS_MAX: usize = 1024;
/// How many transactions pass between two looks for dead names.
const SWEEP_EVERY: u32 = 256;

type Reply<T> = oneshot::Sender<Result<T>>;
type Ops = Vec<(Name, Op)>;

pub(super) enum Job {
    Apply { ops: Ops, reply: Reply<Vec<Outcome>> },
    Inspect { name: Name, reply: Reply<NameView> },
    WriteMemo { name: Name, write: MemoWrite, reply: Reply<MemoWritten> },
    Memo { name: Name, reply: Reply<Option<Memo>> },
    WaitedFor { after: Option<Name>, limit: usize, reply: Reply<WaitedFor> },
    Scan { prefix: String, after: Option<Name>, limit: usize, reply: Reply<Vec<NameView>> },
}

pub(super) struct Worker {
    connection: Connection,
    clock: Arc<dyn Clock>,
    post: Post,
    /// SQLite's write-ahead log.
    log: PathBuf,
    transactions: u32,
    /// Whether to look at the size of the log.
    trim: bool,
}

impl Worker {
    /// Opens the store: the worker, its client's inbox, and the store's URL.
    pub(super) fn open(path: PathBuf, clock: Arc<dyn Clock>) -> Result<(Self, Inbox, String)> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_err(|error| {
            Error::new(ErrorKind::Store, "the embedded store needs the machine's boot id from /proc").because(error)
        })?;
        let path = place::settle(path)?;
        let url = format!("sqlite:{}", path.display());
        let open = || -> Result<_> {
            let connection = schema::open(&path, boot.trim())?;
            let inbox = Inbox::open(&path)?;
            Ok((connection, inbox))
        };
        let (connection, inbox) = open().map_err(|error| error.in_store(url.clone()))?;
        let post = inbox.post();
        let mut log = path.into_os_string();
        log.push("-wal");
        // Looks for dead names with the first transaction.
        let worker = Self { connection, clock, post, log: log.into(), transactions: SWEEP_EVERY, trim: false };
        Ok((worker, inbox, url))
    }

    /// Works until every sender is gone.
    pub(super) fn run(mut self, queue: &mpsc::Receiver<Job>) {
        while let Ok(first) = queue.recv() {
            let (mut writes, mut size) = (Vec::new(), 0);
            let mut next = Some(first);
            while let Some(job) = next {
                match job {
                    Job::Apply { ops, reply } => {
                        size += ops.len();
                        writes.push((ops, reply));
                    }
                    // A look sees what was asked for before it.
                    Job::Inspect { name, reply } => {
                        self.write(std::mem::take(&mut writes));
                        drop(reply.send(self.inspect(&name)));
                    }
                    Job::WriteMemo { name, write, reply } => {
                        self.write(std::mem::take(&mut writes));
                        let written = memos::write(&mut self.connection, &*self.clock, &name, &write);
                        drop(reply.send(written));
                        // Memos are large beside queues.
                        self.trim = true;
                    }
                    Job::Memo { name, reply } => {
                        self.write(std::mem::take(&mut writes));
                        drop(reply.send(memos::read(&self.connection, &*self.clock, &name)));
                    }
                    Job::WaitedFor { after, limit, reply } => {
                        self.write(std::mem::take(&mut writes));
                        let now = self.clock.now();
                        drop(reply.send(waited_for::find(&self.connection, after.as_ref(), limit, now)));
                    }
                    Job::Scan { prefix, after, limit, reply } => {
                        self.write(std::mem::take(&mut writes));
                        drop(reply.send(self.scan(&prefix, after.as_ref(), limit)));
                    }
                }
                next = if size < OPS_MAX { queue.try_recv().ok() } else { None };
            }
            self.write(writes);
            // After the answers: nobody waits for this.
            if std::mem::take(&mut self.trim) {
                schema::trim_log(&mut self.connection, &self.log, &*self.clock);
            }
        }
    }

    fn write(&mut self, jobs: Vec<(Ops, Reply<Vec<Outcome>>)>) {
        if jobs.is_empty() {
            return;
        }
        let (work, replies): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let mut news = News::default();
        match self.transact(&work, &mut news) {
            Ok(outcomes) => {
                // The news first: somebody waits for it, while the one who asked has its answer at hand.
                self.post.deliver(news);
                for (reply, outcomes) in replies.into_iter().zip(outcomes) {
                    drop(reply.send(Ok(outcomes)));
                }
            }
            // One damaged row must not fail the jobs that happened to share its transaction.
            Err(error) if replies.len() > 1 && error.kind() == ErrorKind::Store && not_applied(&error) => {
                for job in work.into_iter().zip(replies) {
                    self.write(vec![job]);
                }
            }
            Err(error) => {
                for reply in replies {
                    drop(reply.send(Err(error.again())));
                }
            }
        }
    }

    fn transact(&mut self, work: &[Ops], news: &mut News) -> Result<Vec<Vec<Outcome>>> {
        let transaction =
            self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(before_commit)?;
        // Read once the file is ours: waiting for it takes time.
        let now = self.clock.now();
        let floor = self.clock.wall_micros();
        let forgotten_before = schema::forgotten(&transaction)?;
        let mut rows = Rows::new(&transaction, forgotten_before, work.iter().map(Vec::len).sum());
        let mut outcomes = Vec::with_capacity(work.len());
        for ops in work {
            let mut answers = Vec::with_capacity(ops.len());
            for (name, op) in ops {
                let queue = rows.load(name)?;
                let applied =
                    apply_reaching(queue, op.clone(), now, floor, |claim| news.hears(&self.post, &claim.inbox));
                news.note(&applied, op);
                answers.push(applied.outcome);
            }
            outcomes.push(answers);
        }
        let mut forgotten = rows.store()?;
        self.transactions += 1;
        let look_around = self.transactions >= SWEEP_EVERY;
        if look_around {
            self.transactions = 0;
            schema::forget_dead(&transaction, now, &mut forgotten)?;
            memos::forget_ended(&transaction, floor, &mut forgotten)?;
        }
        if forgotten != forgotten_before {
            schema::set_forgotten(&transaction, forgotten)?;
        }
        transaction.commit().map_err(at_commit)?;
        self.trim |= look_around;
        Ok(outcomes)
    }

    fn inspect(&self, name: &Name) -> Result<NameView> {
        let now = self.clock.now();
        Ok(match rows::read(&self.connection, name)? {
            Some((queue, _)) => NameView::of(name.clone(), &queue, now),
            None => NameView::free(name.clone()),
        })
    }

    fn scan(&self, prefix: &str, after: Option<&Name>, limit: usize) -> Result<Vec<NameView>> {
        let now = self.clock.now();
        let mut statement = self
            .connection
            .prepare_cached("SELECT name, queue FROM names WHERE name >= ?1 AND name > ?2 ORDER BY name")
            .map_err(before_commit)?;
        let mut found = statement.query((prefix, after.map_or("", |name| name.as_str()))).map_err(before_commit)?;
        let mut views = Vec::new();
        while let Some(row) = found.next().map_err(before_commit)? {
            let name: String = row.get(0).map_err(before_commit)?;
            if !name.starts_with(prefix) || views.len() >= limit {
                break;
            }
            let queue = rows::bytes(row, 1).map_err(before_commit)?;
            let queue = Queue::from_bytes(&queue).map_err(|error| unreadable(&name, error))?;
            let view = NameView::of(Name::new(&name)?, &queue, now);
            if !view.is_free() {
                views.push(view);
            }
        }
        Ok(views)
    }
}

fn not_applied(error: &Error) -> bool {
    error.certainty() == Certainty::NotApplied
}
