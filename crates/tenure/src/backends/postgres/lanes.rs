//! What is pending, and what of it goes together.
//!
//! Four kinds of workers, so that none has to wait for another's trouble: most operations, renewals, renewals that
//! are asked for again because the first went unanswered, and names whose row somebody else has locked. Only the last
//! wait for a row, one worker for each name, whatever is asked of it meanwhile.

use std::collections::{HashMap, HashSet, VecDeque};

use tokio::sync::oneshot;

use super::idle::Idle;
use super::link::Link;
use crate::error::{Error, Result};
use crate::machine::{Op, Outcome};
use crate::name::Name;

/// The most operations in one statement, unless they come as one, or are all of one name.
pub(super) const BATCH_MAX: usize = 64;
/// The most renewals of one name in one transaction: the server ends one that stands still for 2 s, and each looks for
/// its claim in the queue.
const ALONE_MAX: usize = 4096;
/// How many renewals any other operation counts as, which may look through the whole queue, more than once.
const ALONE_COST: usize = 4;
/// How many operations may wait before more are refused.
const PENDING_MAX: usize = 200_000;
/// How many names are remembered to have a row.
const ROWS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Release,
    Claim,
    Renew,
    /// What needs the rule: the queue is read, changed and written.
    Other,
}

impl Kind {
    pub(super) fn of(op: &Op) -> Self {
        match op {
            Op::Claim(request) if request.reenter.is_none() && request.presumed.is_zero() => Self::Claim,
            Op::Renew { .. } => Self::Renew,
            Op::Release { .. } => Self::Release,
            _ => Self::Other,
        }
    }
}

/// Who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Work,
    Renew,
    /// Renewals that are asked for again: each on a connection that nothing hangs on.
    Fresh,
    /// One name at a time, whose row may be locked for long.
    Alone,
}

impl Lane {
    /// How many work at the same time, each with a connection.
    const fn workers_max(self) -> usize {
        match self {
            Self::Work => 4,
            Self::Renew => 1,
            Self::Fresh => 2,
            Self::Alone => 3,
        }
    }
}

/// What whoever does an operation himself works with.
pub(super) struct Hired {
    pub(super) link: Link,
    /// Whether the name is known to have a row.
    pub(super) has_row: bool,
}

/// One result for each operation.
pub(super) type Outcomes = Vec<Result<Outcome>>;

/// Operations of one kind that were asked for together: one, or renewals of one name or several.
pub(super) struct Task {
    pub(super) kind: Kind,
    pub(super) ops: Vec<(Name, Op)>,
    pub(super) reply: oneshot::Sender<Outcomes>,
}

impl Task {
    pub(super) fn fail(self, error: &Error) {
        let all = self.ops.iter().map(|_| Err(error.again())).collect();
        drop(self.reply.send(all));
    }

    /// Whoever asked has left, and was told nothing. A release is done all the same; and it may overtake what it
    /// ends, which therefore must not come after it.
    pub(super) fn is_left(&self) -> bool {
        self.reply.is_closed() && self.kind != Kind::Release
    }

    /// The name that all of it is about, if it is one.
    pub(super) fn only_name(&self) -> Option<&Name> {
        only_name(self.ops.iter().map(|(name, _)| name))
    }
}

/// Whether the task has more of the one name that the batch begins with.
fn is_more_of_one_name(batch: &[Task], size: usize, task: &Task) -> bool {
    let first = batch.first().map(Task::only_name);
    first.is_none_or(|first| first.is_some() && first == task.only_name() && size < ALONE_MAX)
}

/// The one name that all of these are.
pub(super) fn only_name<'a>(mut names: impl Iterator<Item = &'a Name>) -> Option<&'a Name> {
    let first = names.next()?;
    names.all(|name| name == first).then_some(first)
}

#[derive(Default)]
pub(super) struct State {
    releases: VecDeque<Task>,
    others: VecDeque<Task>,
    renewals: VecDeque<Task>,
    repeated: VecDeque<Task>,
    /// The names that are dealt with alone, and what is asked of them meanwhile.
    alone: HashMap<Name, VecDeque<Task>>,
    /// Those of them that nobody works at yet.
    waiting: VecDeque<Name>,
    pending: usize,
    working: [usize; 4],
    pub(super) idle: Idle,
    /// Names whose row was seen.
    pub(super) rows: HashSet<Name>,
    /// Names that others wanted too.
    pub(super) contended: HashSet<Name>,
}

impl State {
    pub(super) fn is_full(&self) -> bool {
        self.pending >= PENDING_MAX
    }

    /// Adds a task to where it belongs; whose workers may be too few now.
    pub(super) fn push(&mut self, task: Task, fresh: bool) -> Lane {
        self.pending += task.ops.len();
        if fresh {
            self.repeated.push_back(task);
            return Lane::Fresh;
        }
        // Behind what is asked of this name already: it would find the row locked.
        if let Some(behind) = task.only_name().and_then(|name| self.alone.get_mut(name)) {
            behind.push_back(task);
            return Lane::Alone;
        }
        match task.kind {
            Kind::Release => self.releases.push_back(task),
            Kind::Renew => {
                self.renewals.push_back(task);
                return Lane::Renew;
            }
            Kind::Claim | Kind::Other => self.others.push_back(task),
        }
        Lane::Work
    }

    /// A connection for an operation that its caller may do himself, counted as a worker: nothing else goes on that
    /// it could share a statement with, or have to wait for.
    pub(super) fn hire_caller(&mut self, name: &Name, op: &Op) -> Option<Hired> {
        let is_plain = matches!(Kind::of(op), Kind::Claim | Kind::Release);
        let is_quiet = self.working[Lane::Work as usize] == 0 && self.releases.is_empty() && self.others.is_empty();
        if !is_plain || !is_quiet || self.alone.contains_key(name) || self.contended.contains(name) {
            return None;
        }
        let link = self.idle.pop()?;
        self.working[Lane::Work as usize] += 1;
        Some(Hired { link, has_row: self.rows.contains(name) })
    }

    /// A name that may have to be waited for. What is asked of it comes after what is there.
    pub(super) fn push_alone(&mut self, name: &Name, tasks: impl IntoIterator<Item = Task>) {
        if !self.alone.contains_key(name) {
            self.waiting.push_back(name.clone());
        }
        let behind = self.alone.entry(name.clone()).or_default();
        for task in tasks {
            self.pending += task.ops.len();
            behind.push_back(task);
        }
    }

    /// Counts one more worker, if there is work for it and it is not one too many.
    pub(super) fn hire(&mut self, lane: Lane) -> bool {
        let has_work = match lane {
            Lane::Work => !self.releases.is_empty() || !self.others.is_empty(),
            Lane::Renew => !self.renewals.is_empty(),
            Lane::Fresh => !self.repeated.is_empty(),
            Lane::Alone => !self.waiting.is_empty(),
        };
        let hired = has_work && self.working[lane as usize] < lane.workers_max();
        self.working[lane as usize] += usize::from(hired);
        hired
    }

    pub(super) fn dismiss(&mut self, lane: Lane) {
        self.working[lane as usize] = self.working[lane as usize].saturating_sub(1);
    }

    /// What goes next, together: releases before others, then what was asked for first with all of its kind.
    pub(super) fn next_batch(&mut self, lane: Lane) -> Vec<Task> {
        let queue = match lane {
            Lane::Work if self.releases.is_empty() => &mut self.others,
            Lane::Work => &mut self.releases,
            Lane::Renew => &mut self.renewals,
            Lane::Fresh => &mut self.repeated,
            Lane::Alone => return self.next_alone(),
        };
        let (mut batch, mut later, mut size) = (Vec::new(), VecDeque::new(), 0);
        let mut kind = None;
        while let Some(task) = queue.pop_front() {
            if task.is_left() {
                self.pending -= task.ops.len();
                continue;
            }
            let joins = kind.is_none_or(|kind| kind == task.kind)
                && (size + task.ops.len() <= BATCH_MAX || is_more_of_one_name(&batch, size, &task));
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

    pub(super) fn has_row(&mut self, name: &Name) {
        if !self.rows.contains(name) {
            if self.rows.len() >= ROWS_MAX {
                self.rows.clear();
            }
            self.rows.insert(name.clone());
        }
    }

    /// Whether all who deal with names alone are busy, and may be for long.
    pub(super) fn is_alone_full(&self) -> bool {
        self.working[Lane::Alone as usize] >= Lane::Alone.workers_max()
    }

    /// Whether there are more names to be dealt with alone than are.
    pub(super) fn has_more_alone(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether there are more renewals that are asked for again.
    pub(super) fn has_more_repeated(&self) -> bool {
        !self.repeated.is_empty()
    }

    /// All that is asked of one name, in order. Until [`settled`](Self::settled), nobody else deals with it.
    fn next_alone(&mut self) -> Vec<Task> {
        while let Some(name) = self.waiting.pop_front() {
            let Some(behind) = self.alone.get_mut(&name) else { continue };
            let (mut batch, mut size) = (Vec::new(), 0);
            while size < ALONE_MAX
                && let Some(task) = behind.pop_front()
            {
                self.pending -= task.ops.len();
                if !task.is_left() {
                    size += task.ops.len() * if task.kind == Kind::Renew { 1 } else { ALONE_COST };
                    batch.push(task);
                }
            }
            if !batch.is_empty() {
                return batch;
            }
            self.alone.remove(&name);
        }
        Vec::new()
    }

    /// What was asked of a name alone is answered. What was asked meanwhile takes its turn.
    pub(super) fn settled(&mut self, name: &Name) {
        if self.alone.get(name).is_some_and(|behind| !behind.is_empty()) {
            self.waiting.push_back(name.clone());
        } else {
            self.alone.remove(name);
        }
    }
}
