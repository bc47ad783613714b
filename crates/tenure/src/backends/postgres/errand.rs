//! A lone operation, done by whoever asks: nothing is pending that it could share a statement with, and two tasks that wake each other
//! would take longer than the statement.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::desk::Desk;
use super::lanes::{Kind, Lane, Task};
use super::link::Link;
use crate::machine::Op;
use crate::name::Name;

/// Counted as a worker until it is dropped.
pub(super) struct Errand {
    desk: Arc<Desk>,
    link: Option<Link>,
    task: Option<Task>,
    /// A release that is under way.
    release: Option<(Name, Op)>,
}

impl Errand {
    pub(super) fn new(desk: &Arc<Desk>, link: Link, task: Task) -> Self {
        Self { desk: desk.clone(), link: Some(link), task: Some(task), release: None }
    }

    /// Does it, or leaves it to those who may wait for the row.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the statement may be on its way. Its connection is closed, as its answer would be the
    /// next one's. It is one statement by itself, so no transaction stays open.
    pub(super) async fn run(mut self) {
        let (Some(link), Some(task)) = (self.link.take(), self.task.take()) else { return };
        self.release = task.ops.first().filter(|_| task.kind == Kind::Release).cloned();
        let left = self.desk.answer(Lane::Work, &link, vec![task]).await;
        (self.link, self.release) = (Some(link), None);
        if let Some(left) = left {
            self.desk.leave_alone(left, &mut self.link);
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        // One that was never begun, or that nobody waits for any longer: a release is done all the same. A claim must not be, as it
        // could come after its release.
        let again = |op| Task { kind: Kind::Release, ops: vec![op], reply: oneshot::channel().0 };
        let begun = self.release.take().map(again);
        let unfinished = self.task.take().filter(|task| task.kind == Kind::Release).or(begun);
        self.desk.give_back(self.link.take());
        let mut state = self.desk.state();
        state.dismiss(Lane::Work);
        if let Some(task) = unfinished {
            state.push(task, false);
        }
        self.desk.start(&mut state, Lane::Work);
        drop(state);
        self.desk.worked.notify_one();
    }
}
