//! What waits for a server, and what of it goes together.

use std::collections::VecDeque;
use std::sync::Arc;

use redis::Cmd;
use redis::aio::MultiplexedConnection;
use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::failure::{Answered, Failure};
use super::memo::MemoCall;
use super::op::Op;
use super::script::Script;
use crate::clock::Moment;

/// The most operations in one call, unless they come as one.
pub(super) const BATCH_MAX: usize = 64;

/// What is asked of a server.
#[derive(Clone)]
pub(in crate::backends) enum Work {
    /// Operations on names, batched with others.
    Ops(SmallVec<[Op; 1]>),
    /// A script of its own.
    Script { script: &'static Script, key: String, args: Vec<String> },
    /// A memo that is read or written.
    Memo(Arc<MemoCall>),
    /// Any other command.
    Command(Cmd),
}

pub(super) struct Job {
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Answered>,
    /// Whether it is sent though nobody waits for the answer any more.
    pub(super) keep: bool,
    /// Whether it was already put back once because the connection turned out to be closed.
    pub(super) again: bool,
    /// Redirected here by a cluster that is moving the name.
    pub(super) asking: bool,
}

#[derive(Default)]
pub(super) struct Lane {
    pub(super) connection: Option<MultiplexedConnection>,
    pub(super) connecting: bool,
    /// Tells the present connection's answers from those of the ones before.
    pub(super) generation: u64,
    pub(super) pending: VecDeque<Job>,
    pub(super) pending_ops: usize,
    pub(super) in_flight: usize,
    /// When the present connection last answered, or was last asked after having answered everything.
    pub(super) progress: Moment,
}

impl Lane {
    pub(super) fn push_back(&mut self, job: Job) {
        self.pending_ops += job.size();
        self.pending.push_back(job);
    }

    pub(super) fn push_front(&mut self, job: Job) {
        self.pending_ops += job.size();
        self.pending.push_front(job);
    }

    /// Answers that still come are told to whoever asked; nothing more is sent there.
    pub(super) fn leave_connection(&mut self) {
        self.connection = None;
        self.generation += 1;
        self.in_flight = 0;
    }

    /// The next jobs that go as one call. Those whose caller has left are dropped unsent.
    pub(super) fn take_batch(&mut self, together: bool) -> Vec<Job> {
        let mut batch = Vec::new();
        let mut ops = 0;
        while let Some(job) = self.pending.front() {
            let size = job.size();
            let joins = together && matches!(job.work, Work::Ops(_)) && ops > 0 && ops + size <= BATCH_MAX;
            if !batch.is_empty() && !joins {
                break;
            }
            self.pending_ops = self.pending_ops.saturating_sub(size);
            let Some(job) = self.pending.pop_front() else { break };
            if !job.keep && job.reply.is_closed() {
                continue;
            }
            if let Work::Ops(_) = job.work {
                ops += size;
            }
            batch.push(job);
        }
        // Releases first: what is claimed in the same call may then share a token, and finds more names free.
        if batch.len() > 1 {
            batch.sort_by_key(|job| !job.only_releases());
        }
        batch
    }
}

impl Job {
    /// Tells whoever asked. What was sent once before may have been done then, however it failed now.
    pub(super) fn fail(self, failure: Failure) {
        let error = failure.error.unknown_if(self.again);
        drop(self.reply.send(Err(Failure { error, ..failure })));
    }

    /// Whether it may go before what was asked earlier: it ends claims that were answered, so that it overtakes none
    /// of them.
    pub(super) fn only_releases(&self) -> bool {
        matches!(&self.work, Work::Ops(ops) if ops.iter().all(Op::is_numbered_release))
    }

    pub(super) fn size(&self) -> usize {
        match &self.work {
            Work::Ops(ops) => ops.len(),
            Work::Script { .. } | Work::Memo(_) | Work::Command(_) => 1,
        }
    }
}
