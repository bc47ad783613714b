//! Memos in a history: what is written next, and what the server made of it beside the machine.

use std::sync::Arc;
use std::time::Duration;

use rand::RngExt as _;
use redis::Value;

use super::super::memo::{self, MemoCall};
use super::compare::{Same, same};
use super::coverage::Coverage;
use super::history::{History, Logged, NOBODYS, own_owner};
use crate::backend::{Memo, MemoKind, MemoWrite, MemoWritten};
use crate::clock::Moment;
use crate::machine::{self, MemoRecord, Shape};
use crate::token::Token;

/// How many of the latest writes may be sent once more.
const LATE: usize = 12;

impl History {
    /// Whether a memo is written next.
    pub(super) fn wants_memo(&mut self) -> bool {
        self.chance(18)
    }

    /// A write of the holder mostly, over the present memo mostly; or a late copy of one.
    pub(super) fn draw_memo(&mut self, now: Moment) -> MemoWrite {
        if !self.writes.is_empty() && self.chance(15) {
            let late = self.writes.len().saturating_sub(LATE)..;
            let late = self.writes[late].to_vec();
            return self.pick(&late);
        }
        let holders: Vec<_> = self.queue.holders().map(|held| held.id).collect();
        let slot = self.live_slot();
        let id = if holders.is_empty() || self.chance(25) { self.slots[slot].id } else { self.pick(&holders) };
        let claim = self.queue.find(id).cloned();
        let grant = claim.as_ref().and_then(|claim| claim.grant);
        let token = match (grant, self.rng.random_range(0..10_u32)) {
            (Some(grant), 0..8) => self.rng.random_range(grant.token.0..=grant.block_end.0),
            (Some(grant), 8) => grant.block_end.0 + 1,
            (None, 0..5) => 0,
            _ => self.known_token(),
        };
        let number = match self.rng.random_range(0..5_u32) {
            0..2 => None,
            2..4 => claim.as_ref().map(|claim| claim.number),
            _ => Some(self.known_number()),
        };
        let present = self.memo.as_ref().filter(|memo| !memo.is_over(now.0)).map(|memo| (memo.version, memo.kind));
        let after = match self.rng.random_range(0..10_u32) {
            0 => 0,
            1 => self.memo.as_ref().map_or(NOBODYS, |memo| memo.version),
            _ => present.map_or(0, |(version, _)| version),
        };
        let kind = present.map_or(MemoKind::User, |(_, kind)| kind);
        let write = MemoWrite {
            id,
            owner: own_owner(id),
            number,
            token: Token(token),
            after,
            write: self.rng.random(),
            kind: if self.chance(20) { self.pick(&MemoKind::ALL) } else { kind },
            keep: if self.chance(60) { Some(Duration::from_micros(self.rng.random_range(0..150_000))) } else { None },
            bytes: self.pick(&[&b""[..], b" ", b"a value of words", b"\0\xff\r\n 1 2"]).into(),
        };
        self.writes.push(write.clone());
        write
    }

    /// The write as the server is asked for it, with its own token and number.
    pub(super) fn wire_memo(&self, write: &MemoWrite) -> Arc<MemoCall> {
        let number = write.number.map(|number| self.numbers.redis(number));
        let token = Token(self.tokens.redis(write.token.0));
        MemoCall::write(&self.name, &MemoWrite { number, token, ..write.clone() })
    }

    /// The memo as the server has it, beside the machine's. The key may have ended, but not before the memo.
    pub(super) fn compare_memo(&self, value: &Value, now: Moment) -> Same {
        let redis = memo::record(value).map_err(|error| error.to_string())?;
        if redis.is_none() && self.memo.as_ref().is_some_and(|memo| memo.is_over(now.0)) {
            return Ok(());
        }
        let token = |token: Token| Token(self.tokens.redis(token.0));
        let machine = self.memo.clone().map(|memo| MemoRecord { token: token(memo.token), ..memo });
        same("the memo", &redis, &machine)
    }

    fn compare_written(&self, value: &Value, machine: MemoWritten) -> Same {
        let redis = memo::written(value).map_err(|error| error.to_string())?;
        let machine = match machine {
            MemoWritten::Changed(Some(memo)) => {
                MemoWritten::Changed(Some(Memo { token: Token(self.tokens.redis(memo.token.0)), ..memo }))
            }
            other => other,
        };
        same("the answer to a memo", &redis, &machine)
    }
}

impl Coverage {
    /// One write on the machine, beside the server's answer.
    pub(super) fn apply_memo(
        &mut self,
        history: &mut History,
        write: &MemoWrite,
        now: Moment,
        answer: &Value,
    ) -> Result<(), String> {
        let before = history.memo.clone();
        let written = machine::write_memo(Some(&history.queue), &mut history.memo, write, now, (now.0, 0));
        history.log.push(Logged::Memo(now, write.clone(), written.clone(), answer.clone()));
        self.steps += 1;
        self.count(corner(history, before.as_ref(), write, &written, now));
        history.compare_written(answer, written)
    }
}

fn corner(
    history: &History,
    before: Option<&MemoRecord>,
    write: &MemoWrite,
    written: &MemoWritten,
    now: Moment,
) -> &'static str {
    let over = before.is_some_and(|before| before.is_over(now.0));
    let claim = history.queue.find(write.id);
    let held = claim.filter(|claim| claim.expires > now).and_then(|claim| claim.grant);
    match written {
        MemoWritten::Done { .. } if before.is_some_and(|before| before.write == write.write) => match held {
            _ if over => "memo: the same again after its end",
            Some(_) => "memo: the same again",
            None => "memo: the same again by an earlier holder",
        },
        MemoWritten::Done { .. } if over => "memo: written over one that has ended",
        MemoWritten::Done { .. } if history.record == b'q' => "memo: written by the holder of a queue",
        MemoWritten::Done { .. } => "memo: written by the only claim",
        MemoWritten::Changed(Some(_)) => "memo: changed",
        MemoWritten::Changed(None) => "memo: there is none",
        MemoWritten::OtherKind(_) => "memo: of another kind",
        MemoWritten::NotHolder => match (claim, held) {
            (None, _) => "memo: by nobody's claim",
            (Some(claim), _) if claim.expires <= now => "memo: by a dead claim",
            (Some(_), None) => "memo: by a waiter",
            (Some(claim), _) if claim.shape != Shape::Exclusive => "memo: by a claim that is not exclusive",
            (_, Some(grant)) if write.token < grant.token || grant.block_end < write.token => {
                "memo: with a token of no present block"
            }
            _ => "memo: with another number",
        },
    }
}
