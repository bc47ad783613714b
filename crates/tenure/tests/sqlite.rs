//! The embedded store: what is special about one file shared by processes.
#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use common::{now, still_pending};
use tenure::backend::{Backend, ClaimRequest};
use tenure::backends::sqlite::SqliteBackend;
use tenure::clock::{Clock, SystemClock};
use tenure::{Certainty, Error, ErrorKind, Name, Tenure};
use tenure_testkit::{ManualClock, plain_request};

struct Files {
    directory: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }

    async fn open(&self) -> Result<Tenure, Error> {
        Tenure::connect(self.url()).await
    }

    fn inboxes(&self) -> usize {
        let directory = self.directory.path().join("locks.db-inbox");
        std::fs::read_dir(directory).map_or(0, Iterator::count)
    }
}

fn claim(ttl: Duration) -> ClaimRequest {
    ClaimRequest { ttl, ..plain_request() }
}

/// Waits for what another thread does, for at most a minute.
async fn eventually<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), future).await.unwrap_or_else(|_| panic!("{what} did not happen"))
}

#[tokio::test]
async fn a_waiter_with_another_client_is_woken_by_the_release() {
    let files = Files::new();
    let (a, b) = (files.open().await.unwrap(), files.open().await.unwrap());
    let held = a.lock("x").ttl(Duration::from_secs(60)).acquire().await.unwrap();
    let token = held.token();
    let lock = b.lock("x").ttl(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("the wait", async {
        while a.inspect("x").await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    held.release().await.unwrap();
    // Far sooner than any renewal: only the news can have woken it.
    let guard = eventually("the hand-over", waiting).await.unwrap().unwrap();
    assert!(guard.token() > token);
}

#[tokio::test]
async fn a_waiter_that_died_is_passed_over() {
    let files = Files::new();
    let ttl = Duration::from_secs(60);
    let (a, c) = (files.open().await.unwrap(), files.open().await.unwrap());
    let held = a.lock("x").ttl(ttl).acquire().await.unwrap();
    let dead = SqliteBackend::open(files.path(), Arc::new(SystemClock)).await.unwrap();
    dead.claim(&Name::new("x").unwrap(), claim(ttl)).await.unwrap();
    drop(dead);
    let lock = c.lock("x").ttl(ttl);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually("the wait", async {
        while a.inspect("x").await.unwrap().waiters.len() < 2 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    held.release().await.unwrap();
    drop(eventually("the grant of the living", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn inboxes_go_with_their_clients_also_with_killed_ones() {
    let files = Files::new();
    let a = files.open().await.unwrap();
    assert_eq!(files.inboxes(), 1);
    // What a killed client leaves: a FIFO that nobody reads.
    let abandoned = files.directory.path().join("locks.db-inbox/00000000deadbeef");
    let made = std::process::Command::new("mkfifo").arg(&abandoned).status().unwrap();
    assert!(made.success());
    let b = files.open().await.unwrap();
    assert!(!abandoned.exists());
    assert_eq!(files.inboxes(), 2);
    drop((a, b));
    eventually("the end of the clients", async {
        while files.inboxes() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn claims_of_another_boot_are_dead_and_tokens_go_on() {
    let files = Files::new();
    let a = files.open().await.unwrap();
    let guard = a.lock("x").acquire().await.unwrap();
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot'", []).unwrap();
    drop(file);
    let b = files.open().await.unwrap();
    let next = b.lock("x").try_acquire().await.unwrap().expect("free after a restart");
    assert!(next.token() > guard.token());
}

#[tokio::test]
async fn tokens_grow_though_names_are_forgotten_and_the_wall_clock_steps_back() {
    let files = Files::new();
    let clock = Arc::new(ManualClock::new());
    let mut last = None;
    for _ in 0..5 {
        let backend = SqliteBackend::open(files.path(), clock.clone()).await.unwrap();
        let tenure = Tenure::over(Arc::new(backend), clock.clone() as Arc<dyn Clock>, "a");
        let guard = tenure.lock("x").acquire().await.unwrap();
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        guard.release().await.unwrap();
        assert_eq!(rows(&files.path()), 0, "an idle name leaves no row");
        clock.step_wall(-3_600_000_000);
    }
}

#[tokio::test]
async fn names_whose_holders_died_do_not_pile_up() {
    let files = Files::new();
    let clock = Arc::new(ManualClock::new());
    let backend = SqliteBackend::open(files.path(), clock.clone()).await.unwrap();
    for number in 0..50 {
        let name = Name::new(format!("orders/{number}")).unwrap();
        backend.claim(&name, claim(Duration::from_secs(1))).await.unwrap();
    }
    drop(backend);
    clock.advance(Duration::from_secs(2));
    assert_eq!(rows(&files.path()), 50);
    let backend = SqliteBackend::open(files.path(), clock).await.unwrap();
    backend.claim(&Name::new("other").unwrap(), claim(Duration::from_secs(1))).await.unwrap();
    assert_eq!(rows(&files.path()), 1);
}

fn rows(path: &Path) -> i64 {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row("SELECT count(*) FROM names", [], |row| row.get(0)).unwrap()
}

async fn refusal(files: &Files) -> String {
    let error = files.open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(!error.is_retryable());
    let message = error.to_string();
    assert!(message.contains("locks.db"), "the message names the file: {message}");
    message
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_may_be_the_first_to_open_a_store() {
    for _ in 0..100 {
        let files = Files::new();
        let all = (0..8).map(|_| {
            let url = files.url();
            tokio::spawn(async move { open_patiently(&url).await })
        });
        for opened in futures_util::future::join_all(all.collect::<Vec<_>>()).await {
            opened.unwrap();
        }
    }
}

/// Opens a store that others keep busy: on a disk that is busy too, that may take longer than one attempt waits.
async fn open_patiently(url: &str) -> Tenure {
    const TRIES_MAX: usize = 40;
    for _ in 0..TRIES_MAX {
        match Tenure::connect(url).await {
            Err(error) if error.is_retryable() => assert_eq!(error.certainty(), Certainty::NotApplied, "{error}"),
            opened => return opened.unwrap(),
        }
    }
    panic!("the store was busy {TRIES_MAX} times");
}

#[tokio::test]
async fn a_file_that_is_no_store_is_refused_and_left_alone() {
    let files = Files::new();
    std::fs::write(files.path(), "dear diary, today I wrote more than a hundred bytes of text".repeat(30)).unwrap();
    let before = std::fs::read(files.path()).unwrap();
    assert!(refusal(&files).await.contains("not a tenure store"));
    assert_eq!(std::fs::read(files.path()).unwrap(), before);
}

#[tokio::test]
async fn another_programs_database_is_refused_and_left_alone() {
    let files = Files::new();
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute_batch("CREATE TABLE songs (title)").unwrap();
    drop(file);
    let before = std::fs::read(files.path()).unwrap();
    assert!(refusal(&files).await.contains("not a tenure store"));
    assert_eq!(std::fs::read(files.path()).unwrap(), before);
}

#[tokio::test]
async fn a_newer_or_an_older_schema_is_refused() {
    let files = Files::new();
    drop(files.open().await.unwrap());
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute_batch("PRAGMA user_version = 3").unwrap();
    drop(file);
    let message = refusal(&files).await;
    assert!(message.contains("newer tenure") && message.contains("schema 3"), "{message}");
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute_batch("PRAGMA user_version = 1").unwrap();
    drop(file);
    let message = refusal(&files).await;
    assert!(message.contains("older tenure") && message.contains("schema 1"), "{message}");
}

#[tokio::test]
async fn a_corrupt_file_is_refused() {
    let files = Files::new();
    let tenure = files.open().await.unwrap();
    for number in 0..200 {
        drop(tenure.lock(format!("name/{number}")).acquire().await.unwrap().leave());
    }
    drop(tenure);
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    drop(file);
    let mut bytes = std::fs::read(files.path()).unwrap();
    let (_, pages) = bytes.split_at_mut(4096);
    pages.fill(0xa5);
    std::fs::write(files.path(), &bytes).unwrap();
    // Found on opening or on the first use, never as a grant.
    let error = match files.open().await {
        Err(error) => error,
        Ok(tenure) => tenure.lock("name/7").try_acquire().await.unwrap_err(),
    };
    assert_eq!(error.kind(), ErrorKind::Store);
    assert!(error.to_string().contains("corrupt"), "{error}");
}

#[tokio::test]
async fn a_place_that_cannot_be_is_refused() {
    for (path, expected) in
        [("/nowhere/at/all/locks.db", "/nowhere/at/all"), ("/proc/locks.db", "cannot be opened"), ("/", "")]
    {
        let error = Tenure::connect(format!("sqlite:{path}")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store);
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn a_write_that_is_stuck_is_a_bounded_error_and_not_a_grant() {
    let files = Files::new();
    let tenure = files.open().await.unwrap();
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = eventually("the refusal", tenure.lock("x").try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    file.execute_batch("ROLLBACK").unwrap();
    assert!(eventually("the grant", tenure.lock("x").acquire()).await.unwrap().is_held());
}

#[tokio::test]
async fn a_name_is_kept_as_it_is() {
    let files = Files::new();
    let tenure = files.open().await.unwrap();
    let names = ["it's", "\"quoted\"", "{a} [b]", "50% off; DROP TABLE names --", "a_c", "ünï/中文/🦀", " "];
    let mut guards = Vec::new();
    for name in names {
        guards.push(tenure.lock(name).acquire().await.unwrap());
    }
    let mut sorted: Vec<String> = names.map(str::to_owned).to_vec();
    sorted.sort();
    let listed: Vec<String> = tenure.list("").await.unwrap().iter().map(|view| view.name.to_string()).collect();
    assert_eq!(listed, sorted);
    assert_eq!(tenure.list("a_").await.unwrap().len(), 1);
    assert_eq!(tenure.list("50%").await.unwrap().len(), 1);
}

#[tokio::test]
async fn two_names_for_one_file_are_one_store() {
    let files = Files::new();
    let direct = files.open().await.unwrap();
    let link = files.directory.path().join("link.db");
    std::os::unix::fs::symlink(files.path(), &link).unwrap();
    let linked = Tenure::connect(format!("sqlite:{}", link.display())).await.unwrap();
    assert_eq!(direct.url(), linked.url());
    let held = direct.lock("x").acquire().await.unwrap();
    let lock = linked.lock("x");
    let mut waiting = Box::pin(lock.acquire());
    still_pending(waiting.as_mut()).await;
    drop(held);
    drop(eventually("the hand-over", waiting).await.unwrap());
    now("nothing", async {}).await;
}

#[tokio::test]
async fn one_damaged_row_does_not_hold_up_the_others() {
    let files = Files::new();
    drop(files.open().await.unwrap());
    let file = rusqlite::Connection::open(files.path()).unwrap();
    file.execute(
        "INSERT INTO names (name, queue, dead_at) VALUES ('bad', '{\"last\":1}', 0), ('worse', 'x', 9e15)",
        [],
    )
    .unwrap();
    let tenure = files.open().await.unwrap();
    assert!(tenure.lock("good").acquire().await.unwrap().is_held());
    assert_eq!(tenure.lock("worse").try_acquire().await.unwrap_err().kind(), ErrorKind::Store);
    file.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot'", []).unwrap();
    assert!(files.open().await.unwrap().lock("good").acquire().await.is_ok());
}

#[tokio::test]
async fn many_waiters_on_one_name_do_not_cost_others_their_leases() {
    let files = Files::new();
    let (crowd, other) = (files.open().await.unwrap(), files.open().await.unwrap());
    let busy = crowd.semaphore("busy", 1).ttl(Duration::from_secs(10));
    let held = busy.acquire().await.unwrap();
    let waiter = |_| {
        let busy = busy.clone();
        tokio::spawn(async move { drop(busy.acquire().await) })
    };
    let waiters: Vec<_> = (0..500).map(waiter).collect();
    eventually("all wait", async {
        while crowd.inspect("busy").await.unwrap().waiters.len() < waiters.len() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    let unrelated = other.lock("unrelated").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    // Each waiter is renewed at least once in this time, and the lease several times.
    let lost = tokio::time::timeout(Duration::from_secs(10), unrelated.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    waiters.iter().for_each(tokio::task::JoinHandle::abort);
    drop(held);
}

#[tokio::test]
async fn the_log_is_kept_small_while_several_write() {
    let files = Files::new();
    let mut tasks = Vec::new();
    for client in 0..4 {
        let tenure = files.open().await.unwrap();
        tasks.push(tokio::spawn(async move {
            for turn in 0..1_500 {
                drop(tenure.lock(format!("{client}/{}", turn % 7)).acquire().await.unwrap().release().await);
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let log = std::fs::metadata(files.directory.path().join("locks.db-wal")).unwrap().len();
    assert!(log < 24 << 20, "{log} bytes");
}

#[tokio::test]
async fn whoever_may_write_the_directory_may_use_the_store() {
    use std::os::unix::fs::PermissionsExt as _;
    let files = Files::new();
    let shared = std::fs::Permissions::from_mode(0o2770);
    std::fs::set_permissions(files.directory.path(), shared).unwrap();
    let _tenure = files.open().await.unwrap();
    let mode = |path: PathBuf| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(files.path()) & 0o660, 0o660);
    let inbox = files.directory.path().join("locks.db-inbox");
    assert_eq!(mode(inbox.clone()) & 0o2770, 0o2770, "and its group");
    let fifo = std::fs::read_dir(inbox).unwrap().next().unwrap().unwrap().path();
    assert_eq!(mode(fifo) & 0o660, 0o660);
}

#[tokio::test]
async fn a_look_sees_what_was_dropped_before_it() {
    let files = Files::new();
    let tenure = files.open().await.unwrap();
    for _ in 0..50 {
        drop(tenure.lock("x").acquire().await.unwrap());
        assert!(tenure.inspect("x").await.unwrap().is_free());
        assert!(tenure.list("").await.unwrap().is_empty());
    }
}
