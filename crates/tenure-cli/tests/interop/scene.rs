//! One test's stage: a server or several, a client that takes part, and tenure beside it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tenure_testkit::servers::{Fleet, Redis};

use crate::clients::Client;
use crate::command::{Done, Running, eventually, tenure};
use crate::driver::Driver;

pub(crate) struct Scene {
    servers: Fleet,
    two_are_stopped: AtomicBool,
    client: Client,
}

/// Which servers a test stops: neither the first nor the last ones of the list.
const TO_STOP: [usize; 2] = [1, 3];

/// Plays a case with this client on one server.
pub(crate) fn with(client: Client, case: fn(&Scene)) {
    play(client, Scene::new, case);
}

/// Plays a case on a stage of this kind.
pub(crate) fn play(client: Client, scene: fn(Client) -> Scene, case: fn(&Scene)) {
    case(&scene(client));
}

impl Scene {
    /// One server.
    pub(crate) fn new(client: Client) -> Self {
        Self::on(1, client)
    }

    /// Five servers, of which a lock needs three.
    pub(crate) fn on_five(client: Client) -> Self {
        Self::on(5, client)
    }

    fn on(servers: usize, client: Client) -> Self {
        Self { servers: Fleet::start(servers), two_are_stopped: AtomicBool::new(false), client }
    }

    /// Five servers, of which two are stopped.
    pub(crate) fn on_three_of_five(client: Client) -> Self {
        let scene = Self::on_five(client);
        scene.stop_two();
        scene
    }

    /// Stops two of five.
    pub(crate) fn stop_two(&self) {
        self.two_are_stopped.store(true, Ordering::Relaxed);
        TO_STOP.iter().for_each(|&index| self.servers()[index].kill());
    }

    /// The only server, or the first.
    pub(crate) fn redis(&self) -> &Redis {
        &self.servers.nodes()[0]
    }

    /// All servers, also those that are stopped.
    pub(crate) fn servers(&self) -> &[Redis] {
        self.servers.nodes()
    }

    fn running(&self) -> impl Iterator<Item = &Redis> {
        let all_run = !self.two_are_stopped.load(Ordering::Relaxed);
        let servers = self.servers().iter().enumerate();
        servers.filter(move |(index, _)| all_run || !TO_STOP.contains(index)).map(|(_, server)| server)
    }

    /// What tenure has to be told in order to share locks with the client.
    pub(crate) fn layout(&self) -> &'static str {
        self.client.layout()
    }

    pub(crate) fn driver(&self) -> Driver {
        let urls: Vec<&str> = self.servers().iter().map(Redis::url).collect();
        Driver::start(self.client, &urls)
    }

    /// The store as tenure names it, in the client's layout.
    pub(crate) fn url(&self) -> String {
        self.url_in(self.layout())
    }

    pub(crate) fn url_in(&self, layout: &str) -> String {
        match self.servers() {
            [only] => format!("{}?layout={layout}", only.url()),
            // None of them is slow, but the machine may be.
            _ => self.servers.url_with(&format!("layout={layout}&node_timeout=1s")),
        }
    }

    /// Runs `tenure` with these arguments, split at spaces.
    pub(crate) fn tenure(&self, args: &str) -> Done {
        self.tenure_in(self.layout(), args)
    }

    pub(crate) fn tenure_in(&self, layout: &str, args: &str) -> Done {
        let args: Vec<&str> = args.split_whitespace().collect();
        Running::of(&mut tenure(&self.url_in(layout), &args)).wait()
    }

    /// Starts `tenure` with these arguments and waits until it has asked for the lock, or has ended.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let before = self.attempts();
        let mut running = Running::of(&mut tenure(&self.url(), args));
        eventually("it asks for the lock", || self.attempts() > before || running.is_over());
        running
    }

    /// Lets the client try for this long, and waits until it has asked for the lock.
    pub(crate) fn start_acquire(&self, driver: &mut Driver, key: &str, ttl: Duration, wait: Duration) {
        let before = self.attempts();
        driver.send_acquire(key, ttl, wait);
        eventually("it asks for the lock", || self.attempts() > before);
    }

    /// Starts a `tenure run` that goes on until it is told to finish, and waits until it holds the lock.
    pub(crate) fn holding_run(&self, ttl: &str) -> HoldingRun {
        HoldingRun::start(&self.url(), &["--ttl", ttl])
    }

    /// How many commands that can take a lock the servers have seen.
    fn attempts(&self) -> u64 {
        const TAKING: [&str; 6] = ["set", "setnx", "msetnx", "eval", "evalsha", "fcall"];
        let stats: String = self.running().map(|server| server.cli(&["info", "commandstats"]) + "\n").collect();
        let calls = stats.lines().filter_map(|line| {
            let (command, stat) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            TAKING.contains(&command).then(|| stat.split(',').next().unwrap().parse::<u64>().unwrap())
        });
        calls.sum()
    }

    /// The key as it is on each server that runs.
    pub(crate) fn content(&self, key: &str) -> Vec<String> {
        contents(self.running(), key)
    }

    /// Waits until each server that runs has this key: clients go on when most of them have answered.
    pub(crate) fn settle(&self, key: &str) {
        eventually("all servers have it", || self.running().all(|server| server.cli(&["exists", key]) == "1"));
    }

    /// Whether no server that runs has this key.
    pub(crate) fn is_free(&self, key: &str) -> bool {
        self.running().all(|server| server.cli(&["exists", key]) == "0")
    }

    /// How long the last server would keep the key.
    pub(crate) fn left(&self, key: &str) -> Duration {
        let millis = self.running().map(|server| server.cli(&["pttl", key]).parse::<u64>().unwrap());
        Duration::from_millis(millis.max().unwrap())
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

/// The key as it is on each of these servers: its type and all that is in it.
pub(crate) fn contents<'a>(servers: impl IntoIterator<Item = &'a Redis>, key: &str) -> Vec<String> {
    let content = |server: &Redis| {
        let kind = server.cli(&["type", key]);
        let read = if kind == "hash" { "hgetall" } else { "get" };
        format!("{kind}: {}", server.cli(&[read, key]))
    };
    servers.into_iter().map(content).collect()
}

/// A run that holds the lock, and ends with the test.
pub(crate) struct HoldingRun {
    run: Running,
    dir: TempDir,
}

impl HoldingRun {
    /// With these options, of the name `x`.
    pub(crate) fn start(url: &str, options: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let script = "touch holds; until [ -e finish ]; do sleep 0.02; done";
        let args = [&["run", "x", "--no-wait"], options, &["--", "sh", "-c", script]].concat();
        let mut run = Running::of(tenure(url, &args).current_dir(dir.path()));
        eventually("the run holds it", || dir.path().join("holds").exists() || run.is_over());
        Self { run: run.going(), dir }
    }

    /// Lets the run come to its end, which is a good one.
    pub(crate) fn finish(self) {
        std::fs::write(self.dir.path().join("finish"), "").unwrap();
        self.run.wait().exits(0);
    }
}
