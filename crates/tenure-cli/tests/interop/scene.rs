//! One test's stage: a server, a client that takes part, and tenure beside it.

use std::time::Duration;

use serde_json::Value;
use tenure_testkit::servers::Redis;

use crate::clients::Client;
use crate::command::{Done, Running, eventually, tenure};
use crate::driver::Driver;

pub(crate) struct Scene {
    pub(crate) redis: Redis,
    client: Client,
}

/// Plays a case with this client, if it takes part.
pub(crate) fn with(client: Client, case: fn(&Scene)) {
    if client.is_listed() {
        case(&Scene::new(client));
    }
}

impl Scene {
    pub(crate) fn new(client: Client) -> Self {
        Self { redis: Redis::start(), client }
    }

    /// What tenure has to be told in order to share locks with the client.
    pub(crate) fn layout(&self) -> &'static str {
        self.client.layout()
    }

    pub(crate) fn driver(&self) -> Driver {
        Driver::start(self.client, self.redis.url())
    }

    /// The store as tenure names it, in the client's layout.
    pub(crate) fn url(&self) -> String {
        self.url_in(self.layout())
    }

    pub(crate) fn url_in(&self, layout: &str) -> String {
        format!("{}?layout={layout}", self.redis.url())
    }

    /// Runs `tenure` with these arguments, split at spaces.
    pub(crate) fn tenure(&self, args: &str) -> Done {
        self.tenure_in(self.layout(), args)
    }

    pub(crate) fn tenure_in(&self, layout: &str, args: &str) -> Done {
        let args: Vec<&str> = args.split_whitespace().collect();
        Running::of(&mut tenure(&self.url_in(layout), &args)).wait()
    }

    /// Starts `tenure` with these arguments and waits until it has asked the server for the lock, or has ended.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let before = self.attempts();
        let mut running = Running::of(&mut tenure(&self.url(), args));
        eventually("it asks for the lock", || self.attempts() > before || running.is_over());
        running
    }

    /// Lets the client try for this long, and waits until it has asked the server.
    pub(crate) fn start_acquire(&self, driver: &mut Driver, key: &str, ttl: Duration, wait: Duration) {
        let before = self.attempts();
        driver.send_acquire(key, ttl, wait);
        eventually("it asks for the lock", || self.attempts() > before);
    }

    /// How many commands that can take a lock the server has seen.
    fn attempts(&self) -> u64 {
        const TAKING: [&str; 6] = ["set", "setnx", "msetnx", "eval", "evalsha", "fcall"];
        let stats = self.redis.cli(&["info", "commandstats"]);
        let calls = stats.lines().filter_map(|line| {
            let (command, stat) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            TAKING.contains(&command).then(|| stat.split(',').next().unwrap().parse::<u64>().unwrap())
        });
        calls.sum()
    }

    /// The key as it is: its type and all that is in it.
    pub(crate) fn content(&self, key: &str) -> String {
        let kind = self.redis.cli(&["type", key]);
        let read = if kind == "hash" { "hgetall" } else { "get" };
        format!("{kind}: {}", self.redis.cli(&[read, key]))
    }

    /// Checks that tenure sees a holder that is none of its own, and answers that holder.
    pub(crate) fn foreign_holder(&self, layout: &str, key: &str) -> Value {
        let view = self.tenure_in(layout, &format!("show {key} --json")).exits(0).json();
        assert_eq!(view["holders"].as_array().unwrap().len(), 1, "{view}");
        let holder = view["holders"][0].clone();
        for field in ["label", "token", "held_ms"] {
            assert!(holder[field].is_null(), "{field} of {holder}");
        }
        holder
    }
}
