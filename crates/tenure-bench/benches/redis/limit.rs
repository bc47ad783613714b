//! What the server can do: `redis-benchmark`, and its own statistics.

use std::process::Command;

use tenure_testkit::servers::Redis;

/// Frees a classic lock: only the one who set it may delete it.
pub(crate) const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Requests per second of one command with 16 connections and pipelines of 16, over distinct keys.
fn rate(server: &Redis, command: &[&str]) -> f64 {
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.port().to_string(), "-c", "16", "-P", "16", "-n", "300000", "-r", "300000", "--csv"])
        .args(command)
        .output()
        .expect("redis-benchmark is installed: run scripts/setup");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().last().unwrap_or_default();
    let field = line.rsplit("\",\"").nth(6).or_else(|| line.split("\",\"").nth(1)).unwrap_or_default();
    field.trim_matches('"').parse().unwrap_or_else(|_| panic!("redis-benchmark said {text:?}"))
}

/// Pairs per second of the classic lock: SET NX PX, then compare and delete.
pub(crate) struct ClassicLimit {
    pub(crate) set: f64,
    pub(crate) delete: f64,
}

impl ClassicLimit {
    pub(crate) fn measure(server: &Redis) -> Self {
        let digest = server.cli(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]);
        let set = rate(server, &["SET", "key:__rand_int__", "0123456789abcdef", "NX", "PX", "30000"]);
        let delete = rate(server, &["EVALSHA", &digest, "1", "key:__rand_int__", "0123456789abcdef"]);
        server.cli(&["FLUSHALL"]);
        Self { set, delete }
    }

    pub(crate) fn pairs(&self) -> f64 {
        1.0 / (1.0 / self.set + 1.0 / self.delete)
    }
}

/// How often clients have sent a script, and how many microseconds the server spent on it. Calls within scripts count
/// under their own names, never under this one.
pub(crate) fn scripts(server: &Redis) -> (f64, f64) {
    let stats = server.cli(&["INFO", "commandstats"]);
    let (mut calls, mut micros) = (0.0, 0.0);
    for line in stats.lines() {
        if let Some(rest) = line.strip_prefix("cmdstat_evalsha:").or_else(|| line.strip_prefix("cmdstat_eval:")) {
            let field = |name: &str| -> f64 {
                let part = rest.split(',').find_map(|part| part.strip_prefix(name)).unwrap_or("0");
                part.trim().parse().unwrap_or(0.0)
            };
            calls += field("calls=");
            micros += field("usec=");
        }
    }
    (calls, micros)
}

/// How many commands the server ran, those within scripts included.
pub(crate) fn commands(server: &Redis) -> f64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let calls = stats.lines().filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<f64>().ok());
    calls.sum()
}

/// Seconds of CPU time the server has used.
pub(crate) fn server_cpu(server: &Redis) -> f64 {
    let info = server.cli(&["INFO", "cpu"]);
    let field = |name: &str| -> f64 {
        info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0.0)
    };
    field("used_cpu_sys:") + field("used_cpu_user:")
}
