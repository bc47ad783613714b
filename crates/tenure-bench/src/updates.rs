//! What a PostgreSQL can do: two committed updates of one row by the client that tenure uses, with nothing around them.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tenure_load::order::{Order, Target};
use tenure_load::{BoxError, Locker};
use tokio_postgres::{Client, NoTls, Statement};

use crate::contestant::{Contestant, own_command};

/// What it is called among the contestants.
pub const NAME: &str = "two updates";
/// A connection does one statement at a time: one for each task, up to this many.
const CONNECTIONS_MAX: usize = 64;
/// As many rows that nobody is in each other's way.
const ROWS: u64 = 100_000;

/// The limit as a contestant.
pub fn contestant() -> Contestant {
    Contestant {
        peer: NAME.into(),
        store: "postgres".into(),
        library: "tokio-postgres (the client tenure uses)".into(),
        version: String::new(),
        settings: format!(
            "UPDATE of one row by its key, twice, prepared, each committed; a connection for each task, {CONNECTIONS_MAX} at most"
        ),
        renews: false,
        program: "tenure-bench".into(),
        command: own_command(),
    }
}

/// Connections to one server. It is no lock: it only does what one must.
#[derive(Clone)]
pub struct Updates {
    connections: Arc<Vec<(Client, Statement)>>,
    next: Arc<AtomicUsize>,
}

impl Updates {
    /// Connects as often as an order has tasks, and makes the rows.
    ///
    /// # Errors
    ///
    /// The client's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at worst rows are there.
    pub async fn connect(target: &Target, order: &Order) -> Result<Self, BoxError> {
        let url = target.urls.first().ok_or("no URL")?.as_str();
        let tasks = match order {
            Order::Pairs(pairs) => pairs.tasks,
            _ => 1,
        };
        let mut connections = Vec::new();
        for index in 0..tasks.clamp(1, CONNECTIONS_MAX) {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            if index == 0 {
                client
                    .batch_execute(&format!(
                        "CREATE TABLE IF NOT EXISTS updates (key bigint PRIMARY KEY, value bigint NOT NULL) WITH (fillfactor = 50); \
                         INSERT INTO updates SELECT key, 0 FROM generate_series(0, {ROWS} - 1) AS key ON CONFLICT DO NOTHING"
                    ))
                    .await?;
            }
            let update = client.prepare("UPDATE updates SET value = value + 1 WHERE key = $1").await?;
            connections.push((client, update));
        }
        Ok(Self { connections: Arc::new(connections), next: Arc::default() })
    }

    async fn update(&self, key: i64) -> Result<(), BoxError> {
        let which = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let (client, update) = self.connections.get(which).ok_or("no connection")?;
        match client.execute(update, &[&key]).await? {
            1 => Ok(()),
            other => Err(format!("{other} rows").into()),
        }
    }
}

impl Locker for Updates {
    type Held = i64;

    async fn acquire(&self, name: &str) -> Result<i64, BoxError> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let key = i64::try_from(hasher.finish() % ROWS)?;
        self.update(key).await?;
        Ok(key)
    }

    async fn release(&self, key: i64) -> Result<(), BoxError> {
        self.update(key).await
    }

    /// There is nothing to hold.
    fn is_held(&self, _key: &i64) -> bool {
        true
    }
}
