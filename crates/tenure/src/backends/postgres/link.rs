//! One connection, and the statements prepared on it.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Notification, Row, Statement};

use super::connect::connect;
use super::error::{is_lost_statement, is_read_only, is_stale_statement, no_answer, of_connecting, of_statement};
use super::preparing::{OFF, ON, Preparing, UNDECIDED};
use super::url::{Settings, Target};
use crate::clock::{Clock as _, Moment, SystemClock};
use crate::error::Result;

/// How long one statement may take. Whoever asked has given up long before.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// What a connection is set to that is known to be nobody else's. All statements find rows by their names, however
/// many: planned anew each time, that takes longer than to run them. And what may wait for a row for longer says so
/// itself.
const OWN: &str = "SET plan_cache_mode = force_generic_plan; SET lock_timeout = 200";

/// What a connection that listens is told.
pub(super) type Ear = Arc<dyn Fn(Notification) + Send + Sync>;
/// What PostgreSQL answers, with its own error for those who look into it.
pub(super) type Answer = std::result::Result<Vec<Row>, tokio_postgres::Error>;

pub(super) struct Link {
    client: Client,
    prepared: Mutex<HashMap<String, Statement>>,
    preparing: Arc<Preparing>,
    /// Which of the hosts it leads to.
    host: usize,
    /// Whether it prepares: settled when it first might, and never again once it has lost a statement.
    prepares: AtomicU8,
    /// Whether it was set to what suits a connection of one's own.
    settled: AtomicBool,
    /// Rung when the connection has ended.
    ended: Arc<Notify>,
    /// Whether nobody knows what it is in the middle of.
    unusable: AtomicBool,
    /// When something was last heard on it, in microseconds.
    heard: AtomicU64,
}

/// A parameter and its type, which the server would otherwise have to be asked for.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

impl Link {
    /// # Cancel safety
    ///
    /// Cancel safe: a connection that is not finished is closed.
    pub(super) async fn open(settings: &Settings, preparing: &Arc<Preparing>) -> Result<Self> {
        Self::over(&settings.target, preparing, None).await
    }

    /// Opens a connection that hears notifications.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a connection that is not finished is closed.
    pub(super) async fn listening(settings: &Settings, preparing: &Arc<Preparing>, ear: Ear) -> Result<Self> {
        Self::over(settings.listen.as_ref().unwrap_or(&settings.target), preparing, Some(ear)).await
    }

    async fn over(target: &Target, preparing: &Arc<Preparing>, ear: Option<Ear>) -> Result<Self> {
        let ended = Arc::<Notify>::default();
        let (host, client) = connect(target, ear, &ended).await?;
        Ok(Self {
            client,
            prepared: Mutex::default(),
            preparing: preparing.clone(),
            host,
            prepares: AtomicU8::new(UNDECIDED),
            settled: AtomicBool::new(false),
            ended,
            unusable: AtomicBool::new(false),
            heard: AtomicU64::new(SystemClock.now().0),
        })
    }

    /// Which of the hosts it leads to.
    pub(super) fn host(&self) -> usize {
        self.host
    }

    /// Whether its statements are prepared, as far as it is known.
    pub(super) fn prepares(&self) -> bool {
        match self.prepares.load(Ordering::Relaxed) {
            UNDECIDED if self.preparing.is_direct(self.host) => {
                self.prepares.store(ON, Ordering::Relaxed);
                true
            }
            settled => settled == ON && !self.preparing.is_refuted(self.host),
        }
    }

    /// Whether it is known to be nobody else's, and set to what suits that: a row that is locked is not waited for.
    pub(super) fn is_direct(&self) -> bool {
        self.settled.load(Ordering::Relaxed) && self.prepares()
    }

    /// It is not used again: what it is in the middle of is undone by the server when it ends.
    pub(super) fn give_up(&self) {
        self.unusable.store(true, Ordering::Relaxed);
    }

    /// Gives it up if it leads to a server that takes no writes any more: another host may.
    pub(super) fn judge(&self, error: &tokio_postgres::Error) {
        if is_read_only(error) {
            self.give_up();
        }
    }

    /// Whether something was heard on it in this time.
    pub(super) fn was_heard_within(&self, time: Duration) -> bool {
        Moment(self.heard.load(Ordering::Relaxed)) + time > SystemClock.now()
    }

    /// Returns when the connection has ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the connection stays ended.
    pub(super) async fn ended(&self) {
        if !self.is_closed() {
            self.ended.notified().await;
        }
    }

    /// Whether it is of no use any more.
    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.unusable.load(Ordering::Relaxed)
    }

    /// Runs one statement by itself.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.raw(sql, params).await?.map_err(of_statement)
    }

    /// The same, with PostgreSQL's own error.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn raw(&self, sql: &str, params: &[Param<'_>]) -> Result<Answer> {
        let statement = match self.known(sql) {
            None if self.prepares() => {
                let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
                self.prepare(sql, &types).await?;
                self.known(sql)
            }
            known => known,
        };
        match self.within(self.run(statement, sql, params)).await? {
            // It ran nothing.
            Err(error) if self.unprepared(&error) => self.within(self.once(sql, params)).await,
            Err(error) => {
                self.judge(&error);
                Ok(Err(error))
            }
            answer => Ok(answer),
        }
    }

    /// Sees to it that [`once`](Self::once) takes one round trip.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst it is prepared and not used.
    pub(super) async fn prepare(&self, sql: &str, types: &[Type]) -> Result<()> {
        if !self.prepares() || self.known(sql).is_some() {
            return Ok(());
        }
        if !self.settled.load(Ordering::Relaxed) {
            // Refused, it only takes longer.
            let set = self.execute(OWN).await;
            self.settled.store(set.is_ok(), Ordering::Relaxed);
        }
        match self.within(self.client.prepare_typed(sql, types)).await? {
            Ok(statement) => {
                let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
                prepared.insert(sql.to_owned(), statement);
                Ok(())
            }
            Err(error) if self.unprepared(&error) => Ok(()),
            // Nothing of it was run.
            Err(error) => Err(of_connecting(error)),
        }
    }

    /// Whether it failed because of what was prepared, which is forgotten then: a pooler has mixed it up, or a table
    /// has changed since. It ran nothing, and may be tried again.
    pub(super) fn unprepared(&self, error: &tokio_postgres::Error) -> bool {
        let lost = is_lost_statement(error);
        if lost {
            self.prepares.store(OFF, Ordering::Relaxed);
            self.preparing.lost(self.host);
        }
        let is_it = lost || is_stale_statement(error);
        if is_it {
            self.prepared.lock().unwrap_or_else(PoisonError::into_inner).clear();
        }
        is_it
    }

    /// What was prepared, if it may be used.
    fn known(&self, sql: &str) -> Option<Statement> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        known.filter(|_| self.prepares())
    }

    /// Runs a statement, sent when this is first polled; so several that are polled in turn go together, in that order.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn once(&self, sql: &str, params: &[Param<'_>]) -> Answer {
        self.run(self.known(sql), sql, params).await
    }

    async fn run(&self, statement: Option<Statement>, sql: &str, params: &[Param<'_>]) -> Answer {
        match statement {
            Some(statement) => {
                let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
                self.client.query(&statement, &values).await
            }
            None => self.client.query_typed(sql, params).await,
        }
    }

    /// Runs statements without parameters or answers.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        self.within(self.execute_once(sql)).await?.map_err(of_statement)
    }

    /// The same without a limit, sent when this is first polled.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn execute_once(&self, sql: &str) -> std::result::Result<(), tokio_postgres::Error> {
        self.client.batch_execute(sql).await
    }

    /// What is answered, within a limit.
    ///
    /// # Cancel safety
    ///
    /// As that of what is awaited.
    pub(super) async fn within<T>(&self, answer: impl Future<Output = T>) -> Result<T> {
        match timeout(ANSWER_MAX, answer).await {
            Ok(answer) => {
                self.heard.store(SystemClock.now().0, Ordering::Relaxed);
                Ok(answer)
            }
            Err(_) => {
                self.give_up();
                Err(no_answer())
            }
        }
    }
}
