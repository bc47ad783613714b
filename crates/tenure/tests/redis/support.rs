//! What these tests share: a server that is looked through for what was left there, clients, and bounded waits.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use tenure::backend::ClaimRequest;
use tenure::clock::Moment;
use tenure::machine::NameView;
use tenure::{Error, Guard, Lock, Tenure};
use tenure_testkit::plain_request;
use tenure_testkit::servers::{Builder, Redis, leftovers, without_expiry};
use tokio::task::JoinHandle;

/// Longer than anything takes on a busy machine; a wait that gets here has failed.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// A ttl that never runs out by itself: nothing that needs a renewal or an expiry happens within [`LIMIT`], except
/// that waiters are renewed every five seconds.
pub(crate) const LONG: Duration = Duration::from_secs(600);
/// Names another `redis-server` for all tests of this binary.
pub(crate) const PROGRAM: &str = "TENURE_TEST_REDIS_SERVER";

/// A server of the test's own. Declared before its clients, so that it is dropped after them: then nothing of
/// tenure's must be left in it, once what goes on in the background has ended.
pub(crate) struct Server {
    redis: Redis,
    ttl_max: Duration,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::of(builder())
    }

    pub(crate) fn of(builder: Builder) -> Self {
        Self { redis: builder.start(), ttl_max: Duration::ZERO }
    }

    /// Claims that die with their process live on for this long.
    pub(crate) fn whose_dead_live_for(mut self, ttl: Duration) -> Self {
        self.ttl_max = ttl;
        self
    }

    pub(crate) async fn client(&self) -> Tenure {
        Tenure::connect(self.url()).await.unwrap()
    }

    /// A client under a label.
    pub(crate) async fn client_as(&self, label: &str) -> Tenure {
        Tenure::builder(self.url()).label(label).connect().await.unwrap()
    }

    /// The ids of the connections of clients: for commands, or for messages.
    pub(crate) fn connections(&self, for_messages: bool) -> Vec<String> {
        let list = self.cli(&["client", "list"]);
        let field = |line: &str, key: &str| {
            line.split(' ').find_map(|word| Some(word.strip_prefix(key)?.strip_prefix('=')?.to_owned())).unwrap()
        };
        list.lines()
            .filter(|line| !field(line, "cmd").starts_with("client") && !field(line, "cmd").starts_with("monitor"))
            .filter(|line| (field(line, "sub") != "0") == for_messages)
            .map(|line| field(line, "id"))
            .collect()
    }

    pub(crate) fn kill_connections(&self, for_messages: bool) {
        for id in self.connections(for_messages) {
            // It may have gone by itself.
            self.cli(&["client", "kill", "id", &id]);
        }
    }

    fn check(&self) {
        let limit = Instant::now() + self.ttl_max + LIMIT / 2;
        loop {
            let left = leftovers(&self.redis);
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < limit, "left behind: {left:#?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        let forever = without_expiry(&self.redis);
        assert!(forever.is_empty(), "for ever: {forever:#?}");
    }
}

impl Deref for Server {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        &self.redis
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A test that failed has clients still.
        if !std::thread::panicking() {
            self.check();
        }
    }
}

/// A Redis as all these tests want it.
pub(crate) fn builder() -> Builder {
    match std::env::var_os(PROGRAM) {
        Some(program) => Redis::builder().program(PathBuf::from(program)),
        None => Redis::builder(),
    }
}

/// An old server: `6.2`, the oldest that is supported, or `older`. From the directory `TENURE_OLD_REDIS`, or fetched.
pub(crate) fn old_server(which: &str) -> PathBuf {
    static FETCHED: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let directory = FETCHED.get_or_init(|| {
        if let Some(directory) = std::env::var_os("TENURE_OLD_REDIS") {
            return directory.into();
        }
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("old-redis");
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/old-redis");
        let fetched = Command::new(script).arg(&directory).output().expect("scripts/old-redis");
        assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
        directory
    });
    directory.join(which).join("redis-server")
}

/// Awaits what must happen, but not for ever.
pub(crate) async fn patiently<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    patiently(what, async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Waits until so many wait for a name.
pub(crate) async fn waiters(client: &Tenure, name: &str, count: usize) -> NameView {
    let mut view = None;
    until(&format!("{count} wait for {name}"), async || {
        view = client.inspect(name).await.ok().filter(|view| view.waiters.len() == count);
        view.is_some()
    })
    .await;
    view.unwrap()
}

/// Waits for a lock, in a task.
pub(crate) fn waiting(lock: &Lock) -> JoinHandle<Result<Guard, Error>> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.acquire().await })
}

/// The guard a task waited for.
pub(crate) async fn granted(task: JoinHandle<Result<Guard, Error>>) -> Guard {
    patiently("the grant", task).await.unwrap().unwrap()
}

/// Waits until a renewal of this lease was answered that was sent after now.
pub(crate) async fn renewed(guard: &Guard) {
    renewed_since(guard, guard.deadline()).await;
}

/// Waits until a renewal of this lease has prolonged it beyond this deadline.
pub(crate) async fn renewed_since(guard: &Guard, before: Moment) {
    until("a renewal", async || {
        assert!(guard.is_held(), "lost: {:?}", guard.renewal_failure());
        guard.deadline() > before
    })
    .await;
}

/// The error of somebody who does not wait.
pub(crate) async fn refusal(lock: &Lock) -> Error {
    match patiently("an answer", lock.try_acquire()).await {
        Err(error) => error,
        Ok(outcome) => panic!("no error, but {outcome:?}"),
    }
}

/// What a client with nothing of the engine asks the store.
pub(crate) fn request(ttl: Duration) -> ClaimRequest {
    ClaimRequest { ttl, solo: true, ..plain_request() }
}

/// A process that dies: it does something with its client on a runtime of its own, and ends without a word.
pub(crate) async fn dies_after<F>(url: &str, life: impl FnOnce(Tenure) -> F + Send + 'static)
where
    F: Future<Output = ()>,
{
    let url = url.to_owned();
    let process = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Tenure::builder(url).label("the dead").connect().await.unwrap();
            // Forgotten, so that no drop says good-bye.
            std::mem::forget(client.clone());
            life(client).await;
        });
        runtime.shutdown_timeout(LIMIT);
    });
    until("the end of a process", async || process.is_finished()).await;
    process.join().unwrap();
}
