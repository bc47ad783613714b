//! Everything else: the rows are locked, the rule is applied to their queues, and they are written, in one
//! transaction of two round trips.

use std::collections::{BTreeMap, HashSet};

use futures_util::future::{Either, join, join3};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::desk::{Desk, TRIES_MAX};
use super::error::{is_collision, is_full, of_statement, unavailable};
use super::link::{Answer, Link, Param};
use super::news::{News, key_of};
use super::rows::{Columns, cell, packed, queue_of, unsigned};
use super::statements::Statements;
use crate::clock::Moment;
use crate::error::{Certainty, Error, Result};
use crate::machine::{Claim, Op, Outcome, Queue, Standing, apply_reaching};
use crate::name::Name;

/// How long to wait for a row that somebody else has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// What is locked is left alone, and nothing is known of it.
    Not,
    Briefly,
    /// While other names wait to be waited for.
    InTurn,
    Long,
}

impl Wait {
    /// What begins a transaction. A client that hangs within it must not hold others up for long; and whatever the
    /// server's default, one that waited for a row sees what became of it.
    pub(super) const fn begin(self) -> &'static str {
        match self {
            Self::Not | Self::Briefly => {
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 1000"
            }
            Self::InTurn => {
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 200"
            }
            Self::Long => {
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = 2000; SET LOCAL lock_timeout = 5000"
            }
        }
    }
}

/// Why a transaction failed; nothing of it was applied, but for the last.
enum Failed {
    /// Others were in the way: it may be tried again.
    Collision(Error),
    /// Nobody has claimed these names before: they have no row to lock.
    Missing(Vec<String>),
    /// What it says cannot be sent to those who listen.
    Unsaid(Error),
    For(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::For(error)
    }
}

type Tried<T> = std::result::Result<T, Failed>;

/// What a transaction comes to.
struct Decided {
    /// The rows to write.
    queues: Vec<(String, Columns)>,
    /// Whom to tell what.
    news: News,
    /// What each operation answers; nothing where the row was locked.
    outcomes: Vec<Option<Outcome>>,
    /// Whether the server may forget it in a crash.
    forgettable: bool,
}

/// The types of what is written: the name, nine numbers, two texts and the queue.
const WRITTEN: [Type; 13] = [
    Type::TEXT_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::INT8_ARRAY,
    Type::TEXT_ARRAY,
    Type::TEXT_ARRAY,
    Type::BYTEA_ARRAY,
];
/// The types of channels and messages.
const TOLD: [Type; 2] = [Type::TEXT_ARRAY, Type::TEXT_ARRAY];

impl Desk {
    /// What the operations answer by the rule; nothing for those whose row is locked, unless they wait for it.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn by_the_rule(
        &self,
        link: &Link,
        ops: &[&(Name, Op)],
        wait: Wait,
    ) -> Result<Vec<Option<Outcome>>> {
        let (mut tries, mut says) = (0, true);
        loop {
            tries += 1;
            let failed = match self.transact(link, ops, wait, says).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(failed) => failed,
            };
            match failed {
                Failed::Missing(names) if tries < TRIES_MAX => {
                    // In a transaction of its own: rows that are made are locked in another order than rows that are
                    // there.
                    match link.raw(&self.statements.make, &[(&names, Type::TEXT_ARRAY)]).await.map_err(not_applied)? {
                        Ok(_) => {}
                        Err(error) if is_collision(&error) => {}
                        Err(error) => return Err(not_applied(of_statement(error))),
                    }
                }
                Failed::Missing(names) => {
                    return Err(unavailable(&format!("the row of {} vanishes", names.join(", "))));
                }
                Failed::Collision(error) | Failed::Unsaid(error) if tries >= TRIES_MAX => return Err(error),
                Failed::Collision(_) => {}
                // Those who are granted learn it when they renew.
                Failed::Unsaid(_) => says = false,
                Failed::For(error) => return Err(error),
            }
        }
    }

    async fn transact(&self, link: &Link, ops: &[&(Name, Op)], wait: Wait, says: bool) -> Tried<Vec<Option<Outcome>>> {
        let names: HashSet<&str> = ops.iter().map(|(name, _)| name.as_str()).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let params: [Param<'_>; 1] = [(&names, Type::TEXT_ARRAY)];
        let Statements { lock, lock_free, write, notify, .. } = &self.statements;
        let lock = if wait == Wait::Not { lock_free } else { lock };
        // Before anything is locked.
        for (sql, types) in [(lock, &WRITTEN[..1]), (write, &WRITTEN[..]), (notify, &TOLD[..])] {
            link.prepare(sql, types).await.map_err(not_applied)?;
        }
        let begin = match names.as_slice() {
            [name] if wait != Wait::Not && !ops.iter().any(|(_, op)| hands_over(op)) => {
                format!("{}; {}", wait.begin(), self.statements.turn(name))
            }
            _ => wait.begin().to_owned(),
        };
        let both = join(link.execute_once(&begin), link.once(lock, &params));
        // Without an answer the connection is given up, and the server undoes what it began.
        let (begun, locked) = link.within(both).await.map_err(not_applied)?;
        let locked = match begun {
            Ok(()) => answered(link, locked),
            Err(error) => Err(Failed::For(of_statement(error))),
        };
        // There was nothing to commit yet.
        let locked = locked.map_err(|failed| match failed {
            Failed::For(error) => Failed::For(not_applied(error)),
            other => other,
        });
        let done = match locked.and_then(|rows| decide(&rows, ops, wait)) {
            Ok(mut decided) => {
                if !says {
                    decided.news = News::default();
                }
                self.finish(link, &decided).await.map(|()| decided.outcomes)
            }
            Err(failed) => Err(failed),
        };
        // Whatever failed, and be it the beginning: nobody uses the connection before it is known to be in no
        // transaction.
        if done.is_err() && !link.is_closed() && link.execute("ROLLBACK").await.is_err() {
            link.give_up();
        }
        done
    }

    /// Writes the queues that have changed, tells who is granted, and ends the transaction.
    async fn finish(&self, link: &Link, Decided { queues, news, forgettable, .. }: &Decided) -> Tried<()> {
        macro_rules! column {
            ($field:ident) => {
                queues.iter().map(|(_, columns)| columns.$field.clone()).collect::<Vec<_>>()
            };
        }
        let names: Vec<&str> = queues.iter().map(|(name, _)| name.as_str()).collect();
        let (id, number, ttl, token) = (column!(id), column!(number), column!(ttl), column!(token));
        let (block_end, granted, expires) = (column!(block_end), column!(granted), column!(expires));
        let (last, waiters, client, inboxes) = (column!(last), column!(waiters), column!(client), column!(inboxes));
        let queue: Vec<Option<&[u8]>> = queues.iter().map(|(_, columns)| columns.queue.as_deref()).collect();
        let values: [&(dyn ToSql + Sync); 13] = [
            &names, &id, &number, &ttl, &token, &block_end, &granted, &expires, &last, &waiters, &client, &inboxes,
            &queue,
        ];
        let params: Vec<Param<'_>> = values.into_iter().zip(WRITTEN).collect();
        let told: [Param<'_>; 2] = [(&news.channels, Type::TEXT_ARRAY), (&news.messages, Type::TEXT_ARRAY)];
        let nothing = || std::future::ready(Ok(Vec::new()));
        let written = match names.is_empty() {
            true => Either::Left(nothing()),
            false => Either::Right(link.once(&self.statements.write, &params)),
        };
        let said = match news.channels.is_empty() {
            true => Either::Left(nothing()),
            false => Either::Right(link.once(&self.statements.notify, &told)),
        };
        // Sent together: should one of the first two fail, nothing is committed.
        let end = if *forgettable { "SET LOCAL synchronous_commit = off; COMMIT" } else { "COMMIT" };
        let (written, said, ended) = link.within(join3(written, said, link.execute_once(end))).await?;
        answered(link, written)?;
        answered(link, said)?;
        match ended {
            Ok(()) => Ok(()),
            Err(error) if is_full(&error) => Err(Failed::Unsaid(of_statement(error))),
            // Whether it was committed is not known, unless the server says that it was not.
            Err(error) => Err(Failed::For(of_statement(error))),
        }
    }
}

/// What a statement within a transaction answers. If it was refused nothing is applied; if its answer was lost, and
/// that of what was sent with it, nobody knows.
fn answered(link: &Link, answer: Answer) -> Tried<Vec<Row>> {
    answer.map_err(|error| {
        link.judge(&error);
        let collides = link.unprepared(&error) || is_collision(&error);
        let error = of_statement(error);
        if collides { Failed::Collision(error) } else { Failed::For(error) }
    })
}

/// Applies the rule to rows that are locked.
fn decide(rows: &[Row], ops: &[&(Name, Op)], wait: Wait) -> Tried<Decided> {
    let (mut queues, mut now, mut heard, mut held) = (BTreeMap::new(), 0, HashSet::new(), HashSet::new());
    for row in rows {
        // The latest: it was read when all of them were locked.
        now = now.max(unsigned(cell(row, "now")?));
        heard.extend(cell::<_, Option<Vec<i64>>>(row, "heard")?.unwrap_or_default());
        let Some(name) = cell::<_, Option<String>>(row, "name")? else {
            held.insert(cell::<_, &str>(row, "there")?);
            continue;
        };
        let mut queue = queue_of(row)?;
        // A single claim is quicker to copy than to write down.
        let before = match packed(row)? {
            Some(bytes) => Before::Bytes(bytes),
            None => Before::Queue(queue.clone()),
        };
        queue.prepare_for(ops.len());
        queues.insert(name, (before, queue));
    }
    let is_missing = |(name, op): &(Name, Op)| {
        // What was claimed may be about to appear, and then a release must not have come before it: to make the row
        // waits for that.
        let needs_row = matches!(op, Op::Claim(_) | Op::Release { number: None, .. });
        needs_row && !queues.contains_key(name.as_str()) && !held.contains(name.as_str())
    };
    let missing: Vec<String> = ops.iter().filter(|asked| is_missing(asked)).map(|(name, _)| name.to_string()).collect();
    if !missing.is_empty() && wait != Wait::Not {
        return Err(Failed::Missing(missing));
    }
    // To make a row may take as long as to wait for one.
    held.extend(missing.iter().map(String::as_str));
    let (mut news, mut outcomes, mut forgettable) = (News::default(), Vec::with_capacity(ops.len()), true);
    let hears = |claim: &Claim| key_of(&claim.inbox).is_none_or(|key| heard.contains(&key));
    for (name, op) in ops.iter().copied() {
        if held.contains(name.as_str()) {
            outcomes.push(None);
            continue;
        }
        // Without a row there is no claim of this name, and nothing is asked of it that would make one.
        let mut absent = Queue::default();
        let queue = queues.get_mut(name.as_str()).map_or(&mut absent, |(_, queue)| queue);
        let is_new = matches!(op, Op::Claim(request) if queue.find(request.id).is_none());
        let applied = apply_reaching(queue, op.clone(), Moment(now), now, hears);
        forgettable &= is_new && applied.grants.is_empty() && holds_nothing(&applied.outcome);
        news.note(&applied, op);
        outcomes.push(Some(applied.outcome));
    }
    let mut changed = Vec::new();
    for (name, (before, queue)) in queues {
        if !matches!(&before, Before::Queue(before) if *before == queue) {
            let columns = Columns::of(&queue)?;
            if !matches!(before, Before::Bytes(bytes) if columns.queue.as_deref() == Some(bytes)) {
                changed.push((name, columns));
            }
        }
    }
    Ok(Decided { queues: changed, news, outcomes, forgettable })
}

/// A queue as it was read, to tell whether it has changed.
enum Before<'a> {
    Queue(Queue),
    Bytes(&'a [u8]),
}

/// Whether others may be granted by it. They all wait for this, so it goes past those who wait for their turn: it has
/// only the one whose turn it is to wait for.
fn hands_over(op: &Op) -> bool {
    matches!(op, Op::Release { .. } | Op::NextBlock { .. } | Op::Break { .. } | Op::BreakWaiter { .. })
}

/// A claim that joins a queue, or is refused: its client asks again should the server have forgotten it, and nobody
/// trusts it before. Not so a renewal, which a waiter counts on when it is granted; and what is granted is written to
/// the disk with all that came before.
fn holds_nothing(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stands(Standing { state: Err(_), .. }) | Outcome::Busy(_) | Outcome::Refused(_))
}

pub(super) fn not_applied(error: Error) -> Error {
    error.with_certainty(Certainty::NotApplied)
}
