//! The plain case: a name that is free, or has one claim and nobody waiting. One statement takes, renews or frees many of them.
//!
//! Rows that somebody else has locked are passed over, so that no name holds another one up. What a statement does not answer is therefore
//! not known: the rule decides it, by whoever may wait for the row.

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
    /// Runs a statement, again if others were in its way. Nothing is answered if they always were: whoever asks goes by the rule then,
    /// which waits for them.
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

    /// Takes names that are free; not those that are to be left `apart`.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn claim(&self, link: &Link, ops: &[&(Name, Op)], apart: &[bool]) -> Result<Answered> {
        let (mut names, mut ids, mut ttls, mut blocks, mut clients) = (vec![], vec![], vec![], vec![], vec![]);
        let (mut places, mut seen) = (HashMap::new(), HashSet::new());
        for (index, (name, op)) in ops.iter().enumerate() {
            // A statement may touch a row once only; whoever comes second would not find it free anyway.
            let Op::Claim(request) = op else { continue };
            if apart.get(index) == Some(&true) || !seen.insert(name) {
                continue;
            }
            names.push(name.as_str());
            ids.push(request.id.0.cast_signed());
            ttls.push(span(request.ttl));
            blocks.push(i64::from(request.block.max(1)));
            clients.push(client_of(request)?);
            places.insert(request.id.0.cast_signed(), (index, request.ttl));
        }
        if names.is_empty() {
            return Ok(HashMap::new());
        }
        let Statements { claim, claim_one, take_one, .. } = &self.statements;
        let rows = if let ([name], [id], [ttl], [block], [client]) = (&*names, &*ids, &*ttls, &*blocks, &*clients) {
            let params: [Param<'_>; 5] =
                [(name, Type::TEXT), (id, Type::INT8), (ttl, Type::INT8), (block, Type::INT8), (client, Type::TEXT)];
            // Should its row have been swept meanwhile, the rule makes it.
            let has_row = places.values().any(|(index, _)| self.state().rows.contains(&ops[*index].0));
            let one = if has_row { take_one } else { claim_one };
            self.retried(link, one, &params).await?
        } else {
            let params: [Param<'_>; 5] = [
                (&names, Type::TEXT_ARRAY),
                (&ids, Type::INT8_ARRAY),
                (&ttls, Type::INT8_ARRAY),
                (&blocks, Type::INT8_ARRAY),
                (&clients, Type::TEXT_ARRAY),
            ];
            self.retried(link, claim, &params).await?
        };
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
            let Op::Release { id, number } = op else { continue };
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
        let Statements { release, release_one, .. } = &self.statements;
        let rows = if let ([name], [id], [number]) = (&*names, &*ids, &*numbers) {
            let params: [Param<'_>; 3] = [(name, Type::TEXT), (id, Type::INT8), (number, Type::INT8)];
            self.retried(link, release_one, &params).await?
        } else {
            let params: [Param<'_>; 3] =
                [(&names, Type::TEXT_ARRAY), (&ids, Type::INT8_ARRAY), (&numbers, Type::INT8_ARRAY)];
            self.retried(link, release, &params).await?
        };
        let mut answered = HashMap::new();
        for row in rows {
            if let Some(index) = places.get(&cell(&row, 0)?) {
                answered.insert(*index, Outcome::Released);
            }
        }
        Ok(answered)
    }

    /// Renews claims of names that nobody waits for.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst claims live longer.
    pub(super) async fn renew(&self, link: &Link, ops: &[&(Name, Op)]) -> Result<Answered> {
        let (mut names, mut ids, mut ttls) = (vec![], vec![], vec![]);
        let mut places = HashMap::new();
        for (index, (name, op)) in ops.iter().enumerate() {
            let Op::Renew { id, ttl } = op else { continue };
            if places.contains_key(&id.0.cast_signed()) {
                continue;
            }
            names.push(name.as_str());
            ids.push(id.0.cast_signed());
            ttls.push(span(*ttl));
            places.insert(id.0.cast_signed(), index);
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
