//! One connection, and the statements prepared on it.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Notification, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{
    is_answer, is_lost_statement, is_read_only, is_stale_statement, no_answer, of_connecting, of_statement, unavailable,
};
use super::preparing::{OFF, ON, Preparing, UNDECIDED};
use super::url::{Settings, Target};
use crate::error::Result;

/// How long connecting may take, all hosts together.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long one host may be silent before the next is tried as well.
const NEXT_HOST_AFTER: Duration = Duration::from_millis(250);
/// How long one statement may take. Whoever asked has given up long before.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// All statements find rows by their names, however many: planned anew each time, that takes longer than to run them.
const PLAN_ONCE: &str = "SET plan_cache_mode = force_generic_plan";

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
    /// Whether the server was asked to plan what is prepared once only.
    planned: AtomicBool,
    /// Rung when the connection has ended.
    ended: Arc<Notify>,
    /// Whether nobody knows what it is in the middle of.
    unusable: AtomicBool,
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
            planned: AtomicBool::new(false),
            ended,
            unusable: AtomicBool::new(false),
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
        let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
        self.prepare(sql, &types).await?;
        match self.within(self.once(sql, params)).await? {
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
        if !self.planned.swap(true, Ordering::Relaxed) {
            // Refused, it only takes longer.
            drop(self.execute(PLAN_ONCE).await);
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

    /// Whether it failed because of what was prepared, which is forgotten then: a pooler has mixed it up, or a table has changed since. It ran
    /// nothing, and may be tried again.
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

    fn known(&self, sql: &str) -> Option<Statement> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned()
    }

    /// Runs a statement, sent when this is first polled; so several that are polled in turn go together, in that order.
    ///
    /// # Cancel safety
    ///
    /// Cancelling leaves the outcome unknown.
    pub(super) async fn once(&self, sql: &str, params: &[Param<'_>]) -> Answer {
        match self.known(sql).filter(|_| self.prepares()) {
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
        timeout(ANSWER_MAX, answer).await.map_err(|_| {
            self.give_up();
            no_answer()
        })
    }
}

/// Connects to the first of the hosts that takes writes. One that does not answer holds the next one up for a moment only.
async fn connect(target: &Target, ear: Option<Ear>, ended: &Arc<Notify>) -> Result<(usize, Client)> {
    let connecting = async {
        let mut hosts = target.hosts.iter().enumerate();
        let (mut under_way, mut failure) = (FuturesUnordered::new(), None);
        loop {
            match hosts.next() {
                Some((at, host)) => {
                    let connected = connect_to(host, target, ear.clone(), ended);
                    under_way.push(async move { connected.await.map(|client| (at, client)) });
                }
                None if under_way.is_empty() => return Err(failure),
                None => {}
            }
            let limit = if hosts.len() > 0 { NEXT_HOST_AFTER } else { CONNECT_MAX };
            match timeout(limit, under_way.next()).await {
                Ok(Some(Ok(connected))) => return Ok(connected),
                // That a server answered, and what, says more than that another did not.
                Ok(Some(Err(error))) if failure.is_none() || is_answer(&error) => failure = Some(error),
                _ => {}
            }
        }
    };
    let nobody = || unavailable(&format!("no answer from PostgreSQL within {CONNECT_MAX:?} of connecting"));
    match timeout(CONNECT_MAX, connecting).await {
        Ok(connected) => connected.map_err(|failure| failure.map_or_else(nobody, of_connecting)),
        Err(_) => Err(nobody()),
    }
}

async fn connect_to(
    host: &Config,
    target: &Target,
    ear: Option<Ear>,
    ended: &Arc<Notify>,
) -> std::result::Result<Client, tokio_postgres::Error> {
    match &target.tls {
        None => {
            let (client, connection) = host.connect(NoTls).await?;
            Handle::current().spawn(drive(connection, ear, ended.clone()));
            Ok(client)
        }
        Some(tls) => {
            let (client, connection) = host.connect(MakeRustlsConnect::new((**tls).clone())).await?;
            Handle::current().spawn(drive(connection, ear, ended.clone()));
            Ok(client)
        }
    }
}

/// Carries a connection until its client is dropped or the server is gone.
async fn drive<S, T>(mut connection: Connection<S, T>, ear: Option<Ear>, ended: Arc<Notify>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        match (message, &ear) {
            (Ok(AsyncMessage::Notification(heard)), Some(ear)) => ear(heard),
            (Ok(_), _) => {}
            (Err(error), _) => {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
                break;
            }
        }
    }
    ended.notify_one();
}
