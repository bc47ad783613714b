//! A row and the queue it stands for.
//!
//! One claim that holds with nobody waiting is spelled out in columns, so that a statement can take, renew and free it
//! by itself; anything else is the queue as bytes. A free row only remembers the last token.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::FromSql;

use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{Claim, ClaimRequest, Grant, Queue, Shape};
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// What only the client writes of a single claim.
#[derive(Debug, Serialize, Deserialize)]
struct Client {
    owner: Owner,
    label: Arc<str>,
    shape: Shape,
    block: u32,
    inbox: Arc<str>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    strict: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    solo: bool,
    #[serde(default, skip_serializing_if = "is_zero")]
    attempt: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    within: Vec<Owner>,
    /// When it was appended, if not when it was granted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    appended: Option<Moment>,
}

impl Client {
    fn of(claim: &Claim) -> Self {
        Self {
            owner: claim.owner.clone(),
            label: claim.label.clone(),
            shape: claim.shape,
            block: claim.block,
            inbox: claim.inbox.clone(),
            strict: claim.strict,
            solo: claim.solo,
            attempt: claim.attempt,
            within: claim.within.clone(),
            appended: claim.grant.filter(|grant| grant.at != claim.appended).map(|_| claim.appended),
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The text of a claim that is granted at once.
pub(super) fn client_of(request: &ClaimRequest) -> Result<String> {
    text(&Client {
        owner: request.owner.clone(),
        label: request.label.clone(),
        shape: request.shape,
        block: request.block,
        inbox: request.inbox.clone(),
        strict: request.strict,
        solo: request.solo,
        attempt: request.attempt,
        within: request.within.clone(),
        appended: None,
    })
}

/// The columns of a row that is to be written.
#[derive(Debug, Default)]
pub(super) struct Columns {
    pub(super) id: Option<i64>,
    pub(super) number: Option<i64>,
    pub(super) ttl: Option<i64>,
    pub(super) token: Option<i64>,
    pub(super) block_end: Option<i64>,
    pub(super) granted: Option<i64>,
    /// When the claim dies, or everything in the queue.
    pub(super) expires: Option<i64>,
    pub(super) client: Option<String>,
    pub(super) queue: Option<Vec<u8>>,
    /// How many wait, for people.
    pub(super) waiters: Option<i64>,
    /// The inboxes of the first waiters, as an array in text.
    pub(super) inboxes: Option<String>,
    pub(super) last: i64,
}

/// How many waiters are looked at for one that hears.
const LOOKED_AT: usize = 16;

impl Columns {
    pub(super) fn of(queue: &Queue) -> Result<Self> {
        let last = signed(queue.high_water());
        if queue.is_idle() {
            return Ok(Self { last, ..Self::default() });
        }
        let expires = Some(micros(queue.dead_at()));
        if let (Some(claim), 1, true) = (queue.claims.front(), queue.claims.len(), queue.marks.is_empty())
            && let Some(grant) = &claim.grant
            && claim.skipped == 0
        {
            return Ok(Self {
                id: Some(claim.id.0.cast_signed()),
                number: Some(signed(claim.number)),
                ttl: Some(span(claim.ttl)),
                token: Some(signed(grant.token.0)),
                block_end: Some(signed(grant.block_end.0)),
                granted: Some(micros(grant.at)),
                expires,
                client: Some(text(&Client::of(claim))?),
                last,
                ..Self::default()
            });
        }
        // The first holder, for people.
        let holder = queue.holders().next().map(|claim| text(&Client::of(claim))).transpose()?;
        let mut inboxes: Vec<String> = Vec::new();
        for waiter in queue.waiters().take(LOOKED_AT) {
            if let Some(key) = super::news::key_of(&waiter.inbox) {
                inboxes.push(key.to_string());
            }
        }
        Ok(Self {
            expires,
            client: holder,
            queue: Some(queue.to_bytes()),
            waiters: Some(i64::try_from(queue.waiters().count()).unwrap_or(i64::MAX)),
            inboxes: Some(format!("{{{}}}", inboxes.join(","))),
            last,
            ..Self::default()
        })
    }
}

/// The queue of a row as `Statements::inspect` selects it.
///
/// # Errors
///
/// [`ErrorKind::Store`], with the row's name, if somebody else has written it, or a part of it.
pub(super) fn queue_of(row: &Row) -> Result<Queue> {
    read(row).map_err(|problem| {
        let name = row.try_get::<_, &str>("name").unwrap_or("?");
        Error::new(
            ErrorKind::Store,
            format!("the row of {name:?} cannot be read: somebody changed it; deleted, the name is free"),
        )
        .because(problem)
        .with_certainty(Certainty::NotApplied)
    })
}

fn read(row: &Row) -> Result<Queue> {
    let number = |column: &str| Ok::<_, Error>(cell::<_, Option<i64>>(row, column)?.map(unsigned));
    if let Some(queue) = packed(row)? {
        return Queue::from_bytes(queue).map_err(|error| damaged(&error));
    }
    let mut queue = Queue::new(number("last")?.unwrap_or(0));
    let id: Option<i64> = cell(row, "id")?;
    if let Some(id) = id {
        // A claim whose owner cannot be told is no free name: it may be held, and renewed, all the same.
        let client: &str =
            cell::<_, Option<&str>>(row, "client")?.ok_or_else(|| damaged(&"a part of a claim is missing"))?;
        let client: Client = serde_json::from_str(client).map_err(|error| damaged(&error))?;
        let value = |column: &str| number(column)?.ok_or_else(|| damaged(&"a part of a claim is missing"));
        let at = Moment(value("granted")?);
        queue.claims.push_back(Claim {
            id: ClaimId(id.cast_unsigned()),
            number: value("number")?,
            owner: client.owner,
            label: client.label,
            shape: client.shape,
            ttl: Duration::from_micros(value("ttl")?),
            expires: Moment(value("expires")?),
            appended: client.appended.unwrap_or(at),
            grant: Some(Grant { token: Token(value("token")?), block_end: Token(value("block_end")?), at }),
            block: client.block,
            strict: client.strict,
            skipped: 0,
            inbox: client.inbox,
            solo: client.solo,
            attempt: client.attempt,
            within: client.within,
        });
    }
    queue.prepare();
    Ok(queue)
}

/// The queue as bytes, unless the row spells out its one claim.
pub(super) fn packed(row: &Row) -> Result<Option<&[u8]>> {
    cell(row, "queue")
}

/// One value of a row. A table that somebody has changed is no reason to panic.
pub(super) fn cell<'a, I, T>(row: &'a Row, column: I) -> Result<T>
where
    I: RowIndex + Display,
    T: FromSql<'a>,
{
    row.try_get(column).map_err(|error| damaged(&error))
}

fn damaged(problem: &dyn Display) -> Error {
    Error::new(ErrorKind::Store, format!("a row of PostgreSQL is damaged: {problem}"))
        .with_certainty(Certainty::NotApplied)
}

pub(super) fn text<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|error| {
        Error::new(ErrorKind::Store, "a claim cannot be written").because(error).with_certainty(Certainty::NotApplied)
    })
}

/// PostgreSQL's numbers have a sign; tokens and times stay far below where that matters.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

pub(super) fn micros(moment: Moment) -> i64 {
    signed(moment.as_micros())
}

pub(super) fn span(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}
