//! What a Redis can do: `redis-benchmark`, and the classic lock without anything around it.

use std::process::Command;

use serde_json::{Value, json};
use tenure_load::order::Target;
use tenure_load::{BoxError, Locker};
use tenure_testkit::servers::Redis;

/// Frees a classic lock: only the one who set it may delete it.
pub const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
const OWNER: &str = "0123456789abcdef";
/// How many keys there are for each request of `redis-benchmark`, which draws them at random: nearly all requests
/// then have one of their own.
const KEYS_PER_REQUEST: usize = 10;
/// Sets the keys that are then deleted, a part of them at a time.
const FILL: &str =
    "for key = ARGV[1], ARGV[2] do redis.call('set', string.format('key:%012.0f', key), ARGV[3], 'PX', 60000) end";
const FILL_AT_ONCE: usize = 50_000;

/// Requests per second, by the last line of what `redis-benchmark --csv` prints.
pub fn parse_csv(text: &str) -> Option<f64> {
    let line = text.lines().rfind(|line| line.starts_with('"'))?;
    // The command may have commas and quotes of its own; the figures after it have none: the rate, and six of the
    // latency in versions since 6.2.
    let fields: Vec<&str> = line.trim_end().trim_end_matches('"').rsplit("\",\"").collect();
    let figures = fields.iter().take_while(|field| field.parse::<f64>().is_ok()).count();
    fields.get(figures.min(7).checked_sub(1)?)?.parse().ok()
}

fn rate(server: &Redis, requests: usize, command: &[&str]) -> Result<f64, String> {
    let mut benchmark = Command::new("timeout");
    benchmark.args(["--signal=KILL", "60", "redis-benchmark", "-p", &server.port().to_string()]);
    let (count, keys) = (requests.to_string(), (requests * KEYS_PER_REQUEST).to_string());
    benchmark.args(["-c", "16", "-P", "16", "-n", &count, "-r", &keys, "--csv"]).args(command);
    let output = benchmark.output().map_err(|error| format!("redis-benchmark: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    parse_csv(&text).ok_or_else(|| format!("redis-benchmark said {text:?}"))
}

/// Pairs per second of the classic lock as fast as the server goes: `SET NX PX`, then compare and delete, each with 16
/// connections and pipelines of 16 over distinct keys: some 95 of 100 set a key that is free, and delete one that is
/// theirs.
///
/// # Errors
///
/// If `redis-benchmark` is missing or fails.
pub fn pairs(server: &Redis, requests: usize) -> Result<Value, String> {
    let digest = server.cli(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]);
    let set = rate(server, requests, &["SET", "key:__rand_int__", OWNER, "NX", "PX", "30000"])?;
    server.cli(&["FLUSHALL"]);
    let keys = requests * KEYS_PER_REQUEST;
    for first in (0..keys).step_by(FILL_AT_ONCE) {
        let last = (first + FILL_AT_ONCE).min(keys) - 1;
        server.cli(&["EVAL", FILL, "0", &first.to_string(), &last.to_string(), OWNER]);
    }
    let delete = rate(server, requests, &["EVALSHA", &digest, "1", "key:__rand_int__", OWNER])?;
    Ok(json!({ "pairs_per_s": 1.0 / (1.0 / set + 1.0 / delete), "set_per_s": set, "evalsha_per_s": delete }))
}

/// The classic lock by the client that tenure uses, with nothing around it. It does not wait: a name that is taken is
/// an error.
#[derive(Clone)]
pub struct Classic {
    connection: redis::aio::MultiplexedConnection,
    delete: redis::Script,
    ttl_ms: u64,
}

impl Classic {
    /// Connects to the server of an order.
    ///
    /// # Errors
    ///
    /// The client's.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: nothing is held yet.
    pub async fn connect(target: &Target) -> Result<Self, BoxError> {
        let url = target.urls.first().ok_or("no URL")?.as_str();
        let connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        Ok(Self { connection, delete: redis::Script::new(COMPARE_AND_DELETE), ttl_ms: target.ttl_ms })
    }
}

impl Locker for Classic {
    type Held = String;

    async fn acquire(&self, name: &str) -> Result<String, BoxError> {
        let mut set = redis::cmd("SET");
        set.arg(name).arg(OWNER).arg("NX").arg("PX").arg(self.ttl_ms);
        let set: Option<String> = set.query_async(&mut self.connection.clone()).await?;
        set.map(|_| name.to_owned()).ok_or_else(|| format!("{name} is taken").into())
    }

    async fn release(&self, name: String) -> Result<(), BoxError> {
        let mut delete = self.delete.key(name);
        let _: i64 = delete.arg(OWNER).invoke_async(&mut self.connection.clone()).await?;
        Ok(())
    }

    /// It cannot tell.
    fn is_held(&self, _held: &String) -> bool {
        true
    }
}
