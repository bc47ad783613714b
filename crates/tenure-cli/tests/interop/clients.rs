//! The foreign clients: how their drivers are started, how they keep a lock.

use std::path::{Path, PathBuf};
use std::process::Command;

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
    /// What `scripts/interop` calls those it installs with it.
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

    /// The clients of the plain layout that TENURE_INTEROP lists.
    pub(crate) fn plain_listed() -> Vec<Self> {
        let list = std::env::var("TENURE_INTEROP").unwrap_or_default();
        for word in list.split(',').filter(|word| !word.is_empty()) {
            assert!(
                ALL.iter().any(|client| client.family() == word),
                "TENURE_INTEROP lists {word:?}, which is no client"
            );
        }
        let is_listed = |client: &Self| list.split(',').any(|word| word == client.family());
        let plain: Vec<_> = ALL.into_iter().filter(|client| client.layout() == "plain" && is_listed(client)).collect();
        assert!(!plain.is_empty(), "TENURE_INTEROP lists none of python, node and go: {list:?}");
        plain
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
        assert!(path.exists(), "{} is not there: scripts/interop {family} makes it", path.display());
        path
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}
