//! What is asked of a node, and what its answers mean. `ballots.lua` says the same from its side.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use smallvec::{SmallVec, smallvec};

use super::ballot::{Hello, Vote};
use crate::backend::{BreakRequest, ClaimRequest, Place, RenewRequest, Renewed, Standing};
use crate::backends::redis::foreign;
use crate::backends::redis::lane::Work;
use crate::backends::redis::op::Op;
use crate::backends::redis::script::BALLOT_KEYS;
use crate::backends::redis::url::Layout;
use crate::backends::redis::wire::{self, failed, number, odd, place, tagged, text};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::machine::Grant;
use crate::name::Name;
use crate::owner::{ClaimId, Owner};
use crate::token::Token;

/// How the records of a name begin.
pub(super) const KEY_PREFIX: &str = "tenure:redlock:{:";

/// What is wrong with a node that is not the one that was there before.
pub(super) const STRANGER: &str = "is another server than before";

/// Whether a node says that it is not the one that was meant.
pub(super) fn is_stranger(value: &Value) -> bool {
    text(value) == Some("x")
}

fn on(name: &Name) -> Op {
    Op::on(format!("{KEY_PREFIX}{name}{}", '}'))
}

/// The name of a record's key; none for other keys.
pub(super) fn name_of(key: &[u8]) -> Option<Name> {
    let key = std::str::from_utf8(key).ok()?;
    Name::new(key.strip_prefix(KEY_PREFIX)?.strip_suffix('}')?).ok()
}

/// Redis counts in milliseconds: a part of one counts as one.
fn millis(ttl: Duration) -> u128 {
    ttl.as_micros().div_ceil(1000)
}

fn or_nothing(value: Option<impl Display>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// A claim of this client, as its nodes are told of it.
#[derive(Clone, Debug)]
pub(super) struct Mine {
    pub(super) token: Token,
    /// The highest token that was ever proposed for it: its end has to reach that one too.
    pub(super) highest: Token,
    /// The number of a repeatable claim; zero for one whose token is its number.
    pub(super) attempt: u64,
    /// INBOX OWNER LABEL.
    pub(super) client: Arc<str>,
    /// The nodes that may have it, a bit each.
    pub(super) touched: u32,
    /// Whether nodes may think that it waits.
    pub(super) waits: bool,
    /// From then on no node has it, unless somebody else renews it.
    pub(super) until: Moment,
}

impl Mine {
    pub(super) fn place(&self) -> InLine {
        if self.waits { InLine::Leaves } else { InLine::None }
    }

    /// The number that tells it from others with its id, if others may have it.
    pub(super) fn number_of_its_own(&self) -> Option<u64> {
        (self.attempt != 0).then_some(self.attempt)
    }

    pub(super) fn number(&self) -> u64 {
        if self.attempt == 0 { self.token.0 } else { self.attempt }
    }
}

/// A proposal, for every node the same.
pub(super) struct Proposal<'a> {
    pub(super) name: &'a Name,
    pub(super) request: &'a ClaimRequest,
    pub(super) mine: &'a Mine,
    pub(super) anew: bool,
    /// Whether nodes may have it among those that wait.
    pub(super) listed: bool,
    /// Since when it waits, on the nodes' clock; none if it does not.
    pub(super) waits: Option<u64>,
}

pub(super) fn claim(layout: Layout, proposal: &Proposal<'_>) -> Work {
    let Proposal { name, request, mine, anew, listed, waits } = proposal;
    if layout == Layout::Plain {
        return foreign::claim_numbered(name, request, mine.number());
    }
    let mut op = on(name)
        .with('c')
        .with(request.id)
        .with(mine.token.0)
        .with(millis(request.ttl))
        .with(if *listed { 2 } else { u8::from(*anew) })
        .with(mine.attempt)
        .with(&mine.client)
        .with(or_nothing(*waits));
    op.ballot = mine.token.0;
    Work::Ops(smallvec![op])
}

/// Renewals of several claims where they are; to `restore` them, also where they are not.
pub(super) fn renew(batch: &[(RenewRequest, Option<Mine>)], restore: bool) -> Work {
    Work::Ops(
        batch
            .iter()
            .map(|(claim, mine)| {
                let client = mine.as_ref().filter(|_| restore).map_or("", |mine| &mine.client);
                let mut op = on(&claim.name)
                    .with('r')
                    .with(claim.id)
                    .with(or_nothing(mine.as_ref().map(|mine| mine.token.0)))
                    .with(millis(claim.ttl))
                    .with(mine.as_ref().map_or(0, |mine| mine.attempt))
                    .with(client);
                op.ballot = mine.as_ref().map_or(0, |mine| mine.token.0);
                op
            })
            .collect(),
    )
}

/// What becomes of a claim's place among those that wait.
#[derive(Clone, Debug)]
pub(super) enum InLine {
    /// It has none.
    None,
    /// It gives it up.
    Leaves,
    /// It gives it up, and nothing else: should the claim hold, it goes on.
    OnlyLeaves,
    /// It goes on waiting: since when, and INBOX OWNER LABEL.
    Stays(u64, Arc<str>),
}

/// The end of a claim.
#[derive(Clone, Debug)]
pub(super) struct Ending {
    pub(super) name: Name,
    pub(super) id: ClaimId,
    pub(super) token: Option<Token>,
    pub(super) number: Option<u64>,
    pub(super) place: InLine,
}

pub(super) fn release(layout: Layout, ending: &Ending) -> Work {
    let Ending { name, id, token, number, place } = ending;
    if layout == Layout::Plain {
        return foreign::release(layout, name, *id, *number);
    }
    let mut op = on(name).with('d').with(id).with(or_nothing(token.map(|token| token.0))).with(or_nothing(*number));
    op = match place {
        InLine::None => op.with("").with(""),
        InLine::Leaves => op.with('1').with(""),
        InLine::OnlyLeaves => op.with('2').with(""),
        InLine::Stays(since, client) => op.with(since).with(client),
    };
    op.ballot = token.map_or(0, |token| token.0);
    Work::Ops(smallvec![op])
}

/// Several pieces of work in as few calls as they can be: one, or one each.
pub(super) fn together(works: impl Iterator<Item = Work>) -> Vec<Work> {
    let mut ops = SmallVec::new();
    let mut alone = Vec::new();
    for work in works {
        match work {
            Work::Ops(more) => ops.extend(more),
            other => alone.push(other),
        }
    }
    if !ops.is_empty() {
        alone.push(Work::Ops(ops));
    }
    alone
}

pub(super) fn break_claim(name: &Name, id: ClaimId, request: &BreakRequest) -> Work {
    let BreakRequest { up_to, by, reason, owner: _ } = request;
    let op = on(name).with('k').with(id).with(format_args!("{} {by}{reason}", by.len()));
    Work::Ops(smallvec![op.with(or_nothing(up_to.map(|token| token.0)))])
}

pub(super) fn show(layout: Layout, name: &Name) -> Work {
    if layout == Layout::Plain {
        return foreign::show(layout, name);
    }
    Work::Ops(smallvec![on(name).with('s').with("")])
}

pub(super) fn hello(nonce: u64) -> Work {
    Work::Ops(smallvec![Op::on(BALLOT_KEYS[0].to_owned()).with('h').with(nonce)])
}

/// Lets a node take part: with this floor, or its own time.
pub(super) fn admit(blank: u64, floor: Option<Token>, fleet: u64, size: usize, founders: &[u64]) -> Work {
    let founders: Vec<String> = founders.iter().map(ToString::to_string).collect();
    let op = Op::on(BALLOT_KEYS[0].to_owned())
        .with('a')
        .with(blank)
        .with(or_nothing(floor.map(|floor| floor.0)))
        .with(fleet)
        .with(rand::random::<u64>())
        .with(size)
        .with(founders.join(" "));
    Work::Ops(smallvec![op])
}

/// A node's vote, and what it says of the claim that has the name.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Vote(Vote),
    /// It holds the claim: how it stands here.
    Holds(Standing),
    Busy(Place),
    Broken(Arc<str>, Arc<str>),
}

impl Said {
    pub(super) fn vote(&self) -> Vote {
        match self {
            Self::Vote(vote) => *vote,
            Self::Holds(standing) => Vote::Stored(standing.state.as_ref().map_or(Token(0), |grant| grant.token)),
            Self::Busy(_) => Vote::Busy,
            Self::Broken(..) => Vote::Gone,
        }
    }
}

/// The answer to a claim or renewal; `fresh` is how it stands if the node says no more than yes.
pub(super) fn said(layout: Layout, value: &Value, fresh: impl FnOnce() -> Standing) -> Result<Said> {
    let said = match tagged(value) {
        Some(("e", items)) => return Err(failed(items)),
        Some(("y", items)) => place(items).map(Said::Busy),
        Some(("l", [last])) => number(last).map(|last| Said::Vote(Vote::Behind(Token(last)))),
        Some(("b", [by, reason])) => text(by).zip(text(reason)).map(|(by, why)| Said::Broken(by.into(), why.into())),
        Some(("m", items)) => standing(items).map(Said::Holds),
        Some(("s", _)) if layout == Layout::Plain => match wire::renewed(value)? {
            // Plain records have no token, and each node its own time.
            Renewed::Stands(standing) => Some(Said::Holds(Standing { state: Ok(granted(Token(0))), ..standing })),
            _ => None,
        },
        Some(_) => None,
        None => match (value, text(value)) {
            (Value::Int(1), _) => Some(Said::Holds(fresh())),
            (Value::Int(0), _) => Some(Said::Vote(Vote::Gone)),
            (_, Some("a")) => Some(Said::Vote(Vote::Ahead)),
            (_, Some("n")) => Some(Said::Vote(Vote::Blank)),
            (_, Some("x")) => return Err(Error::new(ErrorKind::Unavailable, STRANGER)),
            _ => None,
        },
    };
    said.ok_or_else(|| odd(value))
}

/// TOKEN TTL NUMBER
fn standing(items: &[Value]) -> Option<Standing> {
    let [token, ttl, claim_number] = items else { return None };
    let grant = granted(Token(number(token)?));
    Some(Standing { number: number(claim_number)?, ttl: Duration::from_millis(number(ttl)?), state: Ok(grant) })
}

/// A grant with this token: the time at which it was proposed, unless clocks differ.
pub(super) fn granted(token: Token) -> Grant {
    Grant { token, block_end: token, at: Moment(token.0) }
}

/// What a node says of itself.
#[derive(Clone, Debug)]
pub(super) struct Greeting {
    pub(super) hello: Hello,
    /// Its own id, if it takes part.
    pub(super) node: String,
    pub(super) fleet: u64,
    pub(super) size: usize,
}

pub(super) fn greeting(value: &Value) -> Result<Greeting> {
    let parse = || {
        let Value::Array(items) = value else { return None };
        let [node, fleet, size, blank, highest, ttl, founders] = items.as_slice() else { return None };
        let hello = Hello {
            blank: number(blank),
            highest: Token(number(highest)?),
            ttl_max: Duration::from_millis(number(ttl)?),
            founders: founders_of(text(founders)?),
        };
        Some(Greeting {
            hello,
            node: text(node)?.to_owned(),
            fleet: number(fleet).unwrap_or(0),
            size: usize::try_from(number(size)?).ok()?,
        })
    };
    if let Some(("e", items)) = tagged(value) {
        return Err(failed(items));
    }
    parse().ok_or_else(|| odd(value))
}

/// The names of blank times that a node has written down.
pub(super) fn founders_of(text: &str) -> Arc<[u64]> {
    text.split(' ').filter_map(|name| name.parse().ok()).collect()
}

/// What one node has of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) holder: Option<ShownHolder>,
    /// Those that wait, the longest waiting first: owner, label, and since when.
    pub(super) waiters: Vec<(ClaimId, Owner, String, u64)>,
}

/// A claim as one node has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ShownHolder {
    pub(super) id: ClaimId,
    pub(super) token: Token,
    pub(super) number: u64,
    pub(super) owner: Owner,
    pub(super) label: String,
    pub(super) expires_in: Duration,
}

pub(super) fn shown(value: &Value) -> Result<Shown> {
    if let Some(("e", items)) = tagged(value) {
        return Err(failed(items));
    }
    parse_shown(value).ok_or_else(|| odd(value))
}

fn parse_shown(value: &Value) -> Option<Shown> {
    let Value::Array(items) = value else { return None };
    let [record, left, Value::Array(order), Value::Array(inboxes)] = items.as_slice() else { return None };
    let record = text(record)?;
    let holder = if record.is_empty() || record.starts_with('r') {
        None
    } else {
        // The mark, then ID TOKEN TTL NUMBER INBOX OWNER LABEL.
        let mut words = record.get(1..)?.splitn(7, ' ');
        let mut next = || words.next();
        let (id, token, _ttl) = (next()?.parse().ok()?, next()?.parse().ok()?, next()?);
        let (claim_number, _inbox) = (next()?.parse().ok()?, next()?);
        let (owner, label) = (Owner::new(next()?).ok()?, next()?.to_owned());
        let expires_in = Duration::from_millis(number(left).unwrap_or(0));
        Some(ShownHolder { id, token: Token(token), number: claim_number, owner, label, expires_in })
    };
    let who = |id: &str| {
        let found = inboxes.chunks_exact(2).find(|pair| text(&pair[0]) == Some(id))?;
        let mut words = text(&found[1])?.splitn(3, ' ').skip(1);
        Some((Owner::new(words.next()?).ok()?, words.next()?.to_owned()))
    };
    let mut waiters = Vec::new();
    for pair in order.chunks_exact(2) {
        let id = text(&pair[0])?;
        // One that was called just now is no longer listed.
        let Some((owner, label)) = who(id) else { continue };
        waiters.push((id.parse().ok()?, owner, label, number(&pair[1])?));
    }
    Some(Shown { holder, waiters })
}
