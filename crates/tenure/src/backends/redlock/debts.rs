//! The ends of claims that a node has not acknowledged: delivered when it is back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use redis::Value;
use tokio::time::timeout;

use super::fleet::Fleet;
use super::lock;
use super::wire::{self, Ending};
use crate::clock::Moment;
use crate::error::Result;

/// How many claims are remembered that a node may still have, and for how long.
const DEBTS_MAX: usize = 4096;
const DEBT_AGE_MAX: Duration = Duration::from_secs(600);
/// Debts are paid twice: what a node had not read before it hung may come after the first time.
pub(super) const DEBT_AGAIN: Duration = Duration::from_millis(500);
/// How many are paid in one call.
const PAID_TOGETHER: usize = 256;
/// How long the end of a claim may go unanswered before it becomes a debt.
const ENDING_MAX: Duration = Duration::from_secs(1);

/// A claim that a node may have, and when to end it there.
pub(super) struct Debt {
    ending: Ending,
    since: Moment,
    due: Moment,
    /// Whether it was paid once already.
    again: bool,
}

impl Fleet {
    /// Sees to the ends of a claim that are under way on `open` nodes; those that fail become debts.
    pub(super) fn see_to<F>(
        self: &Arc<Self>,
        mut calls: FuturesUnordered<F>,
        mut open: u32,
        failed: Vec<usize>,
        ending: Ending,
    ) where
        F: Future<Output = (usize, Vec<Result<Value>>)> + Send + 'static,
    {
        failed.into_iter().for_each(|index| self.owe(index, ending.clone()));
        if calls.is_empty() {
            return;
        }
        let fleet = self.clone();
        self.runtime.spawn(async move {
            let limit = fleet.clock.now() + ENDING_MAX;
            while let Some(Some((index, answers))) = fleet.before(limit, calls.next()).await {
                open &= !(1 << index);
                if answers.iter().any(Result::is_err) {
                    fleet.owe(index, ending.clone());
                }
            }
            (0..fleet.members.len())
                .filter(|index| open & (1 << index) != 0)
                .for_each(|index| fleet.owe(index, ending.clone()));
        });
    }

    fn owe(&self, index: usize, ending: Ending) {
        let now = self.clock.now();
        let mut debts = lock(&self.members[index].debts);
        let same = |debt: &Debt| {
            (debt.ending.id, debt.ending.token, debt.ending.number) == (ending.id, ending.token, ending.number)
        };
        // Ends are repeated: the latest are the likeliest to come again.
        if debts.iter().rev().take(64).any(same) {
            return;
        }
        if debts.len() >= DEBTS_MAX {
            debts.pop_front();
        }
        debts.push_back(Debt { ending, since: now, due: now, again: false });
        drop(debts);
        self.bell.notify_one();
    }

    /// Ends what a node that is back may have of old claims. Whether there is more to do.
    pub(super) async fn pay(self: &Arc<Self>, index: usize) -> bool {
        let now = self.clock.now();
        let due: Vec<Debt> = {
            let mut debts = lock(&self.members[index].debts);
            let (due, later): (VecDeque<Debt>, VecDeque<Debt>) =
                std::mem::take(&mut *debts).into_iter().partition(|debt| debt.due <= now);
            *debts = later;
            due.into()
        };
        let mut paid = Vec::with_capacity(due.len());
        for some in due.chunks(PAID_TOGETHER) {
            let works = wire::together(some.iter().map(|debt| wire::release(self.layout(), &debt.ending)));
            let apart = works.len() > 1;
            let calls = works.into_iter().map(|work| self.ask(index, work, false)).map(|call| async {
                match call {
                    Some(call) => matches!(timeout(ENDING_MAX, call).await, Ok(Ok(_))),
                    None => false,
                }
            });
            let answered = join_all(calls).await;
            paid.extend(if apart { answered } else { vec![answered == [true]; some.len()] });
        }
        let mut debts = lock(&self.members[index].debts);
        for (mut debt, paid) in due.into_iter().zip(paid) {
            if debt.again && paid || now.since(debt.since) > DEBT_AGE_MAX {
                continue;
            }
            debt.again |= paid;
            debt.due = now + DEBT_AGAIN;
            debts.push_back(debt);
        }
        !debts.is_empty()
    }
}
