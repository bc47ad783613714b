//! The operations of one batch, what is known of each, and who is to be told.

use std::ops::Range;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::desk::odd;
use super::error::unavailable;
use super::lanes::{Kind, Outcomes, Task};
use crate::error::{Error, Result};
use crate::machine::{Op, Outcome};
use crate::name::Name;

/// How long renewals that are done wait for those asked for with them, whose rows others have locked: as a rule that is over by then.
const BRIEF: Duration = Duration::from_millis(20);

struct Asker {
    kind: Kind,
    ops: Range<usize>,
    reply: Option<oneshot::Sender<Outcomes>>,
}

pub(super) struct Sheet {
    ops: Vec<(Name, Op)>,
    outcomes: Vec<Option<Result<Outcome>>>,
    askers: Vec<Asker>,
}

impl Sheet {
    pub(super) fn of(tasks: Vec<Task>) -> Self {
        let (mut ops, mut askers) = (Vec::new(), Vec::with_capacity(tasks.len()));
        for Task { kind, ops: own, reply } in tasks {
            askers.push(Asker { kind, ops: ops.len()..ops.len() + own.len(), reply: Some(reply) });
            ops.extend(own);
        }
        Self { outcomes: ops.iter().map(|_| None).collect(), ops, askers }
    }

    /// Of what kind they are; alone they may be of several.
    pub(super) fn kind(&self) -> Kind {
        self.askers.first().map_or(Kind::Other, |asker| asker.kind)
    }

    pub(super) fn ops(&self) -> Vec<&(Name, Op)> {
        self.ops.iter().collect()
    }

    pub(super) fn op(&self, index: usize) -> &(Name, Op) {
        &self.ops[index]
    }

    pub(super) fn note(&mut self, index: usize, outcome: Result<Outcome>) {
        if let Some(place) = self.outcomes.get_mut(index) {
            *place = Some(outcome);
        }
    }

    /// The same for whatever is not known.
    pub(super) fn fail(&mut self, error: &Error) {
        for place in self.outcomes.iter_mut().filter(|place| place.is_none()) {
            *place = Some(Err(error.again()));
        }
    }

    /// The operations of which nothing is known. What was answered is done, and not to be done again.
    pub(super) fn left(&self) -> Vec<usize> {
        let unanswered = self.askers.iter().filter(|asker| asker.reply.is_some());
        unanswered.flat_map(|asker| asker.ops.clone()).filter(|index| self.outcomes[*index].is_none()).collect()
    }

    /// Answers those for whom everything is known, so that nobody waits for what another one asked.
    pub(super) fn reply(&mut self) {
        for asker in self.askers.iter_mut().filter(|asker| asker.reply.is_some()) {
            let Some(own) = self.outcomes.get_mut(asker.ops.clone()) else { continue };
            if own.iter().all(Option::is_some)
                && let Some(reply) = asker.reply.take()
            {
                drop(reply.send(own.iter_mut().map(known).collect()));
            }
        }
    }

    /// What nothing is known of, one operation each; and what remains to be done for those who asked for more.
    pub(super) fn into_left(mut self) -> (Vec<Task>, Vec<impl Future<Output = ()> + Send + use<>>) {
        self.reply();
        let (mut tasks, mut partly) = (Vec::new(), Vec::new());
        for Asker { kind, ops, reply } in self.askers {
            let Some(reply) = reply else { continue };
            let Some((own, outcomes)) = self.ops.get(ops.clone()).zip(self.outcomes.get_mut(ops)) else { continue };
            if let [one] = own {
                tasks.push(Task { kind, ops: vec![one.clone()], reply });
                continue;
            }
            let mut rest = Vec::new();
            for (index, op) in own.iter().enumerate().filter(|(index, _)| outcomes[*index].is_none()) {
                let (reply, answer) = oneshot::channel();
                tasks.push(Task { kind, ops: vec![op.clone()], reply });
                rest.push(async move { (index, answer.await) });
            }
            partly.push(finish(reply, outcomes.iter_mut().map(Option::take).collect(), rest));
        }
        (tasks, partly)
    }
}

fn known(outcome: &mut Option<Result<Outcome>>) -> Result<Outcome> {
    outcome.take().unwrap_or_else(|| Err(odd()))
}

/// What is answered for an operation whose row is still locked.
pub(super) fn still_locked() -> Error {
    unavailable("somebody keeps the name's row locked")
}

/// Answers with what is known after a moment.
async fn finish(
    reply: oneshot::Sender<Outcomes>,
    mut outcomes: Vec<Option<Result<Outcome>>>,
    rest: Vec<impl Future<Output = (usize, std::result::Result<Outcomes, oneshot::error::RecvError>)>>,
) {
    let mut rest: FuturesUnordered<_> = rest.into_iter().collect();
    let answered = async {
        while let Some((index, answer)) = rest.next().await {
            outcomes[index] = answer.ok().and_then(|mut outcomes| outcomes.pop());
        }
    };
    let _ = timeout(BRIEF, answered).await;
    let all = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(still_locked())));
    drop(reply.send(all.collect()));
}
