//! A lone operation, done by whoever asks: nothing is pending that it could share a statement with, and two tasks
//! that wake each other would take longer than the statement.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::desk::{Desk, answered, only};
use super::lanes::{Hired, Kind, Lane, Task};
use super::link::Link;
use crate::error::Result;
use crate::machine::{Op, Outcome};
use crate::name::Name;

/// Counted as a worker until it is dropped.
pub(super) struct Errand {
    desk: Arc<Desk>,
    link: Option<Link>,
    has_row: bool,
    /// What is to be done; nothing once it is known what came of it, or somebody else does it.
    asked: Option<(Name, Op)>,
}

impl Errand {
    pub(super) fn new(desk: &Arc<Desk>, hired: Hired, name: Name, op: Op) -> Self {
        let Hired { link, has_row } = hired;
        Self { desk: desk.clone(), link: Some(link), has_row, asked: Some((name, op)) }
    }

    /// Does it, or leaves it to those who may wait for the row.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown: the statement may be on its way. Its connection is closed, as its
    /// answer would be the next one's. It is one statement by itself, so no transaction stays open.
    pub(super) async fn run(mut self) -> Result<Outcome> {
        // Not put back if this is dropped on the way.
        let (link, asked) = (self.link.take(), self.asked.as_ref());
        let done = match (&link, asked) {
            (Some(link), Some((name, op))) => self.desk.one(link, name, op, self.has_row).await,
            _ => Ok(None),
        };
        self.link = link;
        let asked = self.asked.take();
        match (done.transpose(), asked) {
            (Some(outcome), _) => outcome,
            (None, asked) => {
                let answer = self.leave(asked);
                drop(self);
                only(answered(answer).await?)
            }
        }
    }

    /// Leaves it to those who may wait for the row, and the connection with it.
    fn leave(&mut self, asked: Option<(Name, Op)>) -> oneshot::Receiver<super::lanes::Outcomes> {
        let (reply, answer) = oneshot::channel();
        if let Some((name, op)) = asked {
            let task = Task { kind: Kind::of(&op), ops: vec![(name.clone(), op)], reply };
            let mut state = self.desk.state();
            if let Some(link) = self.link.take() {
                state.idle.push(link);
            }
            if state.is_alone_full() {
                // Should its row not be locked, it need not wait for those whose rows are.
                let lane = state.push(task, false);
                self.desk.start(&mut state, lane);
            } else {
                state.push_alone(&name, [task]);
                self.desk.start(&mut state, Lane::Alone);
            }
        }
        answer
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        // One that was never begun, or that nobody waits for any longer: a release is done all the same. A claim must
        // not be, as it could come after its release.
        let unfinished = self.asked.take().filter(|(_, op)| matches!(op, Op::Release { .. }));
        let again = |asked| Task { kind: Kind::Release, ops: vec![asked], reply: oneshot::channel().0 };
        let mut state = self.desk.state();
        if let Some(link) = self.link.take() {
            state.idle.push(link);
        }
        state.dismiss(Lane::Work);
        if let Some(task) = unfinished.map(again) {
            state.push(task, false);
        }
        self.desk.start(&mut state, Lane::Work);
        drop(state);
        self.desk.worked.notify_one();
    }
}
