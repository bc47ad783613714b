//! A holder in a process of its own, that can be stopped.
//!
//! The test program is run once more for the same test, which then plays the holder's part.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const STORE: &str = "TENURE_TEST_FENCE_STORE";
const RESOURCE: &str = "TENURE_TEST_FENCE_RESOURCE";
/// Told from what libtest prints.
const MARK: &str = "holder: ";
const LIMIT: Duration = Duration::from_secs(60);

/// Where the locks and the resource are, if this is the holder's process.
pub(crate) fn addresses() -> Option<(String, String)> {
    Some((std::env::var(STORE).ok()?, std::env::var(RESOURCE).ok()?))
}

/// Says something to the test.
pub(crate) fn tell(what: &str) {
    println!("\n{MARK}{what}");
    std::io::stdout().flush().unwrap();
}

/// Waits until the test says to go on; false if it is gone.
pub(crate) fn told() -> bool {
    let mut line = String::new();
    tokio::task::block_in_place(|| std::io::stdin().read_line(&mut line)).is_ok_and(|bytes| bytes > 0)
}

pub(crate) struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    /// Runs the test of this name once more.
    pub(crate) fn start(test: &str, store: &str, resource: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "--nocapture", test]).env(STORE, store).env(RESOURCE, resource);
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
        Self { child, lines }
    }

    /// What it says next.
    pub(crate) fn hear(&self) -> String {
        tokio::task::block_in_place(|| self.lines.recv_timeout(LIMIT)).expect("the holder says something")
    }

    pub(crate) fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Lets it run again, and tells it to go on.
    pub(crate) fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
