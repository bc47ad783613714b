//! The examples over HTTP, in languages that have no client of ours: two at once at one service, after a wait that is
//! longer than their ttl.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use serde_json::Value;
use tenure_testkit::servers::Redis;

use crate::clients::root;
use crate::command::{PATIENCE, Running, tenure};

/// Longer than the ttl of the examples.
const HELD: &str = "13s";
const STEPS: usize = 20;

/// `tenure serve`, ended with the test.
struct Service {
    process: Child,
    url: String,
}

impl Service {
    fn over(store: &str) -> Self {
        let mut process =
            tenure(store, &["serve", "--listen", "127.0.0.1:0", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let told: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
        Self { process, url: told["listening"].as_str().unwrap().to_owned() }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs an example, and tells its lines as they come.
fn run(mut command: Command, which: usize, lines: Sender<(usize, String)>) -> thread::JoinHandle<bool> {
    thread::spawn(move || {
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        for line in BufReader::new(process.stdout.take().unwrap()).lines() {
            lines.send((which, line.unwrap())).unwrap();
        }
        process.wait().unwrap().success()
    })
}

fn take_turns(example: impl Fn() -> Command) {
    let redis = Redis::start();
    let service = Service::over(redis.url());
    Running::of(&mut tenure(redis.url(), &["acquire", "orders/42", "--ttl", HELD])).wait().exits(0);
    let (say, lines) = channel();
    let running = [0, 1].map(|which| {
        let mut command = example();
        command.arg("orders/42").env("TENURE_SERVICE", &service.url);
        run(command, which, say.clone())
    });
    drop(say);
    let mut told: Vec<(usize, String)> = Vec::new();
    while let Ok(line) = lines.recv_timeout(PATIENCE) {
        told.push(line);
    }
    for one in running {
        assert!(one.join().unwrap(), "it failed: {told:?}");
    }
    // One after the other, each with a token of its own.
    let token = |line: &str| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap();
    assert_eq!(told.len(), 2 * STEPS, "{told:?}");
    let (first, second) = told.split_at(STEPS);
    for turn in [first, second] {
        assert!(turn.iter().all(|(which, line)| *which == turn[0].0 && token(line) == token(&turn[0].1)), "{told:?}");
    }
    assert!(first[0].0 != second[0].0 && token(&first[0].1) < token(&second[0].1), "{told:?}");
    let shown = Running::of(&mut tenure(redis.url(), &["show", "orders/42", "--json"])).wait().exits(0).json();
    assert_eq!((&shown["holders"], &shown["waiters"]), (&Value::Array(vec![]), &Value::Array(vec![])), "{shown}");
}

#[test]
#[ignore = "interop: scripts/interop builds the example and runs it"]
fn go_examples_take_turns() {
    take_turns(|| Command::new(built("go/http-example")));
}

#[test]
#[ignore = "interop: scripts/interop builds the example and runs it"]
fn java_examples_take_turns() {
    take_turns(|| {
        let mut command = Command::new("java");
        command.args(["-XX:TieredStopAtLevel=1", "-cp"]).arg(built("java/http-example")).arg("Locked");
        command
    });
}

fn built(what: &str) -> std::path::PathBuf {
    let path = root().join("target/interop").join(what);
    assert!(path.exists(), "{} is not there: scripts/interop makes it", path.display());
    path
}
