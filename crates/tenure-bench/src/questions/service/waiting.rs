//! Many who wait: what one costs the service in memory, and how long a hand-over takes, beside the library with as
//! many waiters.

use std::time::Duration;

use serde_json::{Value, json};
use tenure::{Guard, Tenure};
use tenure_load::epoch_micros;
use tenure_testkit::servers::Redis;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, sleep, timeout};

use super::instance::Service;
use crate::over_http::Connection;
use crate::stats::percentile;

/// How many waiters one name has.
const WAITERS_OF_NAME: usize = 100;
/// How often each name is handed over, to the service's waiters and to the library's by turns.
const TURNS: usize = 10;
/// How many begin to wait at once: more than the service's backlog would be tried again by the kernel, after a second
/// and more.
const BURST: usize = 200;
const BURST_PAUSE: Duration = Duration::from_millis(40);
/// Renewed three times in each, by the service and by the library.
const TTL: Duration = Duration::from_secs(60);
const WAIT_MS: u64 = 50_000;
/// How long all may take to begin to wait, and one hand-over to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A waiter that holds now.
struct Granted<H> {
    name: usize,
    held: H,
    at_us: u64,
}

fn said(error: impl ToString) -> String {
    error.to_string()
}

/// Figures of a service that has done nothing before, and of the library, each over its own Redis.
pub(super) fn measure(served: &Redis, redis: &Redis, waiters: usize) -> Result<(Value, Value), String> {
    let service = Service::start(served.url())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(said)?;
    runtime.block_on(async {
        let prefix = format!("bench/waiters/{:x}", epoch_micros());
        let names = waiters.div_ceil(WAITERS_OF_NAME);
        let mut by_service = AtService::begin(&service, &prefix, names).await?;
        let before = service.resident_bytes();
        by_service.all_wait(waiters).await?;
        let after = service.resident_bytes();
        let mut by_library = ByLibrary::begin(redis.url(), &prefix, names).await?;
        by_library.all_wait(waiters).await?;
        let (mut of_service, mut of_library) = (Vec::new(), Vec::new());
        for turn in 0..names * TURNS {
            of_service.push(by_service.hand_over(turn % names).await?);
            of_library.push(by_library.hand_over(turn % names).await?);
        }
        let times = |samples: &[f64]| {
            json!({ "waiters": waiters, "handed_over_p50_us": percentile(samples, 50.0),
                "handed_over_p99_us": percentile(samples, 99.0), "handed_over": samples.len() })
        };
        let mut service = times(&of_service);
        service["bytes_per_waiter"] = json!(after.saturating_sub(before) as f64 / waiters as f64);
        service["resident_before"] = json!(before);
        service["resident_after"] = json!(after);
        Ok((service, times(&of_library)))
    })
}

/// Waiters on connections of their own, and one connection for everything else.
struct AtService {
    host: String,
    prefix: String,
    connection: Connection,
    /// The owner of who holds each name.
    holders: Vec<String>,
    say: UnboundedSender<Result<Granted<String>, String>>,
    granted: UnboundedReceiver<Result<Granted<String>, String>>,
}

impl AtService {
    async fn begin(service: &Service, prefix: &str, names: usize) -> Result<Self, String> {
        let host = service.url.trim_start_matches("http://").to_owned();
        let connection = Connection::open(&host).await.map_err(said)?;
        let (say, granted) = unbounded_channel();
        let holders = vec!["holder".to_owned(); names];
        let mut all = Self { host, prefix: prefix.to_owned(), connection, holders, say, granted };
        for name in 0..names {
            let ask = all.ask(name, "holder", 0);
            all.connection.send("/v1/acquire", &ask).await.map_err(said)?;
            all.connection.answer().await.map_err(said)?;
        }
        Ok(all)
    }

    fn ask(&self, name: usize, owner: &str, wait_ms: u64) -> Value {
        json!({ "name": format!("{}/{name}", self.prefix), "owner": owner, "claim": "1", "ttl_ms": TTL.as_millis() as u64,
            "wait_ms": wait_ms, "queue": wait_ms > 0 })
    }

    async fn all_wait(&mut self, waiters: usize) -> Result<(), String> {
        let names = self.holders.len();
        for waiter in 0..waiters {
            let (name, owner) = (waiter % names, format!("w{waiter}"));
            let (ask, say) = (self.ask(name, &owner, WAIT_MS), self.say.clone());
            let mut connection = Connection::open(&self.host).await.map_err(said)?;
            connection.send("/v1/acquire", &ask).await.map_err(said)?;
            tokio::spawn(async move {
                let held = is_granted(&mut connection, &ask).await;
                let _ = say.send(held.map(|()| Granted { name, held: owner, at_us: epoch_micros() }));
                // It stays open until the end, as those of others do.
                connection
            });
            if waiter % BURST == BURST - 1 {
                sleep(BURST_PAUSE).await;
            }
        }
        // One more claim would stand behind all of a name's, and behind its holder.
        let until = Instant::now() + PATIENCE;
        for name in 0..names {
            let ahead = (waiters - name).div_ceil(names) as u64 + 1;
            loop {
                let ask = self.ask(name, "late", 0);
                self.connection.send("/v1/acquire", &ask).await.map_err(said)?;
                let (_, answer) = self.connection.answer().await.map_err(said)?;
                if answer["ahead"].as_u64() == Some(ahead) {
                    break;
                }
                if Instant::now() > until {
                    return Err(format!("not all wait at the service: {answer} and not {ahead}"));
                }
                sleep(BURST_PAUSE).await;
            }
        }
        Ok(())
    }

    /// Releases a name; answers after how many microseconds the next one knew that it holds.
    async fn hand_over(&mut self, name: usize) -> Result<f64, String> {
        let end = json!({ "name": format!("{}/{name}", self.prefix), "owner": self.holders[name], "claim": "1" });
        let began = epoch_micros();
        self.connection.send("/v1/release", &end).await.map_err(said)?;
        let granted = next(&mut self.granted, name).await?;
        self.connection.answer().await.map_err(said)?;
        self.holders[name] = granted.held;
        Ok(granted.at_us.saturating_sub(began) as f64)
    }
}

/// Waits on a request that was sent, and sends it again whenever its time is over.
async fn is_granted(connection: &mut Connection, ask: &Value) -> Result<(), String> {
    loop {
        match connection.answer().await.map_err(said)? {
            (200, _) => return Ok(()),
            (202, _) => connection.send("/v1/acquire", ask).await.map_err(said)?,
            (status, answer) => return Err(format!("a waiter was answered {status} {answer}")),
        }
    }
}

/// Waiters as tasks, every other one in another client, so that names go from client to client.
struct ByLibrary {
    clients: [Tenure; 2],
    prefix: String,
    holders: Vec<Option<Guard>>,
    say: UnboundedSender<Result<Granted<Guard>, String>>,
    granted: UnboundedReceiver<Result<Granted<Guard>, String>>,
}

impl ByLibrary {
    async fn begin(url: &str, prefix: &str, names: usize) -> Result<Self, String> {
        let clients = [Tenure::connect(url).await.map_err(said)?, Tenure::connect(url).await.map_err(said)?];
        let (say, granted) = unbounded_channel();
        let mut all = Self { clients, prefix: prefix.to_owned(), holders: Vec::new(), say, granted };
        for name in 0..names {
            let held = all.lock(1, name).acquire().await.map_err(said)?;
            all.holders.push(Some(held));
        }
        Ok(all)
    }

    /// Strict, as the service's claims are: each waiter stands in the store's queue, and none is passed over.
    fn lock(&self, client: usize, name: usize) -> tenure::Lock {
        self.clients[client].lock(format!("{}/{name}", self.prefix)).ttl(TTL).strict_fifo()
    }

    async fn all_wait(&mut self, waiters: usize) -> Result<(), String> {
        let names = self.holders.len();
        for waiter in 0..waiters {
            let name = waiter % names;
            let (lock, say) = (self.lock(waiter / names % 2, name), self.say.clone());
            tokio::spawn(async move {
                let held = lock.acquire().await.map_err(said);
                let _ = say.send(held.map(|held| Granted { name, held, at_us: epoch_micros() }));
            });
            if waiter % BURST == BURST - 1 {
                sleep(BURST_PAUSE).await;
            }
        }
        let until = Instant::now() + PATIENCE;
        for name in 0..names {
            let waiting = (waiters - name).div_ceil(names);
            loop {
                let view = self.clients[0].inspect(format!("{}/{name}", self.prefix)).await.map_err(said)?;
                if view.waiters.len() == waiting {
                    break;
                }
                if Instant::now() > until {
                    return Err(format!("not all wait by the library: {} and not {waiting}", view.waiters.len()));
                }
                sleep(BURST_PAUSE).await;
            }
        }
        Ok(())
    }

    /// As [`AtService::hand_over`].
    async fn hand_over(&mut self, name: usize) -> Result<f64, String> {
        let held = self.holders[name].take().ok_or("nobody holds it")?;
        let began = epoch_micros();
        let (released, granted) = tokio::join!(held.release(), next(&mut self.granted, name));
        released.map_err(said)?;
        let granted = granted?;
        self.holders[name] = Some(granted.held);
        Ok(granted.at_us.saturating_sub(began) as f64)
    }
}

async fn next<H>(
    granted: &mut UnboundedReceiver<Result<Granted<H>, String>>,
    name: usize,
) -> Result<Granted<H>, String> {
    let told = timeout(PATIENCE, granted.recv()).await.map_err(|_| "nobody was granted the name that was released")?;
    let granted = told.ok_or("nobody waits")??;
    if granted.name == name { Ok(granted) } else { Err(format!("name {} was granted, not {name}", granted.name)) }
}
