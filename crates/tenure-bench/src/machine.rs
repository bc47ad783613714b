//! What a run was made on and with: the first line of its raw data.

use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::child::Child;
use crate::contestant::Contestant;

/// The machine, the versions, the date and the commit.
pub fn about(plan: &Value, contestants: &[Contestant]) -> Value {
    let mut versions = Map::new();
    for (what, command) in [
        ("redis", "redis-server --version"),
        ("postgres", "psql --version"),
        ("rustc", "rustc --version"),
        ("node", "node --version"),
        ("go", "go version"),
        ("java", "java -version 2>&1"),
        ("python", "python3 --version"),
        ("flock", "flock --version"),
    ] {
        versions.insert(what.into(), json!(said(command)));
    }
    json!({
        "machine": {
            "cpu": field("/proc/cpuinfo", "model name"),
            "cores": std::thread::available_parallelism().map_or(0, usize::from),
            "memory": field("/proc/meminfo", "MemTotal"),
            "kernel": said("uname -sr"),
        },
        "versions": versions,
        "date": said("date -u +%Y-%m-%dT%H:%MZ"),
        "commit": said("git describe --always --dirty --abbrev=12"),
        "plan": plan,
        "contestants": contestants,
    })
}

/// The first line that a shell command prints; null if it fails.
fn said(line: &str) -> Option<String> {
    let mut command = Command::new("sh");
    command.args(["-c", line]);
    let mut child = Child::start(command, Duration::from_secs(20)).ok()?;
    let first = child.line().ok()?.trim().to_owned();
    (!first.is_empty() && !first.contains("not found")).then_some(first)
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
