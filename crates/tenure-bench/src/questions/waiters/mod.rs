//! What an operation takes, over every store, as the queue of a name grows.

mod queue;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tenure::backend::{Backend, ClaimRequest};
use tenure::backends::etcd::EtcdBackend;
use tenure::backends::memory::MemoryStore;
use tenure::backends::postgres::PostgresBackend;
use tenure::backends::redis::RedisBackend;
use tenure::backends::redlock::RedlockBackend;
use tenure::backends::sqlite::SqliteBackend;
use tenure::backends::zookeeper::ZookeeperBackend;
use tenure::clock::SystemClock;
use tenure_testkit::plain_request;
use tenure_testkit::servers::{Fleet, Redis};
use tokio::time::timeout;

use self::queue::{OPS, Queue};
use super::seconds;
use crate::bench::{Bench, Cell};
use crate::server::Looker;
use crate::stores::OTHERS;

const NAME: &str = "waiters";
/// The stores that need no server, or Redis; those of [`OTHERS`] come after them.
const FIRST: [&str; 4] = ["memory", "embedded", "redis", "redlock"];
const NODES: usize = 5;
/// Nothing is to run out meanwhile.
const TTL: Duration = Duration::from_secs(600);
/// A store that a long queue wedges is told of, not waited for.
const LIMIT: Duration = Duration::from_secs(120);

/// All stores, in the order in which they are asked.
pub(crate) fn stores() -> impl Iterator<Item = &'static str> {
    FIRST.into_iter().chain(OTHERS.map(|store| store.name))
}

fn asked(bench: &Bench) -> Vec<&'static str> {
    stores().filter(|store| bench.plan.measures(store)).collect()
}

fn sizes(bench: &Bench) -> Vec<usize> {
    bench.plan.choose(vec![1, 10, 100, 1_000, 5_000], vec![1, 10, 100])
}

/// How often each operation is measured in a queue, where none takes long.
fn turns(bench: &Bench) -> usize {
    bench.plan.choose(100, 20)
}

/// See [`Question`](super::Question).
pub fn takes(bench: &Bench) -> Duration {
    let waiters: usize = sizes(bench).iter().sum();
    let ops = OPS.len() * turns(bench) * sizes(bench).len();
    let round = ops as f64 * 0.002 + waiters as f64 / 1_000.0;
    seconds(asked(bench).len() as f64 * (round * bench.plan.rounds as f64 + 1.0))
}

/// See [`Question`](super::Question).
pub fn ask(bench: &mut Bench) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let (asked, sizes, turns) = (asked(bench), sizes(bench), turns(bench));
    let of = asked.len() * sizes.len() * bench.plan.rounds;
    let mut done = 0;
    for store in asked {
        let mut running = Running::start(store)?;
        for round in 1..=bench.plan.rounds {
            for waiters in &sizes {
                bench.progress(NAME, done, of, &format!("{waiters} waiters over {store}, round {round}"));
                done += 1;
                let params = json!({ "waiters": waiters });
                let cell = Cell { question: NAME, contestant: "tenure", store, params: &params };
                if bench.is_out(&cell) {
                    continue;
                }
                let measured = measure(&mut running, *waiters, turns);
                let outcome = runtime.block_on(async { timeout(LIMIT, measured).await });
                let late = |_| Err(format!("not at its end after {} s", LIMIT.as_secs()));
                bench.note(&cell, round, outcome.unwrap_or_else(late))?;
                running.looker.as_mut().map_or(Ok(()), Looker::flush)?;
            }
        }
    }
    Ok(())
}

/// A claim as the engine makes it.
pub(super) fn claim(ttl: Duration) -> ClaimRequest {
    ClaimRequest { ttl, label: "bench".into(), solo: true, ..plain_request() }
}

/// In a queue of this length: a claim that joins it, a renewal anywhere in it, a release that hands the name on; and
/// all of it renewed at once.
async fn measure(running: &mut Running, waiters: usize, turns: usize) -> Result<Value, String> {
    let backend = running.open().await.map_err(|error| error.to_string())?;
    let mut queue = Queue::of(backend, waiters).await?;
    let mut result = queue.times(turns).await?;
    result["all_ms"] = json!(queue.renew_all().await?);
    // In a pass of its own, as looks in between keep the server's caches cold.
    if let Some(looker) = &mut running.looker {
        queue.looks(looker, turns, &mut result).await?;
    }
    queue.end().await?;
    Ok(result)
}

/// A store that begins empty, until this is dropped.
struct Running {
    store: &'static str,
    url: String,
    /// What looks at the server, where it can tell what a script took.
    looker: Option<Looker>,
    _kept: Box<dyn Any>,
}

impl Running {
    fn start(store: &'static str) -> Result<Self, String> {
        let mut looker = None;
        let (url, kept): (String, Box<dyn Any>) = match store {
            "memory" => ("memory:".to_owned(), Box::new(())),
            "embedded" => {
                let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
                (folder.path().join("locks.db").display().to_string(), Box::new(folder))
            }
            "redis" => {
                let server = Redis::start();
                looker = Some(Looker::new(&server)?);
                (server.url().to_owned(), Box::new(server))
            }
            "redlock" => {
                let fleet = Fleet::start(NODES);
                (fleet.url().to_owned(), Box::new(fleet))
            }
            _ => {
                let other = OTHERS.iter().find(|other| other.name == store).ok_or("a store that is not known")?;
                let server = (other.start)();
                let url = server.urls().into_iter().next().ok_or("a server without a URL")?;
                (url, Box::new(server))
            }
        };
        Ok(Self { store, url, looker, _kept: kept })
    }

    /// A new client of it.
    async fn open(&self) -> tenure::Result<Arc<dyn Backend>> {
        let (url, clock) = (self.url.as_str(), Arc::new(SystemClock));
        Ok(match self.store {
            "memory" => Arc::new(MemoryStore::new().client()),
            "embedded" => Arc::new(SqliteBackend::open(url.into(), clock).await?),
            "redis" => Arc::new(RedisBackend::open(url, clock).await?),
            "redlock" => Arc::new(RedlockBackend::open(url, clock).await?),
            "etcd" => Arc::new(EtcdBackend::open(url, clock).await?),
            "postgres" => Arc::new(PostgresBackend::open(url, clock).await?),
            _ => Arc::new(ZookeeperBackend::open(url, clock).await?),
        })
    }
}
