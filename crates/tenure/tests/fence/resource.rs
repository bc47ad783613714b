//! Resources in every place that has a fence, behind one face.

use std::sync::OnceLock;

use redis::aio::MultiplexedConnection;
use rusqlite::Connection;
use rusqlite::TransactionBehavior::Immediate;
use tenure::fence::redis::Script;
use tenure::fence::{Failure, Fence, Gate, Refused, postgres, sql, sqlite};
use tenure::{Owner, Shape, Token};
use tenure_testkit::servers::shared;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Look,
    Read,
    Write,
}

pub(crate) trait Resource {
    /// Does this to the resource of this name.
    async fn run(&mut self, resource: &str, op: Op, fence: &Fence) -> Result<(), Refused>;
}

pub(crate) fn fence(token: u64, owner: &str, shape: Shape) -> Fence {
    Fence::new(Some(Token(token)), &Owner::new(owner).unwrap(), shape).unwrap()
}

fn refused<E: std::error::Error>(result: Result<(), Failure<E>>) -> Result<(), Refused> {
    match result {
        Ok(()) => Ok(()),
        Err(Failure::Refused(refused)) => Err(refused),
        Err(Failure::Store(error)) => panic!("{error}"),
    }
}

/// Has one resource at a time.
pub(crate) struct InProcess(pub(crate) String, pub(crate) Gate<()>);

impl Resource for InProcess {
    async fn run(&mut self, resource: &str, op: Op, fence: &Fence) -> Result<(), Refused> {
        if resource != self.0 {
            *self = Self(resource.to_owned(), Gate::new(()).named("stock"));
        }
        match op {
            Op::Look => self.1.look(fence),
            Op::Read => self.1.read_as(fence, |()| ()),
            Op::Write => self.1.write_as(fence, |()| ()),
        }
    }
}

pub(crate) fn in_sqlite() -> Connection {
    let database = Connection::open_in_memory().unwrap();
    database.execute_batch(sql::TABLE).unwrap();
    database
}

impl Resource for Connection {
    async fn run(&mut self, resource: &str, op: Op, fence: &Fence) -> Result<(), Refused> {
        if let Op::Look = op {
            return refused(sqlite::look(self, resource, fence));
        }
        let transaction = self.transaction_with_behavior(Immediate).unwrap();
        refused(match op {
            Op::Write => sqlite::write(&transaction, resource, fence),
            _ => sqlite::read(&transaction, resource, fence),
        })?;
        transaction.commit().unwrap();
        Ok(())
    }
}

pub(crate) async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// A PostgreSQL with the table of fences.
pub(crate) fn postgres_url() -> &'static str {
    static TABLE: OnceLock<&str> = OnceLock::new();
    TABLE.get_or_init(|| {
        shared::postgres().psql(sql::TABLE);
        shared::postgres().url()
    })
}

impl Resource for tokio_postgres::Client {
    async fn run(&mut self, resource: &str, op: Op, fence: &Fence) -> Result<(), Refused> {
        if let Op::Look = op {
            return refused(postgres::look(self, resource, fence).await);
        }
        let transaction = self.transaction().await.unwrap();
        refused(match op {
            Op::Write => postgres::write(&transaction, resource, fence).await,
            _ => postgres::read(&transaction, resource, fence).await,
        })?;
        transaction.commit().await.unwrap();
        Ok(())
    }
}

pub(crate) async fn in_redis(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

impl Resource for MultiplexedConnection {
    async fn run(&mut self, resource: &str, op: Op, fence: &Fence) -> Result<(), Refused> {
        let nothing: &[&str] = &[];
        refused(match op {
            Op::Look => tenure::fence::redis::look(self, resource, fence).await,
            Op::Read => Script::new("").read(self, resource, fence, nothing, nothing).await,
            Op::Write => Script::new("").write(self, resource, fence, nothing, nothing).await,
        })
    }
}
