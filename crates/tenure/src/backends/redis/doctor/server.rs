//! One server, looked at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, Value};
use tokio::time::timeout;

use super::super::error::{of_command, of_connect, of_tls};
use super::super::node::unavailable;
use super::super::place::{CONNECT_MAX, client};
use super::super::url::{Address, Settings};
use super::super::wire;
use crate::clock::Clock;
use crate::error::{Error, Result};

/// How long one answer may take.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How many round trips are measured at most,
const PINGS: usize = 21;
/// and for how long.
const PINGING_MAX: Duration = Duration::from_secs(1);
/// How many readings of a server's clock are taken; the quickest is the most exact.
const CLOCK_READINGS: usize = 5;

/// The settings that matter to locks and that INFO does not tell everywhere. None of them is a secret.
pub(in crate::backends) const SETTINGS: [&str; 12] = [
    "appendonly",
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
    "timeout",
    "maxclients",
    "lua-time-limit",
    "protected-mode",
    "bind",
    "stop-writes-on-bgsave-error",
    "cluster-require-full-coverage",
];

/// A connection of the doctor's own.
pub(in crate::backends) struct Server {
    address: Address,
    connection: MultiplexedConnection,
    clock: Arc<dyn Clock>,
}

/// What one server told.
pub(in crate::backends) struct Seen {
    pub(in crate::backends) address: Address,
    info: BTreeMap<String, String>,
    /// Why INFO was refused.
    pub(in crate::backends) info_refused: Option<String>,
    config: BTreeMap<&'static str, String>,
    /// Why CONFIG GET was refused.
    pub(in crate::backends) config_refused: Option<String>,
    pub(in crate::backends) round_trip: Duration,
    /// How far its wall clock is ahead of ours.
    pub(in crate::backends) ahead: Option<Ahead>,
}

/// How far one clock is ahead of another, in microseconds, and how far off that may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backends) struct Ahead {
    pub(in crate::backends) us: i64,
    pub(in crate::backends) doubt_us: i64,
}

impl Seen {
    /// A setting: as configured, else as INFO knows it.
    pub(in crate::backends) fn setting(&self, name: &str) -> Option<&str> {
        let of_info = || match name {
            "appendonly" => self.info("aof_enabled").map(|on| if on == "1" { "yes" } else { "no" }),
            "maxclients" => self.info("maxclients"),
            _ => None,
        };
        self.config.get(name).map(String::as_str).or_else(of_info)
    }

    pub(in crate::backends) fn info(&self, field: &str) -> Option<&str> {
        self.info.get(field).map(String::as_str)
    }

    pub(in crate::backends) fn number(&self, field: &str) -> Option<u64> {
        self.info(field)?.parse().ok()
    }

    pub(in crate::backends) fn number_set(&self, name: &str) -> Option<u64> {
        self.setting(name)?.parse().ok()
    }

    #[cfg(test)]
    pub(in crate::backends) fn of(info: &str, config: &[(&'static str, &str)]) -> Self {
        Self {
            address: Address { host: "127.0.0.1".to_owned(), port: 6379 },
            info: fields(info),
            info_refused: None,
            config: config.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            config_refused: None,
            round_trip: Duration::from_micros(100),
            ahead: Some(Ahead { us: 0, doubt_us: 50 }),
        }
    }
}

impl Server {
    /// Connects to any Redis, master or not.
    pub(in crate::backends) async fn open(
        settings: &Settings,
        clock: &Arc<dyn Clock>,
        address: Address,
    ) -> Result<Self> {
        let client = client(settings, &address, &settings.login, settings.db)?;
        let opened = match timeout(CONNECT_MAX, client.get_multiplexed_async_connection()).await {
            Ok(opened) => opened.map_err(|error| of_tls(&error, &address).unwrap_or_else(|| of_connect(&error))),
            Err(_) => Err(unavailable(&format!("no answer from Redis at {address}"))),
        };
        Ok(Self { address, connection: opened?, clock: clock.clone() })
    }

    /// Asks it everything. An error only if it does not answer.
    pub(in crate::backends) async fn look(&mut self) -> Result<Seen> {
        let round_trip = self.round_trip().await?;
        let ahead = self.ahead().await?;
        let (info, info_refused) = match self.ask(&redis::cmd("INFO")).await? {
            Ok(info) => (wire::text(&info).map(fields).unwrap_or_default(), None),
            Err(refused) => (BTreeMap::new(), Some(refused.to_string())),
        };
        let (config, config_refused) = self.config().await?;
        let address = self.address.clone();
        Ok(Seen { address, info, info_refused, config, config_refused, round_trip, ahead })
    }

    /// A reading of its clock against ours, at the middle of the quickest of a few round trips.
    pub(in crate::backends) async fn ahead(&mut self) -> Result<Option<Ahead>> {
        let mut best: Option<Ahead> = None;
        for _ in 0..CLOCK_READINGS {
            let (before, wall) = (self.clock.now(), self.clock.wall_micros());
            let Ok(answer) = self.ask(&redis::cmd("TIME")).await? else { return Ok(None) };
            let half = self.clock.now().since(before) / 2;
            let Value::Array(parts) = &answer else { return Ok(None) };
            let [seconds, micros] = parts.as_slice() else { return Ok(None) };
            let (Some(seconds), Some(micros)) = (wire::number(seconds), wire::number(micros)) else { return Ok(None) };
            let doubt_us = signed(half.as_micros());
            let theirs = signed(u128::from(seconds) * 1_000_000 + u128::from(micros));
            let reading = Ahead { us: theirs - signed(u128::from(wall)) - doubt_us, doubt_us };
            best = Some(best.filter(|best| best.doubt_us <= reading.doubt_us).unwrap_or(reading));
        }
        Ok(best)
    }

    /// The median of some round trips.
    async fn round_trip(&mut self) -> Result<Duration> {
        let started = self.clock.now();
        let mut trips = Vec::with_capacity(PINGS);
        while trips.len() < PINGS && (trips.is_empty() || self.clock.now().since(started) < PINGING_MAX) {
            let before = self.clock.now();
            let _ = self.ask(&redis::cmd("PING")).await?;
            trips.push(self.clock.now().since(before));
        }
        trips.sort_unstable();
        Ok(trips.get(trips.len() / 2).copied().unwrap_or_default())
    }

    /// The settings, one by one: older servers take one pattern at a time.
    async fn config(&mut self) -> Result<(BTreeMap<&'static str, String>, Option<String>)> {
        let mut config = BTreeMap::new();
        for name in SETTINGS {
            let answer = match self.ask(redis::cmd("CONFIG").arg("GET").arg(name)).await? {
                Ok(answer) => answer,
                // What is refused once is refused for all.
                Err(refused) => return Ok((config, Some(refused.to_string()))),
            };
            let value = match &answer {
                Value::Array(pair) => pair.get(1).and_then(wire::text),
                Value::Map(pairs) => pairs.first().and_then(|(_, value)| wire::text(value)),
                _ => None,
            };
            if let Some(value) = value {
                config.insert(name, value.to_owned());
            }
        }
        Ok((config, None))
    }

    /// One command: its value, or how the server refused it. An error if it does not answer.
    pub(in crate::backends) async fn ask(&mut self, command: &Cmd) -> Result<std::result::Result<Value, RedisError>> {
        let asked = async { self.connection.send_packed_command(command).await?.extract_error() };
        match timeout(ANSWER_MAX, asked).await {
            Ok(Err(error)) if error.code().is_none() => Err(self.failed(of_command(&error))),
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.failed(unavailable("no answer from Redis"))),
        }
    }

    fn failed(&self, error: Error) -> Error {
        error.adding(&format!(" at {}", self.address))
    }
}

fn signed(us: u128) -> i64 {
    i64::try_from(us).unwrap_or(i64::MAX)
}

/// The fields of an answer to INFO, CLUSTER INFO and their like.
pub(in crate::backends) fn fields(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.trim().split_once(':'));
    pairs.map(|(field, value)| (field.to_owned(), value.to_owned())).collect()
}
