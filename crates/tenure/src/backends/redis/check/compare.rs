//! What the server said beside what the machine said.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use redis::Value;

use super::super::wire;
use super::history::History;
use crate::backend::{Block, Claimed, Event, Place, Released, Renewed, Standing};
use crate::clock::{Moment, micros};
use crate::error::Loss;
use crate::machine::{Applied, BreakMark, Claim, Grant, Granted, Op, Outcome, Queue, Shape};
use crate::owner::Owner;
use crate::token::Token;

pub(super) type Same = Result<(), String>;

/// The machine's numbers (or tokens) of a name beside the server's: one for one, and in the same order.
#[derive(Debug, Default)]
pub(super) struct Pairs(BTreeMap<u64, u64>);

impl Pairs {
    fn meet(&mut self, machine: u64, redis: u64) -> Same {
        if let Some(known) = self.0.get(&machine) {
            return same("number or token", &redis, known);
        }
        let below = self.0.range(..machine).next_back().is_none_or(|(_, known)| *known < redis);
        let above = self.0.range(machine..).next().is_none_or(|(_, known)| *known > redis);
        self.0.insert(machine, redis);
        if below && above { Ok(()) } else { Err(format!("{redis} is out of order for {machine} in {:?}", self.0)) }
    }

    /// The server's for one of the machine's, which may lie within a block.
    pub(super) fn redis(&self, machine: u64) -> u64 {
        let below = self.0.range(..=machine).next_back();
        below.filter(|(from, _)| machine - **from < 64).map_or(machine, |(from, redis)| redis + (machine - from))
    }

    pub(super) fn machines(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }
}

pub(super) fn same<T: PartialEq + Debug>(what: &str, redis: &T, machine: &T) -> Same {
    if redis == machine { Ok(()) } else { Err(format!("{what}: the server has {redis:?}, the machine {machine:?}")) }
}

fn near(what: &str, redis: u64, machine: u64, slack: u64) -> Same {
    if redis.abs_diff(machine) <= slack {
        return Ok(());
    }
    Err(format!("{what}: the server has {redis} us, the machine {machine} us, more than {slack} us apart"))
}

impl History {
    /// The answer to an operation.
    pub(super) fn compare_answer(&mut self, op: &Op, value: &Value, outcome: &Outcome, slack: u64) -> Same {
        let wrong = || Err(format!("the server answered {value:?}, the machine {outcome:?}"));
        let failed = |error: crate::Error| error.to_string();
        match op {
            Op::Claim(request) => {
                match (wire::claimed(value, (request.shape, request.ttl), self.asked_at).map_err(failed)?, outcome) {
                    (Claimed::Stands(redis), Outcome::Stands(machine)) => self.compare_standing(&redis, machine, slack),
                    (Claimed::Busy(redis), Outcome::Busy(machine)) => compare_place(&redis, machine, slack),
                    (Claimed::Refused(redis), Outcome::Refused(machine)) => same("refusal", &redis, machine),
                    _ => wrong(),
                }
            }
            Op::Renew { .. } => match (wire::renewed(value).map_err(failed)?, outcome) {
                (Renewed::Stands(redis), Outcome::Stands(machine)) => self.compare_standing(&redis, machine, slack),
                (Renewed::Broken { by, reason }, Outcome::Broken(mark)) => compare_mark(&by, &reason, mark),
                (Renewed::Gone, Outcome::Gone) => Ok(()),
                _ => wrong(),
            },
            Op::Release { .. } => match (wire::released(value).map_err(failed)?, outcome) {
                (Released::Yes, Outcome::Released)
                | (Released::Holds, Outcome::Holds)
                | (Released::NotFound, Outcome::Gone) => Ok(()),
                (Released::Broken { by, reason }, Outcome::Broken(mark)) => compare_mark(&by, &reason, mark),
                _ => wrong(),
            },
            Op::NextBlock { .. } => match (wire::block(value).map_err(failed)?, wire::renewed(value), outcome) {
                (Block::Moved(redis), _, Outcome::Moved(machine)) => self.compare_standing(&redis, machine, slack),
                (Block::Given(_), Ok(Renewed::Stands(redis)), Outcome::Stands(machine)) => {
                    self.compare_standing(&redis, machine, slack)
                }
                // It waits: nobody who has a block asks so.
                (Block::Gone, Ok(Renewed::Stands(redis)), Outcome::Stands(machine)) => {
                    self.compare_standing(&redis, machine, slack)
                }
                (Block::Gone, Ok(Renewed::Gone), Outcome::Gone) => Ok(()),
                (Block::Broken { by, reason }, _, Outcome::Broken(mark)) => compare_mark(&by, &reason, mark),
                _ => wrong(),
            },
            Op::Break { .. } => {
                let ended = match outcome {
                    Outcome::Evicted(evicted) => evicted.len(),
                    _ => 0,
                };
                same("ended", &wire::ended(value).map_err(failed)?, &ended)
            }
            Op::BreakWaiter { .. } => {
                let ended = usize::from(matches!(outcome, Outcome::WaiterEnded { .. }));
                same("ended a waiter", &wire::ended(value).map_err(failed)?, &ended)
            }
            Op::Skip { .. } => wrong(),
        }
    }

    fn compare_standing(&mut self, redis: &Standing, machine: &Standing, slack: u64) -> Same {
        self.numbers.meet(machine.number, redis.number)?;
        same("ttl", &redis.ttl, &machine.ttl)?;
        match (&redis.state, &machine.state) {
            (Ok(redis), Ok(machine)) => self.compare_grant(redis, machine),
            (Err(redis), Err(machine)) => compare_place(redis, machine, slack),
            _ => Err(format!("the server says {redis:?}, the machine {machine:?}")),
        }
    }

    fn compare_grant(&mut self, redis: &Grant, machine: &Grant) -> Same {
        let length = |grant: &Grant| grant.block_end.0 - grant.token.0;
        self.tokens.meet(machine.token.0, redis.token.0)?;
        self.tokens.meet(machine.block_end.0, redis.block_end.0)?;
        same("length of the block", &length(redis), &length(machine))?;
        same("moment of the grant", &redis.at, &machine.at)
    }

    /// What was said on the channels, in the order of each: grants, and ends by a break.
    pub(super) fn compare_news(&mut self, op: &Op, applied: &Applied, news: &mut Vec<(Arc<str>, Event)>) -> Same {
        let mut expected = applied.grants.clone();
        let evicted = if let Outcome::Evicted(evicted) = &applied.outcome { evicted.as_slice() } else { &[] };
        let breaks = expected.len();
        expected.extend_from_slice(evicted);
        if let Outcome::WaiterEnded { id, inbox, number } = &applied.outcome {
            let grant = Grant { token: Token(0), block_end: Token(0), at: Moment(0) };
            expected.push(Granted { id: *id, inbox: inbox.clone(), grant, number: *number });
        }
        for (index, granted) in expected.iter().enumerate().filter(|(_, granted)| !granted.inbox.is_empty()) {
            let is_break = index >= breaks;
            let at = news.iter().position(|(channel, event)| {
                *channel == granted.inbox && matches!(event, Event::Ended { .. }) == is_break
            });
            let Some(at) = at else { return Err(format!("nobody told {granted:?}; break: {is_break}")) };
            match (news.remove(at).1, op) {
                (Event::Granted { id, grant, number }, _) => {
                    same("who is told of a grant", &id, &granted.id)?;
                    self.numbers.meet(granted.number, number)?;
                    self.compare_grant(&grant, &granted.grant)?;
                }
                (
                    Event::Ended { id, number, loss: Loss::Broken { by, reason } },
                    Op::Break { by: b, reason: r, .. } | Op::BreakWaiter { by: b, reason: r, .. },
                ) => {
                    same("who is told of a break", &id, &granted.id)?;
                    self.numbers.meet(granted.number, number)?;
                    same("by and reason", &(&*by, &*reason), &(&**b, &**r))?;
                }
                (event, _) => return Err(format!("a strange event: {event:?}")),
            }
        }
        Ok(())
    }

    /// The whole state, of what lives at this moment.
    pub(super) fn compare_state(&mut self, redis: &Queue, now: Moment, slack: u64) -> Same {
        let live = |queue: &Queue| -> Vec<Claim> {
            queue.claims.iter().filter(|claim| claim.expires > now).cloned().collect()
        };
        let (theirs, ours) = (live(redis), live(&self.queue));
        let ids = |claims: &[Claim]| claims.iter().map(|claim| claim.id).collect::<Vec<_>>();
        same("the claims", &ids(&theirs), &ids(&ours))?;
        for (redis, machine) in theirs.iter().zip(&ours) {
            self.compare_claim(redis, machine, slack).map_err(|error| format!("claim {}: {error}", redis.id))?;
        }
        let marks = |queue: &Queue| -> BTreeMap<u64, BreakMark> {
            queue.marks.iter().filter(|mark| mark.until > now).map(|mark| (mark.claim.0, mark.clone())).collect()
        };
        let (theirs, ours) = (marks(redis), marks(&self.queue));
        same("the marks", &theirs.keys().collect::<Vec<_>>(), &ours.keys().collect())?;
        for (redis, machine) in theirs.values().zip(ours.values()) {
            compare_mark(&redis.by, &redis.reason, machine)?;
            near("end of a mark", redis.until.0, machine.until.0, slack)?;
        }
        Ok(())
    }

    fn compare_claim(&mut self, redis: &Claim, machine: &Claim, slack: u64) -> Same {
        self.numbers.meet(machine.number, redis.number)?;
        match (&redis.grant, &machine.grant) {
            (Some(redis), Some(machine)) => self.compare_grant(redis, machine)?,
            (None, None) => same("appended", &redis.appended, &machine.appended)?,
            _ => return Err(format!("the server has {redis:?}, the machine {machine:?}")),
        }
        near("expiry", redis.expires.0, machine.expires.0, slack)?;
        // What differs by intention is taken from the server.
        let mut expected = Claim {
            number: redis.number,
            grant: redis.grant,
            expires: redis.expires,
            appended: redis.appended,
            block: machine.block.max(1),
            ..machine.clone()
        };
        if machine.owner == Owner::unknown() {
            // Nobody renews, passes over or tells one that is only presumed.
            expected = Claim { strict: false, attempt: 0, inbox: redis.inbox.clone(), ..expected };
        }
        same("claim", redis, &expected)
    }
}

/// What the record of a queue counts beside what its other keys have.
pub(super) fn compare_counts(record: &str, queue: &Queue) -> Same {
    let Some(words) = record.strip_prefix("q ").map(|rest| rest.split(' ').collect::<Vec<_>>()) else { return Ok(()) };
    let of_shape = |count: fn(Shape) -> u32| queue.holders().map(|claim| count(claim.shape)).sum::<u32>().to_string();
    let front = queue.claims.front().map(|claim| claim.id.to_string());
    let counted = [
        ("holders", 4, queue.holders().count().to_string()),
        ("exclusive holders", 5, of_shape(|shape| u32::from(shape == Shape::Exclusive))),
        ("units", 6, of_shape(|shape| if let Shape::Permits { units, .. } = shape { units } else { 0 })),
        ("waiters", 7, queue.waiters().count().to_string()),
        ("marks", 8, queue.marks.len().to_string()),
        ("front", 13, front.filter(|_| words[13] != "?").unwrap_or_else(|| words[13].to_owned())),
    ];
    counted.iter().try_for_each(|(what, at, count)| same(what, &words[*at], &count.as_str()))
}

fn compare_place(redis: &Place, machine: &Place, slack: u64) -> Same {
    near("expiry of the holder", micros(redis.holder_expires_in), micros(machine.holder_expires_in), slack)?;
    let machine = Place { holder_expires_in: redis.holder_expires_in, ..machine.clone() };
    same("place", redis, &machine)
}

fn compare_mark(by: &Arc<str>, reason: &Arc<str>, mark: &BreakMark) -> Same {
    same("by and reason", &(by, reason), &(&mark.by, &mark.reason))
}
