//! What waits for the server, and what of it goes together.
//!
//! A few connections at most work at the same time, each with one statement or transaction. Operations that are pending when
//! one becomes free go as one: releases first, then what was asked for first, with all others of its kind.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tokio_postgres::types::Type;

use super::error::{is_collision, of_statement, unavailable};
use super::inbox::{News, key_of};
use super::link::{Link, Param, Preparing};
use super::rows::{Columns, client_of, queue_of, signed, span};
use super::statements::Statements;
use super::url::Settings;
use crate::clock::Moment;
use crate::error::{Certainty, Error, ErrorKind, Result};
use crate::machine::{Claim, Grant, Op, Outcome, Queue, Standing, apply_reaching};
use crate::name::Name;
use crate::owner::ClaimId;
use crate::token::Token;

/// How many connections work at the same time.
const LINKS_MAX: usize = 4;
/// The most operations in one statement, unless they come as one.
const BATCH_MAX: usize = 64;
/// How many operations may wait before more are refused.
const PENDING_MAX: usize = 200_000;
/// How long a connection without work is kept.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// How often a transaction is tried that others were in the way of.
const TRIES_MAX: u32 = 5;
/// How many pieces of work pass between two looks for dead names.
const SWEEP_EVERY: u32 = 256;

/// What begins a transaction that locks rows: a client that hangs within it must not hold others up.
const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 5000; SET LOCAL lock_timeout = 5000";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Release,
    Claim,
    Renew,
    /// What needs the rule: the queue is read, changed and written.
    Other,
}

impl Kind {
    fn of(op: &Op) -> Self {
        match op {
            Op::Claim(request) if request.reenter.is_none() && request.presumed.is_zero() => Self::Claim,
            Op::Renew { .. } => Self::Renew,
            Op::Release { .. } => Self::Release,
            _ => Self::Other,
        }
    }
}

/// Operations of one kind that were asked for together.
struct Task {
    kind: Kind,
    ops: Vec<(Name, Op)>,
    reply: oneshot::Sender<Result<Vec<Outcome>>>,
}

#[derive(Default)]
struct State {
    releases: VecDeque<Task>,
    others: VecDeque<Task>,
    pending: usize,
    working: usize,
    idle: Vec<Link>,
    since_sweep: u32,
    /// The name up to which dead ones were looked for.
    swept: String,
}

pub(super) struct Desk {
    pub(super) settings: Arc<Settings>,
    pub(super) statements: Statements,
    pub(super) preparing: Arc<Preparing>,
    runtime: tokio::runtime::Handle,
    state: Mutex<State>,
    /// Rung when a worker has become idle.
    rested: Arc<Notify>,
}

impl Desk {
    pub(super) fn new(settings: Arc<Settings>, preparing: Arc<Preparing>, first: Link) -> Arc<Self> {
        let statements = Statements::of(&settings.schema);
        let state = State { idle: vec![first], since_sweep: SWEEP_EVERY, ..State::default() };
        let desk = Arc::new(Self {
            settings,
            statements,
            preparing,
            runtime: tokio::runtime::Handle::current(),
            state: Mutex::new(state),
            rested: Arc::default(),
        });
        desk.runtime.spawn(close_idle(Arc::downgrade(&desk)));
        desk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for operations of one kind; one outcome for each, in order.
    pub(super) fn ask(
        self: &Arc<Self>,
        ops: Vec<(Name, Op)>,
        fresh: bool,
    ) -> impl Future<Output = Result<Vec<Outcome>>> + Send + use<> {
        let (reply, answer) = oneshot::channel();
        let kind = ops.first().map_or(Kind::Other, |(_, op)| Kind::of(op));
        let mut state = self.state();
        let (refused, nothing) = (state.pending >= PENDING_MAX, ops.is_empty());
        if !refused && !nothing {
            state.pending += ops.len();
            let task = Task { kind, ops, reply };
            if kind == Kind::Release {
                state.releases.push_back(task)
            } else {
                state.others.push_back(task)
            }
            if fresh {
                // An earlier call may hang.
                state.idle.clear();
            }
            if state.working < LINKS_MAX + usize::from(fresh) {
                state.working += 1;
                let link = state.idle.pop();
                self.runtime.spawn(self.clone().work(link));
            }
        }
        drop(state);
        async move {
            if refused {
                return Err(unavailable("too much is waiting for PostgreSQL already"));
            }
            if nothing {
                return Ok(Vec::new());
            }
            answer.await.unwrap_or_else(|_| Err(unavailable("the client of PostgreSQL was closed")))
        }
    }

    /// A connection for something of one's own.
    pub(super) async fn link(&self) -> Result<Link> {
        let idle = self.state().idle.pop().filter(|link| !link.is_closed());
        match idle {
            Some(link) => Ok(link),
            None => Link::open(&self.settings, &self.preparing).await,
        }
    }

    pub(super) fn give_back(&self, link: Link) {
        if !link.is_closed() {
            self.state().idle.push(link);
            self.rested.notify_one();
        }
    }

    /// Works until nothing is pending.
    async fn work(self: Arc<Self>, mut link: Option<Link>) {
        loop {
            let (tasks, sweep) = {
                let mut state = self.state();
                let tasks = state.next_batch();
                if tasks.is_empty() {
                    state.working -= 1;
                    state.idle.extend(link.filter(|link| !link.is_closed()));
                    drop(state);
                    self.rested.notify_one();
                    return;
                }
                state.since_sweep += 1;
                let sweep = state.since_sweep >= SWEEP_EVERY;
                if sweep {
                    state.since_sweep = 0;
                }
                (tasks, sweep)
            };
            let open = match link.take().filter(|link| !link.is_closed()) {
                Some(open) => Ok(open),
                None => Link::open(&self.settings, &self.preparing).await,
            };
            match open {
                Ok(open) => {
                    self.answer(&open, tasks).await;
                    if sweep {
                        self.sweep(&open).await;
                    }
                    link = Some(open);
                }
                Err(error) => {
                    for task in tasks {
                        drop(task.reply.send(Err(error.again())));
                    }
                }
            }
        }
    }

    async fn answer(&self, link: &Link, tasks: Vec<Task>) {
        let ops: Vec<&(Name, Op)> = tasks.iter().flat_map(|task| &task.ops).collect();
        let kind = tasks.first().map_or(Kind::Other, |task| task.kind);
        match self.outcomes(link, kind, &ops).await {
            Ok(outcomes) => {
                let mut outcomes = outcomes.into_iter();
                for task in tasks {
                    let own = outcomes.by_ref().take(task.ops.len()).collect();
                    drop(task.reply.send(Ok(own)));
                }
            }
            Err(error) => {
                for task in tasks {
                    drop(task.reply.send(Err(error.again())));
                }
            }
        }
    }

    /// What the operations answer: by one statement where each is the plain case, by the rule where not.
    async fn outcomes(&self, link: &Link, kind: Kind, ops: &[&(Name, Op)]) -> Result<Vec<Outcome>> {
        let mut plain = match kind {
            Kind::Claim => self.claim(link, ops).await?,
            Kind::Release => self.release(link, ops).await?,
            Kind::Renew => self.renew(link, ops).await?,
            Kind::Other => HashMap::new(),
        };
        let mut outcomes: Vec<Option<Outcome>> = (0..ops.len()).map(|index| plain.remove(&index)).collect();
        let left: Vec<usize> = (0..ops.len()).filter(|index| outcomes[*index].is_none()).collect();
        for some in left.chunks(BATCH_MAX) {
            let asked: Vec<&(Name, Op)> = some.iter().map(|index| ops[*index]).collect();
            for (index, outcome) in some.iter().zip(self.by_the_rule(link, &asked).await?) {
                outcomes[*index] = Some(outcome);
            }
        }
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Gone)).collect())
    }

    /// Runs a statement again if others were in its way.
    async fn retried(&self, link: &Link, sql: &str, params: &[Param<'_>]) -> Result<Vec<tokio_postgres::Row>> {
        let mut tries = 1;
        loop {
            match link.raw(sql, params).await? {
                Err(error) if is_collision(&error) && tries < TRIES_MAX => tries += 1,
                answer => return answer.map_err(of_statement),
            }
        }
    }

    async fn claim(&self, link: &Link, ops: &[&(Name, Op)]) -> Result<HashMap<usize, Outcome>> {
        let (mut names, mut ids, mut ttls, mut blocks, mut clients) = (vec![], vec![], vec![], vec![], vec![]);
        let (mut places, mut seen) = (HashMap::new(), HashSet::new());
        for (index, (name, op)) in ops.iter().enumerate() {
            // A statement may touch a row once only; whoever comes second would not find it free anyway.
            let Op::Claim(request) = op else { continue };
            if !seen.insert(name) {
                continue;
            }
            names.push(name.as_str());
            ids.push(request.id.0.cast_signed());
            ttls.push(span(request.ttl));
            blocks.push(i64::from(request.block.max(1)));
            clients.push(client_of(request)?);
            places.insert(request.id.0.cast_signed(), (index, request.ttl));
        }
        let params: [Param<'_>; 5] = [
            (&names, Type::TEXT_ARRAY),
            (&ids, Type::INT8_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&blocks, Type::INT8_ARRAY),
            (&clients, Type::TEXT_ARRAY),
        ];
        let mut answered = HashMap::new();
        for row in self.retried(link, &self.statements.claim, &params).await? {
            let id: i64 = row.get(0);
            if let Some((index, ttl)) = places.get(&id) {
                let [number, token, block_end, at] = [1, 2, 3, 4].map(|column| unsigned(row.get(column)));
                let grant = Grant { token: Token(token), block_end: Token(block_end), at: Moment(at) };
                answered.insert(*index, Outcome::Stands(Standing { number, ttl: *ttl, state: Ok(grant) }));
            }
        }
        Ok(answered)
    }

    async fn release(&self, link: &Link, ops: &[&(Name, Op)]) -> Result<HashMap<usize, Outcome>> {
        let (mut names, mut ids, mut numbers) = (vec![], vec![], vec![]);
        let mut places = HashMap::new();
        for (index, (name, op)) in ops.iter().enumerate() {
            let Op::Release { id, number } = op else { continue };
            // The same one twice: the rule answers for the second.
            if places.contains_key(&id.0.cast_signed()) {
                continue;
            }
            names.push(name.as_str());
            ids.push(id.0.cast_signed());
            numbers.push(number.map(signed));
            places.insert(id.0.cast_signed(), index);
        }
        let params: [Param<'_>; 3] =
            [(&names, Type::TEXT_ARRAY), (&ids, Type::INT8_ARRAY), (&numbers, Type::INT8_ARRAY)];
        let rows = self.retried(link, &self.statements.release, &params).await?;
        let ended = rows.iter().filter_map(|row| places.get(&row.get::<_, i64>(0)));
        Ok(ended.map(|index| (*index, Outcome::Released)).collect())
    }

    async fn renew(&self, link: &Link, ops: &[&(Name, Op)]) -> Result<HashMap<usize, Outcome>> {
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
            if let Some(index) = places.get(&row.get::<_, i64>(0)) {
                let [number, ttl, token, block_end, at] = [1, 2, 3, 4, 5].map(|column| unsigned(row.get(column)));
                let grant = Grant { token: Token(token), block_end: Token(block_end), at: Moment(at) };
                let ttl = Duration::from_micros(ttl);
                answered.insert(*index, Outcome::Stands(Standing { number, ttl, state: Ok(grant) }));
            }
        }
        Ok(answered)
    }

    /// One transaction: the rows are locked, the rule is applied to their queues, and they are written.
    async fn by_the_rule(&self, link: &Link, ops: &[&(Name, Op)]) -> Result<Vec<Outcome>> {
        let mut tries = 1;
        loop {
            let outcome = self.transact(link, ops).await;
            match outcome {
                Ok(outcomes) => return Ok(outcomes),
                Err(Failed::Collision(_)) if tries < TRIES_MAX => tries += 1,
                Err(Failed::Collision(error) | Failed::For(error)) => return Err(error),
            }
        }
    }

    async fn transact(&self, link: &Link, ops: &[&(Name, Op)]) -> std::result::Result<Vec<Outcome>, Failed> {
        link.execute(BEGIN).await?;
        let done = self.within(link, ops).await;
        let end = if done.is_ok() { "COMMIT" } else { "ROLLBACK" };
        match (done, link.execute(end).await) {
            (Ok(outcomes), Ok(())) => Ok(outcomes),
            // Whether it was committed is not known, unless the server says that it was not.
            (Ok(_), Err(error)) => Err(Failed::For(error)),
            (Err(failed), _) => Err(failed),
        }
    }

    async fn within(&self, link: &Link, ops: &[&(Name, Op)]) -> std::result::Result<Vec<Outcome>, Failed> {
        let names: Vec<&str> = ops.iter().map(|(name, _)| name.as_str()).collect::<HashSet<_>>().into_iter().collect();
        let new: Vec<&str> =
            ops.iter().filter(|(_, op)| matches!(op, Op::Claim(_))).map(|(name, _)| name.as_str()).collect();
        if !new.is_empty() {
            self.in_transaction(link, &self.statements.make, &[(&new, Type::TEXT_ARRAY)]).await?;
        }
        let rows = self.in_transaction(link, &self.statements.lock, &[(&names, Type::TEXT_ARRAY)]).await?;
        let (mut queues, mut now, mut heard) = (BTreeMap::new(), 0, HashSet::new());
        for row in &rows {
            let name: &str = row.get("name");
            // The latest: it was read when all of them were locked.
            now = now.max(unsigned(row.get("now")));
            heard.extend(row.get::<_, Option<Vec<i64>>>("heard").unwrap_or_default());
            queues.insert(name.to_owned(), (queue_of(row)?, true));
        }
        let mut news = News::default();
        let mut outcomes = Vec::with_capacity(ops.len());
        for (name, op) in ops.iter().copied() {
            // Without a row there is no claim of this name, and nothing is asked of it that would make one.
            let (queue, _) = queues.entry(name.as_str().to_owned()).or_insert_with(|| (Queue::default(), false));
            let hears = |claim: &Claim| key_of(&claim.inbox).is_none_or(|key| heard.contains(&key));
            let applied = apply_reaching(queue, op.clone(), Moment(now), now, hears);
            news.note(&applied, op);
            outcomes.push(applied.outcome);
        }
        self.write(link, &queues).await?;
        if !news.channels.is_empty() {
            let params: [Param<'_>; 2] = [(&news.channels, Type::TEXT_ARRAY), (&news.messages, Type::TEXT_ARRAY)];
            self.in_transaction(link, &self.statements.notify, &params).await?;
        }
        Ok(outcomes)
    }

    async fn write(&self, link: &Link, queues: &BTreeMap<String, (Queue, bool)>) -> std::result::Result<(), Failed> {
        let mut names = Vec::new();
        let mut columns = Vec::new();
        for (name, (queue, _)) in queues.iter().filter(|(_, (_, is_there))| *is_there) {
            names.push(name.as_str());
            columns.push(Columns::of(queue)?);
        }
        macro_rules! column {
            ($field:ident) => {
                columns.iter().map(|columns| columns.$field.clone()).collect::<Vec<_>>()
            };
        }
        let (id, number, ttl, token) = (column!(id), column!(number), column!(ttl), column!(token));
        let (block_end, granted, expires) = (column!(block_end), column!(granted), column!(expires));
        let (client, queue, inboxes, last) = (column!(client), column!(queue), column!(inboxes), column!(last));
        let params: [Param<'_>; 12] = [
            (&names, Type::TEXT_ARRAY),
            (&id, Type::INT8_ARRAY),
            (&number, Type::INT8_ARRAY),
            (&ttl, Type::INT8_ARRAY),
            (&token, Type::INT8_ARRAY),
            (&block_end, Type::INT8_ARRAY),
            (&granted, Type::INT8_ARRAY),
            (&expires, Type::INT8_ARRAY),
            (&client, Type::TEXT_ARRAY),
            (&queue, Type::TEXT_ARRAY),
            (&inboxes, Type::TEXT_ARRAY),
            (&last, Type::INT8_ARRAY),
        ];
        self.in_transaction(link, &self.statements.write, &params).await.map(drop)
    }

    async fn in_transaction(
        &self,
        link: &Link,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Vec<tokio_postgres::Row>, Failed> {
        match link.raw(sql, params).await? {
            Ok(rows) => Ok(rows),
            // Nothing of the transaction is applied before its end.
            Err(error) if is_collision(&error) => Err(Failed::Collision(not_applied(of_statement(error)))),
            Err(error) => Err(Failed::For(not_applied(of_statement(error)))),
        }
    }

    /// Forgets names that nobody has used for a minute; a bounded number of them, and best effort.
    async fn sweep(&self, link: &Link) {
        let after = self.state().swept.clone();
        let rows = link.query(&self.statements.sweep, &[(&after, Type::TEXT)]).await;
        let until = rows.ok().and_then(|rows| rows.first()?.get::<_, Option<String>>(0));
        self.state().swept = until.unwrap_or_default();
    }
}

/// Why a transaction failed.
enum Failed {
    /// Others were in the way: it may be tried again.
    Collision(Error),
    For(Error),
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self::For(error)
    }
}

fn not_applied(error: Error) -> Error {
    error.with_certainty(Certainty::NotApplied)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

impl State {
    fn next_batch(&mut self) -> Vec<Task> {
        let queue = if self.releases.is_empty() { &mut self.others } else { &mut self.releases };
        let (mut batch, mut later, mut size) = (Vec::new(), VecDeque::new(), 0);
        let mut kind = None;
        while let Some(task) = queue.pop_front() {
            if task.reply.is_closed() && task.kind == Kind::Renew {
                self.pending -= task.ops.len();
                continue;
            }
            let joins = kind.is_none_or(|kind| kind == task.kind && size + task.ops.len() <= BATCH_MAX);
            if !joins {
                later.push_back(task);
                if size >= BATCH_MAX {
                    break;
                }
                continue;
            }
            kind = Some(task.kind);
            size += task.ops.len();
            self.pending -= task.ops.len();
            batch.push(task);
        }
        while let Some(task) = later.pop_back() {
            queue.push_front(task);
        }
        batch
    }
}

/// Closes connections that have had nothing to do for a while.
async fn close_idle(desk: std::sync::Weak<Desk>) {
    loop {
        let Some(rested) = desk.upgrade().map(|desk| desk.rested.clone()) else { return };
        let busy = timeout(IDLE_MAX, rested.notified()).await.is_ok();
        if !busy && let Some(desk) = desk.upgrade() {
            desk.state().idle.clear();
        }
    }
}

/// The claims an operation is about, for who keeps account of those that wait.
pub(super) fn waits(outcome: &Outcome) -> Option<bool> {
    match outcome {
        Outcome::Stands(standing) | Outcome::Moved(standing) => Some(standing.state.is_err()),
        Outcome::Gone | Outcome::Broken(_) | Outcome::Released | Outcome::Busy(_) | Outcome::Refused(_) => Some(false),
        Outcome::Evicted(_) | Outcome::Done => None,
    }
}

/// An outcome that is missing though the server answered.
pub(super) fn odd() -> Error {
    Error::new(ErrorKind::Store, "PostgreSQL did not answer each operation").with_certainty(Certainty::Unknown)
}

/// The claim an operation is about.
pub(super) fn claim_of(op: &Op) -> Option<ClaimId> {
    match op {
        Op::Claim(request) => Some(request.id),
        Op::Renew { id, .. } | Op::Release { id, .. } => Some(*id),
        Op::NextBlock { next, .. } => Some(next.id),
        Op::Break { .. } | Op::Skip { .. } => None,
    }
}
