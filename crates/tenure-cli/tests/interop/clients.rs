//! The foreign clients: which take part, how their drivers are started, how they keep a lock.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    RedisPy,
    NodeRedlock,
    Redsync,
    Redislock,
    Redisson,
    EtcdMutex,
    Kazoo,
    Curator,
}

const ALL: [Client; 8] = [
    Client::RedisPy,
    Client::NodeRedlock,
    Client::Redsync,
    Client::Redislock,
    Client::Redisson,
    Client::EtcdMutex,
    Client::Kazoo,
    Client::Curator,
];

impl Client {
    /// The word that lists it.
    fn family(self) -> &'static str {
        match self {
            Self::RedisPy | Self::Kazoo => "python",
            Self::NodeRedlock => "node",
            Self::Redsync | Self::Redislock | Self::EtcdMutex => "go",
            Self::Redisson | Self::Curator => "java",
        }
    }

    /// What tenure has to be told in order to share locks in Redis with it.
    pub(crate) fn layout(self) -> &'static str {
        match self {
            Self::RedisPy | Self::NodeRedlock | Self::Redsync | Self::Redislock => "plain",
            Self::Redisson => "redisson",
            // In queues of the store's own.
            Self::EtcdMutex | Self::Kazoo | Self::Curator => "",
        }
    }

    /// The clients of the plain layout that take part.
    pub(crate) fn plain_listed() -> Vec<Self> {
        ALL.into_iter().filter(|client| client.layout() == "plain" && client.is_listed()).collect()
    }

    pub(crate) fn is_listed(self) -> bool {
        listed().contains(self.family())
    }

    /// Its driver on these servers.
    pub(crate) fn command(self, urls: &[&str]) -> Command {
        let installed = root().join("target/interop").join(self.family());
        let source = root().join("interop").join(self.family());
        let mut command;
        match self {
            Self::RedisPy | Self::Kazoo => {
                let driver = if self == Self::Kazoo { "kazoo_driver.py" } else { "driver.py" };
                command = Command::new(self.there(installed.join("bin/python")));
                command.arg(source.join(driver));
            }
            Self::NodeRedlock => {
                command = Command::new("node");
                command.env("NODE_PATH", self.there(installed.join("node_modules")));
                command.arg(source.join("driver.js"));
            }
            Self::Redsync | Self::Redislock | Self::EtcdMutex => {
                let library = match self {
                    Self::Redsync => "redsync",
                    Self::Redislock => "redislock",
                    _ => "etcd",
                };
                command = Command::new(self.there(installed.join("driver")));
                command.args(["-library", library]);
            }
            Self::Redisson | Self::Curator => {
                let (classes, libraries) = (self.there(installed.join("classes")), installed.join("lib/*"));
                command = Command::new("java");
                // It runs for seconds: the time to compile well would not come back.
                command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp"]);
                command.arg(format!("{}:{}", classes.display(), libraries.display()));
                command.arg(if self == Self::Curator { "CuratorDriver" } else { "Driver" });
            }
        }
        command.args(urls);
        command
    }

    fn there(self, path: PathBuf) -> PathBuf {
        let family = self.family();
        assert!(
            path.exists(),
            "TENURE_INTEROP lists {family}, but {} is not there: scripts/interop {family} makes it",
            path.display()
        );
        path
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The words in TENURE_INTEROP. Says once which clients are not among them.
fn listed() -> &'static BTreeSet<String> {
    static LISTED: OnceLock<BTreeSet<String>> = OnceLock::new();
    LISTED.get_or_init(|| {
        let list = std::env::var("TENURE_INTEROP").unwrap_or_default();
        let words: BTreeSet<String> = list.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect();
        for word in &words {
            assert!(
                ALL.iter().any(|client| client.family() == word),
                "TENURE_INTEROP lists {word:?}, which is no client"
            );
        }
        let missing: Vec<String> = ALL
            .into_iter()
            .filter(|client| !words.contains(client.family()))
            .map(|client| format!("{client:?}"))
            .collect();
        if !missing.is_empty() {
            // Not eprintln!, which the harness keeps to itself while tests pass.
            let _ = writeln!(std::io::stderr(), "interop: not run: {} (scripts/interop runs them)", missing.join(", "));
        }
        words
    })
}
