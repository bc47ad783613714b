//! What goes over the wire: how many commands, connections and channels.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure::backend::{Backend as _, Call, ClaimRequest, Claimed, ReleaseRequest, Released, RenewRequest, Renewed};
use tenure::backends::redis::RedisBackend;
use tenure::clock::SystemClock;
use tenure::{Name, Tenure};
use tenure_testkit::servers::Redis;

use crate::support::{LONG, Server, granted, patiently, request, until, waiters, waiting};

/// Every command that clients send, in order, as `MONITOR` shows it.
///
/// `INFO commandstats` and `total_commands_processed` count what scripts call too. `MONITOR` shows that too, but
/// marks it: `[0 lua]` stands where a client has its address. A mark of our own (`ECHO`) says where to stop reading,
/// as what a client sent before it is shown before it.
pub(crate) struct Monitor<'a> {
    redis: &'a Redis,
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    marks: AtomicUsize,
}

impl<'a> Monitor<'a> {
    pub(crate) fn start(redis: &'a Redis) -> Self {
        let mut child = Command::new("redis-cli")
            .args(["-p", &redis.port().to_string(), "monitor"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("redis-cli");
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "OK");
        Self { redis, child, lines, marks: AtomicUsize::new(0) }
    }

    /// The lower-case names of the commands since the last time, without our own.
    pub(crate) fn commands(&mut self) -> Vec<String> {
        let mark = format!("mark-{}", self.marks.fetch_add(1, Ordering::SeqCst));
        self.redis.cli(&["echo", &mark]);
        let mut commands = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the monitor ended");
            if line.contains(&mark) {
                return commands;
            }
            let (client, command) = line.split_once("] ").unwrap();
            if !client.ends_with(" lua") {
                commands.push(command.split('"').nth(1).unwrap_or_default().to_ascii_lowercase());
            }
        }
    }
}

impl Drop for Monitor<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn scripts(commands: &[String]) -> usize {
    commands.iter().filter(|command| matches!(command.as_str(), "evalsha" | "eval")).count()
}

/// An inbox that has been silent is asked whether it is alive; nothing else is not a script.
fn assert_only_scripts(commands: &[String]) {
    let others: Vec<_> = commands.iter().filter(|command| !matches!(command.as_str(), "evalsha" | "ping")).collect();
    assert!(others.is_empty(), "{others:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_costs_two_commands() {
    const PAIRS: usize = 100;
    let server = Server::start();
    let client = server.client().await;
    client.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::start(&server);
    for _ in 0..PAIRS {
        client.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    }
    let commands = monitor.commands();
    assert_eq!(scripts(&commands), 2 * PAIRS);
    assert_only_scripts(&commands);
    // Busy, and a refusal, are one each.
    let held = client.lock("x").ttl(LONG).acquire().await.unwrap();
    monitor.commands();
    let other = client.session();
    assert!(other.lock("x").ttl(LONG).try_acquire().await.unwrap().is_none());
    assert_eq!(scripts(&monitor.commands()), 1);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_eight_clients_want_costs_three_commands_for_each_acquisition_at_most() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 50;
    let server = Server::start();
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(server.client().await);
    }
    clients[0].lock("y").acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::start(&server);
    let tasks = clients.iter().map(|client| {
        let lock = client.lock("x").ttl(LONG).strict_fifo();
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        })
    });
    for task in patiently("all pairs", join_all(tasks)).await {
        task.unwrap();
    }
    let commands = monitor.commands();
    assert_only_scripts(&commands);
    assert!(scripts(&commands) <= 3 * CLIENTS * ROUNDS, "{} for {}", scripts(&commands), CLIENTS * ROUNDS);
    assert!(scripts(&commands) >= 2 * CLIENTS * ROUNDS, "all of them were counted");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_many_tasks_ask_at_once_shares_commands() {
    const TASKS: usize = 256;
    const PAIRS: usize = 20;
    let server = Server::start();
    let client = server.client().await;
    client.lock("y").acquire().await.unwrap().release().await.unwrap();
    let mut monitor = Monitor::start(&server);
    let tasks = (0..TASKS).map(|number| {
        let lock = client.lock(format!("{number}")).ttl(LONG);
        tokio::spawn(async move {
            for _ in 0..PAIRS {
                lock.acquire().await.unwrap().release().await.unwrap();
            }
        })
    });
    for task in patiently("all pairs", join_all(tasks)).await {
        task.unwrap();
    }
    let commands = monitor.commands();
    assert_only_scripts(&commands);
    let operations = 2 * TASKS * PAIRS;
    assert!(scripts(&commands) * 8 < operations, "{} commands for {operations}", scripts(&commands));
}

#[tokio::test(flavor = "multi_thread")]
async fn renewals_that_are_due_together_share_commands() {
    const LEASES: usize = 500;
    let server = Server::start();
    let client = server.client().await;
    let locks: Vec<_> =
        (0..LEASES).map(|number| client.lock(format!("{number}")).ttl(Duration::from_secs(9))).collect();
    let guards = join_all(locks.iter().map(tenure::Lock::acquire)).await;
    let guards: Vec<_> = guards.into_iter().map(Result::unwrap).collect();
    let before: Vec<_> = guards.iter().map(tenure::Guard::deadline).collect();
    let mut monitor = Monitor::start(&server);
    until("all are renewed", async || guards.iter().zip(&before).all(|(guard, before)| guard.deadline() > *before))
        .await;
    let commands = monitor.commands();
    assert!(scripts(&commands) <= LEASES / 20, "{} commands for {LEASES} renewals", scripts(&commands));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_has_two_connections_and_one_channel_whatever_it_claims() {
    const NAMES: usize = 300;
    let server = Server::start();
    let (client, other) = (server.client().await, server.client().await);
    let name = |number: usize| format!("{number}");
    let held = join_all((0..NAMES).map(|number| {
        let lock = other.lock(name(number)).ttl(LONG);
        async move { lock.acquire().await.unwrap() }
    }))
    .await;
    let waits: Vec<_> = (0..NAMES).map(|number| waiting(&client.lock(name(number)).ttl(LONG))).collect();
    let more = join_all((NAMES..2 * NAMES).map(|number| {
        let lock = client.lock(name(number)).ttl(LONG);
        async move { lock.acquire().await.unwrap() }
    }))
    .await;
    waiters(&client, &name(NAMES - 1), 1).await;
    assert_eq!(client.live_claims(), 2 * NAMES);
    assert_eq!((server.connections(false).len(), server.connections(true).len()), (2, 2), "two for each client");
    assert_eq!(server.cli(&["pubsub", "channels", "*"]).lines().count(), 2, "one for each client");
    drop(held);
    for task in waits {
        drop(granted(task).await);
    }
    assert_eq!((server.connections(false).len(), server.connections(true).len()), (2, 2));
    drop(more);
}

/// How often each command was called, inside scripts included, while something was done.
async fn calls<T>(server: &Server, act: impl FnOnce() -> Call<T>) -> (T, Vec<(String, usize)>) {
    assert_eq!(server.cli(&["config", "resetstat"]), "OK");
    let done = act().await.unwrap();
    let info = server.cli(&["info", "commandstats"]);
    let stats = info.lines().filter_map(|line| {
        let (command, figures) = line.trim().strip_prefix("cmdstat_")?.split_once(':')?;
        let calls = figures.strip_prefix("calls=")?.split(',').next()?.parse().ok()?;
        let ours = !command.starts_with("config") && command != "info" && command != "command";
        // Of an inbox that was silent.
        (ours && command != "ping").then(|| (command.to_owned(), calls))
    });
    (done, stats.collect())
}

struct Queue {
    backend: RedisBackend,
    name: Name,
    claims: Vec<ClaimRequest>,
    /// Last, as what is dropped last.
    server: Server,
}

impl Queue {
    /// A holder, and waiters up to this number in all.
    async fn grow(&mut self, size: usize) {
        let more: Vec<_> = (self.claims.len()..size).map(|_| request(LONG)).collect();
        let claimed = join_all(more.iter().map(|one| self.backend.claim(&self.name, one.clone()))).await;
        for one in claimed {
            assert!(matches!(one.unwrap().value, Claimed::Stands(_)));
        }
        self.claims.extend(more);
    }

    /// What an append, the renewal of a waiter in the middle, a waiter's end and a release cost.
    async fn costs(&mut self) -> [Vec<(String, usize)>; 4] {
        let last = request(LONG);
        let (claimed, append) = calls(&self.server, || self.backend.claim(&self.name, last.clone())).await;
        assert!(matches!(claimed.value, Claimed::Stands(standing) if standing.state.is_err()));
        let renewal = RenewRequest::of(&self.name, &self.claims[self.claims.len() / 2]);
        let (renewed, renew) = calls(&self.server, || self.backend.renew(vec![renewal], false)).await;
        assert!(matches!(&renewed.value[..], [Renewed::Stands(_)]));
        let (released, end) = calls(&self.server, || self.backend.release(&self.name, ReleaseRequest::of(&last))).await;
        assert_eq!(released, Released::Yes);
        let holder = ReleaseRequest::of(&self.claims.remove(0));
        let (released, release) = calls(&self.server, || self.backend.release(&self.name, holder)).await;
        assert_eq!(released, Released::Yes);
        [append, renew, end, release]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_waiters_cost_an_operation_no_more_than_a_hundred() {
    let server = Server::start();
    let backend = RedisBackend::open(server.url(), Arc::new(SystemClock)).await.unwrap();
    let mut queue = Queue { server, backend, name: Name::new("x").unwrap(), claims: Vec::new() };
    // Apart from the others: what goes out while the server is told the script may overtake it.
    queue.grow(1).await;
    patiently("the first claims", queue.grow(100)).await;
    let few = queue.costs().await;
    patiently("all claims", queue.grow(10_000)).await;
    let many = queue.costs().await;
    for (few, many) in few.iter().zip(&many) {
        let total = |stats: &[(String, usize)]| stats.iter().map(|(_, calls)| calls).sum::<usize>();
        // The keys live half a ttl longer than they must: every so often an operation prolongs three of them.
        assert!(total(many) <= total(few) + 3, "{many:?} instead of {few:?}");
        assert!(total(many) < 30, "{many:?}");
        // Only what is O(1) or O(log n).
        let slow = ["keys", "hgetall", "hkeys", "hvals", "lrange", "smembers", "zremrangebyscore", "sort"];
        assert!(many.iter().all(|(command, _)| !slow.contains(&command.as_str())), "{many:?}");
    }
    let published = |stats: &[(String, usize)]| stats.iter().find(|(command, _)| command == "publish").map(|(_, n)| *n);
    assert_eq!(
        many.each_ref().map(|stats| published(stats)),
        [None, None, None, Some(1)],
        "one is woken, by a release"
    );
    queue.server.cli(&["flushall"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_dropped_leaves_no_connection() {
    let server = Server::start();
    let client = server.client().await;
    let waits = waiting(&client.lock("x").ttl(LONG));
    drop(granted(waits).await);
    drop(client);
    until("its connections are gone", async || {
        server.connections(false).is_empty() && server.connections(true).is_empty()
    })
    .await;
    let client: Tenure = server.client().await;
    client.close().await.unwrap();
    drop(client);
    until("its connections are gone", async || server.connections(true).is_empty()).await;
}
