//! One connection, and the statements prepared on it.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls, Notification, Row, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::{is_lost_statement, no_answer, of_connecting, of_statement, unavailable};
use super::url::Settings;
use crate::error::Result;

/// How long connecting may take, all hosts together.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How long one statement may take. Whoever asked has given up long before.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// What a connection that listens is told.
pub(super) type Ear = Arc<dyn Fn(Notification) + Send + Sync>;

/// Whether statements may be prepared: not where a pooler gives each transaction another connection.
#[derive(Debug, Default)]
pub(super) struct Preparing(AtomicBool);

impl Preparing {
    fn is_off(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn turn_off(&self) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::info!("PostgreSQL is behind a pooler of transactions: statements are not prepared");
        }
    }
}

pub(super) struct Link {
    client: Client,
    prepared: Mutex<HashMap<String, Statement>>,
    preparing: Arc<Preparing>,
    /// Rung when the connection has ended.
    ended: Arc<Notify>,
}

/// A parameter and its type, which the server would otherwise have to be asked for.
pub(super) type Param<'a> = (&'a (dyn ToSql + Sync), Type);

impl Link {
    pub(super) async fn open(settings: &Settings, preparing: &Arc<Preparing>) -> Result<Self> {
        Self::over(settings, &settings.config, preparing, None).await
    }

    /// Opens a connection that hears notifications.
    pub(super) async fn listening(settings: &Settings, preparing: &Arc<Preparing>, ear: Ear) -> Result<Self> {
        Self::over(settings, settings.listen.as_ref().unwrap_or(&settings.config), preparing, Some(ear)).await
    }

    async fn over(settings: &Settings, config: &Config, preparing: &Arc<Preparing>, ear: Option<Ear>) -> Result<Self> {
        let ended = Arc::<Notify>::default();
        let client = connect(settings, config, ear, &ended).await?;
        Ok(Self { client, prepared: Mutex::default(), preparing: preparing.clone(), ended })
    }

    /// Returns when the connection has ended.
    pub(super) async fn ended(&self) {
        if !self.is_closed() {
            self.ended.notified().await;
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs one statement by itself.
    pub(super) async fn query(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>> {
        self.raw(sql, params).await?.map_err(of_statement)
    }

    /// The same, with PostgreSQL's own error for those who look into it.
    pub(super) async fn raw(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<std::result::Result<Vec<Row>, tokio_postgres::Error>> {
        let answer = timeout(ANSWER_MAX, async {
            if !self.preparing.is_off() {
                match self.query_prepared(sql, params).await {
                    Err(error) if is_lost_statement(&error) => self.preparing.turn_off(),
                    answer => return answer,
                }
            }
            self.client.query_typed(sql, params).await
        });
        answer.await.map_err(|_| no_answer())
    }

    async fn query_prepared(
        &self,
        sql: &str,
        params: &[Param<'_>],
    ) -> std::result::Result<Vec<Row>, tokio_postgres::Error> {
        let known = self.prepared.lock().unwrap_or_else(PoisonError::into_inner).get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let types: Vec<Type> = params.iter().map(|(_, kind)| kind.clone()).collect();
                let statement = self.client.prepare_typed(sql, &types).await?;
                let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
                prepared.insert(sql.to_owned(), statement.clone());
                statement
            }
        };
        let values: Vec<&(dyn ToSql + Sync)> = params.iter().map(|(value, _)| *value).collect();
        self.client.query(&statement, &values).await
    }

    /// Runs statements without parameters or answers.
    pub(super) async fn execute(&self, sql: &str) -> Result<()> {
        let done = timeout(ANSWER_MAX, self.client.batch_execute(sql)).await.map_err(|_| no_answer())?;
        done.map_err(of_statement)
    }
}

async fn connect(settings: &Settings, config: &Config, ear: Option<Ear>, ended: &Arc<Notify>) -> Result<Client> {
    let connecting = async {
        match &settings.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                tokio::spawn(drive(connection, ear, ended.clone()));
                Ok(client)
            }
            Some(tls) => {
                let (client, connection) = config.connect(MakeRustlsConnect::new((**tls).clone())).await?;
                tokio::spawn(drive(connection, ear, ended.clone()));
                Ok(client)
            }
        }
    };
    match timeout(CONNECT_MAX, connecting).await {
        Ok(connected) => connected.map_err(of_connecting),
        Err(_) => Err(unavailable(&format!("no answer from PostgreSQL within {CONNECT_MAX:?} of connecting"))),
    }
}

/// Carries a connection until its client is dropped or the server is gone.
fn drive<S, T>(
    mut connection: Connection<S, T>,
    ear: Option<Ear>,
    ended: Arc<Notify>,
) -> impl Future<Output = ()> + Send
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    T: AsyncRead + AsyncWrite + Unpin + Send,
{
    async move {
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
}
