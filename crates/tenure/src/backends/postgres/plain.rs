//! The plain case: a name that is free, or has one claim and nobody waiting. One statement takes, renews or frees
//! many of them.
//!
//! Rows that somebody else has locked are passed over, so that no name holds another one up. What a statement does
//! not answer is therefore not known: the rule decides it, by whoever may wait for the row.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::desk::{Desk, TRIES_MAX};
use super::error::{is_collision, is_held_up, of_statement};
use super::link::{Link, Param};
use super::rows::{cell, client_of, signed, span, unsigned};
use super::statements::Statements;
use crate::clock::Moment;
use crate::error::Result;
use crate::machine::{Grant, Op, Outcome, Standing};
use crate::name::Name;
use crate::token::Token;

/// What was answered, by the operation's place. What is missing was not the plain case.
type Answered = HashMap<usize, Outcome>;

impl Desk {
    /// Runs a statement, again if others were in its way. Nothing is answered if they always were: whoever asks goes
    /// by the rule then, which waits for them.
    async fn retried(&self, link: &Link, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        for _ in 0..TRIES_MAX {
            match link.raw(sql, params).await? {
                Err(error) if is_collision(&error) => {}
                // Somebody makes one of the rows, and takes his time.
                Err(error) if is_held_up(&error) => break,
                answer => return answer.map_err(of_statement),
            }
        }
        Ok(Vec::new())
    }

    /// Takes one name, or frees it; nothing if that is not the plain case. `has_row`: the name is known to have a row.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn one(&self, link: &Link, name: &Name, op: &Op, has_row: bool) -> Result<Option<Outcome>> {
        let text = name.as_str();
        match op {
            Op::Claim(request) => {
                let (id, ttl) = (request.id.0.cast_signed(), span(request.ttl));
                let (block, client) = (i64::from(request.block.max(1)), client_of(request)?);
                let params: [Param<'_>; 5] = [
                    (&text, Type::TEXT),
                    (&id, Type::INT8),
                    (&ttl, Type::INT8),
                    (&block, Type::INT8),
                    (&client, Type::TEXT),
                ];
                let sql = match has_row {
                    // Should its row have been swept meanwhile, the rule makes it.
                    true if link.is_direct() => &self.statements.take_direct,
                    true => &self.statements.take_one,
                    false => &self.statements.claim_one,
                };
                let rows = self.retried(link, sql, &params).await?;
                let Some(row) = rows.first() else { return Ok(None) };
                if !has_row {
                    self.state().has_row(name);
                }
                let (token, at) = (unsigned(cell(row, 0)?), unsigned(cell(row, 1)?));
                let block_end = Token(token.saturating_add(unsigned(block)) - 1);
                let grant = Grant { token: Token(token), block_end, at: Moment(at) };
                Ok(Some(Outcome::Stands(Standing { number: token, ttl: request.ttl, state: Ok(grant) })))
            }
            Op::Release { id, number, waiting_only: false } => {
                let (id, number) = (id.0.cast_signed(), number.map(signed));
                let params: [Param<'_>; 3] = [(&text, Type::TEXT), (&id, Type::INT8), (&number, Type::INT8)];
                let Statements { release_direct, release_one, .. } = &self.statements;
                let sql = if link.is_direct() { release_direct } else { release_one };
                let rows = self.retried(link, sql, &params).await?;
                Ok(rows.first().map(|_| Outcome::Released))
            }
            _ => Ok(None),
        }
    }

    /// Takes names that are free; not those that are to be left `apart`.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn claim(&self, link: &Link, ops: &[&(Name, Op)], apart: &[bool]) -> Result<Answered> {
        let (mut names, mut ids, mut ttls, mut blocks, mut clients) = (vec![], vec![], vec![], vec![], vec![]);
        let (mut places, mut seen) = (HashMap::new(), HashSet::new());
        for (index, (name, op)) in ops.iter().enumerate() {
            let Op::Claim(request) = op else { continue };
            let id = request.id.0.cast_signed();
            // A statement may touch a row once only; whoever comes second would not find it free anyway. And answers
            // are told apart by their ids, which those who choose them may use for several names.
            if apart.get(index) == Some(&true) || places.contains_key(&id) || !seen.insert(name) {
                continue;
            }
            names.push(name.as_str());
            ids.push(id);
            ttls.push(span(request.ttl));
            blocks.push(i64::from(request.block.max(1)));
            clients.push(client_of(request)?);
            places.insert(id, (index, request.ttl));
        }
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        if let [_] = &*names
            && let Some(&(index, _)) = places.values().next()
        {
            let (name, op) = ops[index];
            let has_row = self.state().rows.contains(name);
            return Ok(self.one(link, name, op, has_row).await?.map(|outcome| (index, outcome)).into_iter().collect());
        }
        let params: [Param<'_>; 5] = [
            (&names, Type::TEXT_ARRAY),
            (&ids, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&blocks, Type::INT8_ARRAY),
            (&clients, Type::TEXT_ARRAY),
        ];
        let rows = self.retried(link, &self.statements.claim, &params).await?;
        let mut answered = HashMap::new();
        for row in rows {
            if let Some((index, ttl)) = places.get(&cell(&row, 0)?) {
                let grant = grant(&row, 2)?;
                let standing = Standing { number: unsigned(cell(&row, 1)?), ttl: *ttl, state: Ok(grant) };
                answered.insert(*index, Outcome::Stands(standing));
                self.state().has_row(&ops[*index].0);
            }
        }
        Ok(answered)
    }

    /// Frees names that nobody waits for; not those that are to be left `apart`.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn release(&self, link: &Link, ops: &[&(Name, Op)], apart: &[bool]) -> Result<Answered> {
        let (mut names, mut ids, mut numbers) = (vec![], vec![], vec![]);
        let mut places = HashMap::new();
        for (index, (name, op)) in ops.iter().enumerate() {
            // Whether one waits, only the rule tells.
            let Op::Release { id, number, waiting_only: false } = op else { continue };
            // The same one twice: the rule answers for the second.
            if apart.get(index) == Some(&true) || places.contains_key(&id.0.cast_signed()) {
                continue;
            }
            names.push(name.as_str());
            ids.push(id.0.cast_signed());
            numbers.push(number.map(signed));
            places.insert(id.0.cast_signed(), index);
        }
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        if let [_] = &*names
            && let Some(&index) = places.values().next()
        {
            let (name, op) = ops[index];
            return Ok(self.one(link, name, op, true).await?.map(|outcome| (index, outcome)).into_iter().collect());
        }
        let params: [Param<'_>; 3] =
            [(&names, Type::TEXT_ARRAY), (&ids, Type::INT8_ARRAY), (&numbers, Type::INT8_ARRAY)];
        let rows = self.retried(link, &self.statements.release, &params).await?;
        let mut answered = HashMap::new();
        for row in rows {
            if let Some(index) = places.get(&cell(&row, 0)?) {
                answered.insert(*index, Outcome::Released);
            }
        }
        Ok(answered)
    }

    /// Renews claims of names that nobody waits for; not those that are to be left `apart`.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst claims live longer.
    pub(super) async fn renew(&self, link: &Link, ops: &[&(Name, Op)], apart: &[bool]) -> Result<Answered> {
        let (mut names, mut ids, mut ttls) = (vec![], vec![], vec![]);
        let mut places = HashMap::new();
        for (index, (name, op)) in ops.iter().enumerate() {
            // One that names a number needs a look at the claim.
            let Op::Renew { id, ttl, number: None } = op else { continue };
            if apart.get(index) == Some(&true) || places.contains_key(&id.0.cast_signed()) {
                continue;
            }
            names.push(name.as_str());
            ids.push(id.0.cast_signed());
            ttls.push(span(*ttl));
            places.insert(id.0.cast_signed(), index);
        }
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let params: [Param<'_>; 3] = [(&names, Type::TEXT_ARRAY), (&ids, Type::INT8_ARRAY), (&ttls, Type::INT8_ARRAY)];
        let mut answered = HashMap::new();
        for row in self.retried(link, &self.statements.renew, &params).await? {
            if let Some(index) = places.get(&cell(&row, 0)?) {
                let ttl = Duration::from_micros(unsigned(cell(&row, 2)?));
                let standing = Standing { number: unsigned(cell(&row, 1)?), ttl, state: Ok(grant(&row, 3)?) };
                answered.insert(*index, Outcome::Stands(standing));
            }
        }
        Ok(answered)
    }
}

/// The grant in three columns from this one on.
fn grant(row: &Row, first: usize) -> Result<Grant> {
    let number = |column| cell(row, column).map(unsigned);
    let (token, block_end, at) = (number(first)?, number(first + 1)?, number(first + 2)?);
    Ok(Grant { token: Token(token), block_end: Token(block_end), at: Moment(at) })
}
