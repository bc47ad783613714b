//! The workers: each takes what is pending together, by one statement where it is the plain case, by the rule where
//! not.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::desk::Desk;
use super::error::unavailable;
use super::lanes::{BATCH_MAX, Kind, Lane, Task};
use super::link::Link;
use super::rule::Wait;
use super::sheet::{Sheet, still_locked};
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{Op, Outcome, Standing};
use crate::name::Name;

/// How many names are remembered as contended.
const CONTENDED_MAX: usize = 4096;

/// How long a renewal that is asked for again may take to connect, and then to be answered: what is asked for after
/// it waits behind it, and whoever is asked by then may answer.
const FRESH_MAX: Duration = Duration::from_secs(3);

/// How often operations of one name that the store refuses are parted: enough to find a single one of them.
const REFUSED_MAX: u32 = 32;

/// What is done for a lane, if that is not too late there.
///
/// # Cancel safety
///
/// As that of the work; of renewals that is: at worst claims live longer.
async fn within<T>(lane: Lane, work: impl Future<Output = T>) -> Option<T> {
    match lane {
        Lane::Fresh => timeout(FRESH_MAX, work).await.ok(),
        _ => Some(work.await),
    }
}

/// Whether the store refuses what it was asked: nothing of it was applied, and parts of it may do.
fn is_refused(error: &Error) -> bool {
    error.kind() == ErrorKind::Store && error.certainty() == Certainty::NotApplied
}

fn not_connected() -> Error {
    unavailable(&format!("no answer from PostgreSQL within {FRESH_MAX:?} of connecting"))
}

impl Desk {
    /// Works until nothing of its lane is pending.
    ///
    /// # Cancel safety
    ///
    /// Not to be cancelled: a worker is counted until it ends.
    pub(super) async fn work(self: Arc<Self>, lane: Lane, mut link: Option<Link>) {
        loop {
            let mut tasks = {
                let mut state = self.state();
                let tasks = state.next_batch(lane);
                if tasks.is_empty() {
                    state.dismiss(lane);
                    break;
                }
                link = link.filter(|link| !link.is_closed()).or_else(|| state.idle.pop());
                tasks
            };
            let alone = tasks.first().and_then(Task::only_name).filter(|_| lane == Lane::Alone).cloned();
            let open = match link.take().filter(|link| !link.is_closed()) {
                Some(open) => Ok(open),
                None => within(lane, self.open_link()).await.unwrap_or_else(|| Err(not_connected())),
            };
            match open {
                Ok(open) => {
                    // Whoever gave up while it was opened may have released it since.
                    tasks.retain(|task| !task.is_left());
                    let left = within(lane, self.answer(lane, &open, tasks)).await;
                    if left.is_none() {
                        open.give_up();
                    }
                    link = Some(open);
                    if let Some(left) = left.flatten() {
                        self.leave_alone(left, &mut link);
                    }
                }
                Err(error) => tasks.into_iter().for_each(|task| task.fail(&error)),
            }
            if let Some(name) = alone {
                self.state().settled(&name);
            }
        }
        self.give_back(link);
        self.worked.notify_one();
    }

    /// What is left of a batch goes name by name, by workers who have time to wait. The first of them gets this one's
    /// connection.
    pub(super) fn leave_alone(self: &Arc<Self>, left: Sheet, link: &mut Option<Link>) {
        let (tasks, partly) = left.into_left();
        for rest in partly {
            self.runtime.spawn(rest);
        }
        let mut state = self.state();
        if let Some(link) = link.take() {
            state.idle.push(link);
        }
        for task in tasks {
            if let Some(name) = task.only_name().cloned() {
                state.push_alone(&name, [task]);
                self.start(&mut state, Lane::Alone);
            }
        }
    }

    /// Answers what can be answered without waiting for a row that somebody else has locked, and gives back the rest.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown, and the connection of no use.
    pub(super) async fn answer(&self, lane: Lane, link: &Link, tasks: Vec<Task>) -> Option<Sheet> {
        let mut sheet = Sheet::of(tasks);
        if lane == Lane::Alone {
            let all: Vec<usize> = sheet.left();
            // Others are not to wait for long because somebody keeps some rows locked; whoever asked for those asks
            // again.
            let wait = if self.state().has_more_alone() { Wait::InTurn } else { Wait::Long };
            Box::pin(self.by_rule(link, &mut sheet, &all, wait)).await;
            sheet.reply();
            return None;
        }
        let plain = self.plainly(link, sheet.kind(), &sheet.ops()).await;
        match plain {
            Ok(plain) => plain.into_iter().for_each(|(index, outcome)| sheet.note(index, Ok(outcome))),
            // One of their rows cannot be dealt with; which one, the rule finds out.
            Err(error) if sheet.ops().len() > 1 && is_refused(&error) => {}
            Err(error) => sheet.fail(&error),
        }
        // Before anything else: nobody waits for what others still have to.
        sheet.reply();
        // Others are not to wait for the row of one name.
        let has_others = sheet.has_several_names() || (lane == Lane::Fresh && self.state().has_more_repeated());
        // Of one name those who may wait for its row know at once; unless all of them do.
        if has_others || self.state().is_alone_full() {
            for some in sheet.left_by_names(BATCH_MAX) {
                Box::pin(self.by_rule(link, &mut sheet, &some, Wait::Not)).await;
                sheet.reply();
            }
        }
        let left = sheet.left();
        if left.is_empty() {
            return None;
        }
        if lane != Lane::Fresh || has_others {
            return Some(sheet);
        }
        // It was asked before, and whoever deals with it alone may hang.
        Box::pin(self.by_rule(link, &mut sheet, &left, Wait::Briefly)).await;
        sheet.fail(&still_locked());
        sheet.reply();
        None
    }

    /// By one statement. What it does not answer was not the plain case, or was locked.
    async fn plainly(&self, link: &Link, kind: Kind, ops: &[&(Name, Op)]) -> Result<HashMap<usize, Outcome>> {
        let apart = self.contended(ops);
        match kind {
            Kind::Claim => self.claim(link, ops, &apart).await,
            Kind::Release => self.release(link, ops, &apart).await,
            Kind::Renew => self.renew(link, ops, &apart).await,
            Kind::Other => Ok(HashMap::new()),
        }
    }

    /// By the rule (on the heap, as the plain case has no need of it): in one transaction, or, should the store refuse
    /// it, one for each name. What was locked is left.
    async fn by_rule(&self, link: &Link, sheet: &mut Sheet, which: &[usize], wait: Wait) {
        let ops: Vec<(Name, Op)> = which.iter().map(|index| sheet.op(*index).clone()).collect();
        let ops: Vec<&(Name, Op)> = ops.iter().collect();
        let outcomes = match self.by_the_rule(link, &ops, wait).await {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| outcome.map(Ok)).collect(),
            Err(error) if ops.len() > 1 && is_refused(&error) => {
                let mut outcomes = Vec::with_capacity(ops.len());
                for of_one_name in ops.chunk_by(|one, next| one.0 == next.0) {
                    outcomes.extend(self.by_parts(link, of_one_name, wait).await);
                }
                outcomes
            }
            Err(error) => ops.iter().map(|_| Some(Err(error.again()))).collect::<Vec<_>>(),
        };
        self.note_contended(&ops, &outcomes);
        for (index, outcome) in which.iter().zip(outcomes) {
            if let Some(outcome) = outcome {
                sheet.note(*index, outcome);
            }
        }
    }

    /// Operations of one name by the rule, in halves of what the store refuses, until that is found, or it is the whole
    /// name.
    async fn by_parts(&self, link: &Link, ops: &[&(Name, Op)], wait: Wait) -> Vec<Option<Result<Outcome>>> {
        let (mut parts, mut refused, mut outcomes) = (vec![ops], 0, Vec::with_capacity(ops.len()));
        while let Some(part) = parts.pop() {
            match self.by_the_rule(link, part, wait).await {
                Ok(known) => outcomes.extend(known.into_iter().map(|outcome| outcome.map(Ok))),
                Err(error) if part.len() > 1 && refused < REFUSED_MAX && is_refused(&error) => {
                    refused += 1;
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
                Err(error) => outcomes.extend(part.iter().map(|_| Some(Err(error.again())))),
            }
        }
        outcomes
    }

    /// Which of them are about names that others wanted when this client last looked: the plain statement would be in
    /// vain, and a commit.
    fn contended(&self, ops: &[&(Name, Op)]) -> Vec<bool> {
        let state = self.state();
        if state.contended.is_empty() {
            return Vec::new();
        }
        ops.iter().map(|(name, _)| state.contended.contains(name)).collect()
    }

    fn note_contended(&self, ops: &[&(Name, Op)], outcomes: &[Option<Result<Outcome>>]) {
        let mut state = self.state();
        for ((name, _), outcome) in ops.iter().zip(outcomes) {
            match outcome {
                Some(Ok(Outcome::Stands(Standing { state: Err(_), .. }) | Outcome::Moved(_) | Outcome::Busy(_))) => {
                    if state.contended.len() >= CONTENDED_MAX {
                        state.contended.clear();
                    }
                    state.contended.insert(name.clone());
                }
                Some(Ok(Outcome::Stands(_))) => drop(state.contended.remove(name)),
                _ => {}
            }
        }
    }
}
