//! PostgreSQL's advisory locks: by plain statements, and by sqlx's `PgAdvisoryLock`, as its documentation has it. A
//! session waits in its connection, so each lock that is held or asked for has one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgAdvisoryLock, PgAdvisoryLockGuard, PgPool, PgPoolOptions};
use sqlx::{Connection as _, PgConnection, Postgres};
use tenure_load::order::{Listing, Order, Target};
use tenure_load::{BoxError, Locker};

pub(crate) const PLAIN: &str = "pg-advisory";
pub(crate) const SQLX: &str = "sqlx-advisory";

pub(crate) fn listings() -> [Listing; 2] {
    let listing = |peer, settings| Listing {
        library: "sqlx".to_owned(),
        ..crate::listing(peer, "postgres", "0.9.0", settings, true)
    };
    [
        listing(
            PLAIN,
            "tokio with one thread; pg_advisory_lock and pg_advisory_unlock of hashtextextended(name, 0); a connection for each lock held or asked for, \
             kept for the next; no ttl: a lock ends with its connection",
        ),
        listing(
            SQLX,
            "tokio with one thread; PgAdvisoryLock over a PgPool with a connection for each task or lease (default 10 at most), a day to wait for \
             one (default 30 s), else the defaults; no ttl: a lock ends with its connection",
        ),
    ]
}

fn url(target: &Target) -> Result<&str, BoxError> {
    Ok(target.urls.first().ok_or("no URL")?)
}

/// Plain statements.
#[derive(Clone)]
pub(crate) struct Plain {
    url: String,
    /// Connections that hold nothing.
    free: Arc<Mutex<Vec<PgConnection>>>,
}

impl Plain {
    pub(crate) async fn connect(target: &Target) -> Result<Self, BoxError> {
        let url = url(target)?;
        let first = PgConnection::connect(url).await?;
        Ok(Self { url: url.to_owned(), free: Arc::new(Mutex::new(vec![first])) })
    }

    fn free<T>(&self, act: impl FnOnce(&mut Vec<PgConnection>) -> T) -> T {
        act(&mut self.free.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Locker for Plain {
    type Held = (PgConnection, String);

    async fn acquire(&self, name: &str) -> Result<Self::Held, BoxError> {
        let mut connection = match self.free(Vec::pop) {
            Some(connection) => connection,
            None => PgConnection::connect(&self.url).await?,
        };
        let lock = sqlx::query("SELECT pg_advisory_lock(hashtextextended($1, 0))").bind(name);
        lock.execute(&mut connection).await?;
        Ok((connection, name.to_owned()))
    }

    async fn release(&self, (mut connection, name): Self::Held) -> Result<(), BoxError> {
        let unlock = sqlx::query_scalar("SELECT pg_advisory_unlock(hashtextextended($1, 0))").bind(&name);
        let released: bool = unlock.fetch_one(&mut connection).await?;
        self.free(|free| free.push(connection));
        if released { Ok(()) } else { Err(format!("{name} was not held").into()) }
    }

    fn is_held(&self, _held: &Self::Held) -> bool {
        true
    }
}

/// sqlx's helper.
#[derive(Clone)]
pub(crate) struct Sqlx(PgPool);

impl Sqlx {
    pub(crate) async fn connect(order: &Order, target: &Target) -> Result<Self, BoxError> {
        let most = match order {
            Order::Pairs(order) => order.tasks,
            Order::Hot(order) => order.tasks,
            Order::Leases(order) => order.leases,
            Order::List | Order::Hold(_) | Order::Take(_) | Order::Outage(_) => 1,
        };
        let options = PgPoolOptions::new().max_connections(u32::try_from(most)?);
        Ok(Self(options.acquire_timeout(Duration::from_secs(86_400)).connect(url(target)?).await?))
    }
}

impl Locker for Sqlx {
    type Held = PgAdvisoryLockGuard<PoolConnection<Postgres>>;

    async fn acquire(&self, name: &str) -> Result<Self::Held, BoxError> {
        Ok(PgAdvisoryLock::new(name).acquire(self.0.acquire().await?).await?)
    }

    async fn release(&self, held: Self::Held) -> Result<(), BoxError> {
        held.release_now().await?;
        Ok(())
    }

    fn is_held(&self, _held: &Self::Held) -> bool {
        true
    }
}
