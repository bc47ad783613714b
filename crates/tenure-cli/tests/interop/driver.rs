//! A foreign client at work: its driver's process, and the lines to and from it (`interop/README.md`).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use crate::clients::Client;

/// Beyond what was asked to take time, no answer takes this long.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Driver {
    client: Client,
    child: Child,
    stdin: ChildStdin,
    answers: Receiver<String>,
    log: NamedTempFile,
}

impl Driver {
    pub(crate) fn start(client: Client, urls: &[&str]) -> Self {
        let log = NamedTempFile::new().unwrap();
        let stderr = File::create(log.path()).unwrap();
        let mut command = client.command(urls);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (told, answers) = channel();
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| told.send(line))
        });
        Self { client, child, stdin, answers, log }
    }

    /// Asks without waiting for the answer.
    pub(crate) fn send(&mut self, request: &Value) {
        writeln!(self.stdin, "{request}").unwrap_or_else(|error| panic!("{request}: {error}\n{}", self.said()));
    }

    /// The answer to the oldest request that has none: whether it went well, or why not.
    pub(crate) fn answer(&self, within: Duration) -> Result<(), String> {
        let line = self.answers.recv_timeout(within).unwrap_or_else(|error| panic!("{error}\n{}", self.said()));
        let answer: Value = serde_json::from_str(&line).unwrap();
        match answer["ok"].as_bool() {
            Some(true) => Ok(()),
            _ => Err(answer["why"].as_str().unwrap_or(&line).to_owned()),
        }
    }

    pub(crate) fn ask(&mut self, op: &str) -> Result<(), String> {
        self.send(&json!({"op": op}));
        self.answer(PATIENCE)
    }

    /// Does what has to go well.
    pub(crate) fn must(&mut self, op: &str) {
        if let Err(why) = self.ask(op) {
            panic!("{op}: {why}\n{}", self.said());
        }
    }

    pub(crate) fn extend(&mut self, ttl: Duration) -> Result<(), String> {
        self.send(&json!({"op": "extend", "ttl_ms": millis(ttl)}));
        self.answer(PATIENCE)
    }

    /// Whether it got the lock within that time.
    pub(crate) fn acquire(&mut self, key: &str, ttl: Duration, wait: Duration) -> bool {
        self.send_acquire(key, ttl, wait);
        self.acquired(wait + PATIENCE)
    }

    pub(crate) fn send_acquire(&mut self, key: &str, ttl: Duration, wait: Duration) {
        self.send(&json!({"op": "acquire", "key": key, "ttl_ms": millis(ttl), "wait_ms": millis(wait)}));
    }

    /// How an acquire that was sent ended. Only "busy" is a no: anything else is a failure.
    pub(crate) fn acquired(&self, within: Duration) -> bool {
        match self.answer(within) {
            Ok(()) => true,
            Err(why) if why == "busy" => false,
            Err(why) => panic!("acquire: {why}\n{}", self.said()),
        }
    }

    fn said(&self) -> String {
        let log = std::fs::read_to_string(self.log.path()).unwrap_or_default();
        format!("the driver of {:?} wrote:\n{log}", self.client)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap()
}
