//! A client in a process of its own, that can be stopped and killed.
//!
//! The test program is run once more for the same test, which then plays the other part: so a test begins with
//! `if process::is_other() { return process::play().await; }`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use crate::support::{LIMIT, connect, patiently};

const URL: &str = "TENURE_TEST_OTHER_URL";
const TTL: &str = "TENURE_TEST_OTHER_TTL_MS";
/// Told from what libtest prints.
const MARK: &str = "other: ";

/// Whether this is the other process.
pub(crate) fn is_other() -> bool {
    std::env::var_os(URL).is_some()
}

fn tell(what: &str) {
    println!("\n{MARK}{what}");
    std::io::stdout().flush().unwrap();
}

fn told() -> bool {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).is_ok_and(|bytes| bytes > 0)
}

/// Takes `x` whenever it is told to, says so, and when told again says how it stands; never gives it back.
pub(crate) async fn play() {
    let client = connect(&std::env::var(URL).unwrap()).await;
    let ttl = Duration::from_millis(std::env::var(TTL).unwrap().parse().unwrap());
    tell("here");
    while tokio::task::block_in_place(told) {
        let guard = client.lock("x").ttl(ttl).acquire().await.unwrap();
        tell(&format!("holds {} {}", guard.token().unwrap().get(), guard.owner()));
        if !tokio::task::block_in_place(told) {
            // Killed, or about to be.
            std::mem::forget(guard);
            return;
        }
        let held = guard.is_held();
        patiently("the loss", guard.lost()).await;
        tell(&format!("late {held}"));
    }
}

pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Runs the test of this name once more. Returns when the client there is connected.
    pub(crate) fn start(test: &str, url: &str, ttl: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", test]).env(URL, url).env(TTL, ttl.as_millis().to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let Some(said) = line.strip_prefix(MARK) else { continue };
                if sender.send(said.to_owned()).is_err() {
                    return;
                }
            }
        });
        let this = Self { child, lines };
        this.hear("here");
        this
    }

    /// What it says next, after this word.
    pub(crate) fn hear(&self, word: &str) -> String {
        let line = tokio::task::block_in_place(|| self.lines.recv_timeout(LIMIT));
        let line = line.unwrap_or_else(|_| panic!("the other process does not say that it {word}"));
        line.strip_prefix(word).unwrap_or_else(|| panic!("{word}: {line}")).trim().to_owned()
    }

    /// Tells it to go on.
    pub(crate) fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.unwrap().success(), "kill {signal}");
    }

    /// Ends it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
