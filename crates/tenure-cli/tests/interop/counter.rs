//! A number in a file that is read, and written a moment later: two at once lose an update.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::command::{PATIENCE, Running, tenure};
use crate::driver::Driver;

pub(crate) struct Counter {
    dir: TempDir,
}

impl Counter {
    pub(crate) fn new() -> Self {
        let counter = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(counter.file(), "0").unwrap();
        counter
    }

    pub(crate) fn read(&self) -> u32 {
        let text = fs::read_to_string(self.file()).unwrap();
        text.trim().parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    fn increment(&self) {
        let next = self.read() + 1;
        thread::sleep(Duration::from_millis(1));
        fs::write(self.file(), next.to_string()).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("counter")
    }
}

const LEASE: Duration = Duration::from_secs(30);

/// Counts under a foreign client's lock.
pub(crate) fn with_driver(counter: &Counter, driver: &mut Driver, rounds: u32) {
    for _ in 0..rounds {
        assert!(driver.acquire("x", LEASE, PATIENCE));
        counter.increment();
        driver.must("release");
    }
}

/// Counts in a command under `tenure run`.
pub(crate) fn with_tenure_run(counter: &Counter, url: &str, rounds: u32) {
    let script = "n=$(cat counter) && sleep 0.001 && echo $((n + 1)) >counter";
    for _ in 0..rounds {
        let mut run = tenure(url, &["run", "x", "--wait", "50s", "--ttl", "30s", "--", "sh", "-c", script]);
        Running::of(run.current_dir(counter.dir.path())).wait().exits(0);
    }
}

/// Counts between `tenure acquire` and `tenure release`.
pub(crate) fn with_tenure_acquire(counter: &Counter, url: &str, rounds: u32) {
    let owner = "counting";
    for _ in 0..rounds {
        let mut acquire = tenure(url, &["acquire", "x", "--wait", "50s", "--ttl", "30s", "--owner", owner]);
        Running::of(&mut acquire).wait().exits(0);
        counter.increment();
        Running::of(&mut tenure(url, &["release", "x", "--owner", owner])).wait().exits(0);
    }
}
