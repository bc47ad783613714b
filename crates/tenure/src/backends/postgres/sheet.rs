//! The operations of one batch, what is known of each, and who is to be told.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::desk::odd;
use super::error::unavailable;
use super::lanes::{Kind, Outcomes, Task, only_name};
use crate::error::{Error, Result};
use crate::machine::{Op, Outcome};
use crate::name::Name;

/// How long renewals that are done wait at least, and at most, for those asked for with them, whose rows are locked: as
/// a rule that is over by then. In between it is a part of the shortest ttl, well before whoever asked would ask again.
const BRIEF: Duration = Duration::from_millis(20);
const BRIEF_MAX: Duration = Duration::from_secs(1);
const BRIEF_PART: u32 = 18;

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

    /// Whether somebody waits for several names, or several wait for a name each.
    pub(super) fn has_several_names(&self) -> bool {
        let of_left = self.left().into_iter().map(|index| &self.op(index).0);
        let of_all = self.ops.iter().map(|(name, _)| name);
        match self.kind() {
            Kind::Renew => only_name(of_all).is_none(),
            _ => only_name(of_left).is_none(),
        }
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

    /// The operations of which nothing is known, in transactions of about so many names; all of one name in the same.
    pub(super) fn left_by_names(&self, names_max: usize) -> Vec<Vec<usize>> {
        let mut by_name: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
        for index in self.left() {
            by_name.entry(&self.op(index).0).or_default().push(index);
        }
        let by_name: Vec<_> = by_name.into_values().collect();
        by_name.chunks(names_max).map(<[_]>::concat).collect()
    }

    /// What nothing is known of, name by name; and what remains to be done for those who asked for several names.
    pub(super) fn into_left(mut self) -> (Vec<Task>, Vec<impl Future<Output = ()> + Send + use<>>) {
        self.reply();
        let (mut tasks, mut partly) = (Vec::new(), Vec::new());
        for Asker { kind, ops, reply } in self.askers {
            let Some(reply) = reply else { continue };
            let Some((own, outcomes)) = self.ops.get(ops.clone()).zip(self.outcomes.get_mut(ops)) else { continue };
            let mut by_name: BTreeMap<&Name, Vec<usize>> = BTreeMap::new();
            for (index, (name, _)) in own.iter().enumerate().filter(|(index, _)| outcomes[*index].is_none()) {
                by_name.entry(name).or_default().push(index);
            }
            if by_name.values().any(|indexes| indexes.len() == own.len()) {
                tasks.push(Task { kind, ops: own.to_vec(), reply });
                continue;
            }
            let mut rest = Vec::new();
            for indexes in by_name.into_values() {
                let (reply, answer) = oneshot::channel();
                tasks.push(Task { kind, ops: indexes.iter().map(|index| own[*index].clone()).collect(), reply });
                rest.push(async move { (indexes, answer.await) });
            }
            partly.push(finish(reply, ttls(own), outcomes.iter_mut().map(Option::take).collect(), rest));
        }
        (tasks, partly)
    }
}

fn brief(ttl: Duration) -> Duration {
    (ttl / BRIEF_PART).clamp(BRIEF, BRIEF_MAX)
}

/// For how long, at the least, renewals that are asked for again have gone unanswered.
pub(super) fn since_asked(ops: &[(Name, Op)]) -> Duration {
    brief(ttls(ops).0)
}

/// The shortest and the longest ttl that is renewed.
fn ttls(ops: &[(Name, Op)]) -> (Duration, Duration) {
    let ttls = ops.iter().filter_map(|(_, op)| match op {
        Op::Renew { ttl, .. } => Some(*ttl),
        _ => None,
    });
    (ttls.clone().min().unwrap_or_default(), ttls.max().unwrap_or_default())
}

fn known(outcome: &mut Option<Result<Outcome>>) -> Result<Outcome> {
    outcome.take().unwrap_or_else(|| Err(odd()))
}

/// What is answered for an operation whose row is still locked.
pub(super) fn still_locked() -> Error {
    unavailable("somebody keeps the name's row locked")
}

/// Answers with what is known after a moment. What is not known by then is done all the same: it is waited for, as what
/// nobody waits for is not done any more.
async fn finish(
    reply: oneshot::Sender<Outcomes>,
    (shortest, longest): (Duration, Duration),
    mut outcomes: Vec<Option<Result<Outcome>>>,
    rest: Vec<impl Future<Output = (Vec<usize>, std::result::Result<Outcomes, oneshot::error::RecvError>)>>,
) {
    let mut rest: FuturesUnordered<_> = rest.into_iter().collect();
    let answered = async {
        while let Some((indexes, answer)) = rest.next().await {
            for (index, outcome) in indexes.into_iter().zip(answer.unwrap_or_default()) {
                outcomes[index] = Some(outcome);
            }
        }
    };
    let _ = timeout(brief(shortest), answered).await;
    let all = outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(|| Err(still_locked())));
    drop(reply.send(all.collect()));
    // By then a claim that was not renewed is dead.
    let _ = timeout(longest, rest.for_each(|_| std::future::ready(()))).await;
}
