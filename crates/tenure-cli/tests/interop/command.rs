//! The binary under test, run to its end or kept while a test needs it.

use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Nothing here takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    /// Shown where a test fails.
    _stderr: String,
}

impl Done {
    /// Checks the exit code, showing everything if it is another.
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// `tenure ARGS`, on this store and without anything of ours in its environment.
pub(crate) fn tenure(url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    // Before the arguments: what follows `--` is the command's.
    command.args(["--on", url]).args(args);
    for variable in ["TENURE_URL", "TENURE_HELD", "TENURE_NAME", "TENURE_TOKEN", "TENURE_OWNER"] {
        command.env_remove(variable);
    }
    command
}

/// A process that is ended with the test.
pub(crate) struct Running {
    child: Option<Child>,
    pid: Pid,
}

impl Running {
    pub(crate) fn of(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        Self { child: Some(child), pid }
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.child.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Itself, if it goes on; shows how it ended otherwise.
    pub(crate) fn going(mut self) -> Self {
        assert!(!self.is_over(), "{:?}", self.wait());
        self
    }

    /// Waits for its end.
    pub(crate) fn wait(mut self) -> Done {
        let child = self.child.take().unwrap();
        let (ended, end) = mpsc::channel();
        thread::spawn(move || drop(ended.send(child.wait_with_output())));
        let Ok(output) = end.recv_timeout(PATIENCE) else {
            let _ = kill_process(self.pid, Signal::KILL);
            panic!("did not end within {PATIENCE:?}: {:?}", end.recv_timeout(PATIENCE));
        };
        let Output { status, stdout, stderr } = output.unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim_end().to_owned();
        Done { code: status.code(), stdout: text(stdout), _stderr: text(stderr) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for a condition, as long as nothing takes.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
