//! Those who take part: tenure, and each lock of the programs under `bench`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::child::Child;

/// The programs under `bench`, and the locks they have, as `bench/README.md` lists them.
pub const PROGRAMS: [(&str, &str); 5] = [
    ("go", "redsync, redislock, etcd's concurrency, etcdctl lock"),
    ("java", "Redisson's RLock, RFairLock and RFencedLock, Curator's InterProcessMutex"),
    ("node", "node-redlock"),
    ("python", "redis-py's Lock, kazoo's Lock"),
    ("rust", "rslock, distributed-lock, PostgreSQL's advisory locks (plain and by sqlx)"),
];
/// How long a contestant has beyond what its order takes, to start, connect and warm up. Thirty-two Java machines that
/// start at once on two cores need most of it.
const PATIENCE: Duration = Duration::from_secs(45);

/// What tenure is called where its metrics are recorded.
pub const RECORDED: &str = "tenure, recorded";

/// One lock over one store.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Contestant {
    /// What it is called.
    pub peer: String,
    /// Over which store.
    pub store: String,
    /// The library, as its package manager names it.
    #[serde(default)]
    pub library: String,
    /// The library's version.
    #[serde(default)]
    pub version: String,
    /// What differs from the defaults, and the defaults that matter.
    #[serde(default)]
    pub settings: String,
    /// Whether what is held is renewed by itself.
    #[serde(default)]
    pub renews: bool,
    /// The program it is in: a folder of `bench`, or tenure's own.
    #[serde(default)]
    pub program: String,
    /// The command that takes its orders.
    #[serde(skip)]
    pub command: Vec<PathBuf>,
}

impl Contestant {
    /// The classic pair by tenure's Redis client: a limit, not a lock.
    pub fn classic() -> Self {
        Self {
            peer: "classic pair".into(),
            store: "redis".into(),
            library: "redis (the client tenure uses)".into(),
            version: String::new(),
            settings: "SET NX PX, compare-and-delete by EVALSHA".into(),
            renews: false,
            program: "tenure-bench".into(),
            command: own_command(),
        }
    }

    /// tenure with somebody who records its metrics: what that costs.
    pub fn recorded() -> Self {
        Self {
            peer: RECORDED.into(),
            library: "tenure".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            settings: "metrics recorded for Prometheus".into(),
            renews: true,
            ..Self::classic()
        }
    }

    /// About how many seconds of one core it takes until it is connected.
    pub fn starts_s(&self) -> f64 {
        match self.program.as_str() {
            "java" => 1.6,
            "node" | "python" => 0.35,
            _ => 0.1,
        }
    }

    /// Whether it starts slowly, and is slow for a while: it is compiled as it runs.
    pub fn starts_slowly(&self) -> bool {
        self.starts_s() >= 1.0
    }

    /// Whether it is tenure.
    pub fn is_tenure(&self) -> bool {
        self.peer == "tenure"
    }

    /// Starts it with an order: `peer`, `store` and `ttl_ms` are added to `fields`.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(&self, what: &str, fields: Value, takes: Duration) -> Result<Child, String> {
        self.start_within(what, fields, takes + PATIENCE)
    }

    /// [`start`](Self::start) with a limit on all it does.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start_within(&self, what: &str, fields: Value, limit: Duration) -> Result<Child, String> {
        let mut order = Map::new();
        order.insert("do".into(), json!(what));
        order.insert("peer".into(), json!(self.peer));
        order.insert("store".into(), json!(self.store));
        order.insert("ttl_ms".into(), json!(10_000));
        if let Value::Object(fields) = fields {
            order.extend(fields);
        }
        Child::start(self.command_with(&Value::Object(order)), limit)
    }

    /// Starts it and returns its result.
    ///
    /// # Errors
    ///
    /// If it fails or takes too long.
    pub fn ask(&self, what: &str, fields: Value, takes: Duration) -> Result<Value, String> {
        self.start(what, fields, takes)?.result()
    }

    fn command_with(&self, order: &Value) -> Command {
        let (program, arguments) =
            self.command.split_first().map_or((Path::new("false"), &[][..]), |(first, rest)| (first.as_path(), rest));
        let mut command = Command::new(program);
        command.args(arguments).arg(order.to_string());
        command
    }
}

/// The locks of one program.
///
/// # Errors
///
/// If it cannot be asked.
pub fn listed(program: &str, command: &[PathBuf]) -> Result<Vec<Contestant>, String> {
    let (launcher, arguments) = command.split_first().ok_or("no command")?;
    let mut list = Command::new(launcher);
    list.args(arguments).arg(json!({ "do": "list" }).to_string());
    let mut child = Child::start(list, PATIENCE)?;
    let mut found = Vec::new();
    let failed = loop {
        match child.line() {
            Ok(line) => {
                let contestant: Result<Contestant, _> = serde_json::from_str(&line);
                let contestant =
                    contestant.map_err(|error| format!("a line of its list is wrong ({error}): {line}"))?;
                found.push(Contestant { program: program.into(), command: command.to_vec(), ..contestant });
            }
            Err(failed) => break failed,
        }
    };
    if found.is_empty() { Err(failed) } else { Ok(found) }
}

/// How this program is asked to be a contestant.
pub fn own_command() -> Vec<PathBuf> {
    vec![std::env::current_exe().unwrap_or_else(|_| "tenure-bench".into()), "contestant".into()]
}

/// Where `bench/install` puts what it installs.
pub fn installed() -> PathBuf {
    let target = std::env::current_exe().ok().and_then(|program| Some(program.ancestors().nth(2)?.to_owned()));
    target.unwrap_or_else(|| "target".into()).join("bench")
}
