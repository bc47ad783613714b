//! What the tests share: a store of their own, processes that do not outlive the test, and bounded waits.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Nothing here takes this long unless it hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What a process left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Done {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks the exit code, showing everything if it is another.
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:?}");
        self
    }

    pub(crate) fn says(self, part: &str) -> Self {
        assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
        self
    }
}

/// A store in a directory of its own.
pub(crate) struct Store {
    dir: TempDir,
    /// Another store than the one in the directory.
    url: Option<String>,
}

impl Store {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), url: None }
    }

    /// The store of this URL, with a directory of its own for what commands write.
    pub(crate) fn on(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::new() }
    }

    pub(crate) fn url(&self) -> String {
        self.url.clone().unwrap_or_else(|| format!("sqlite:{}", self.file("locks.db").display()))
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// `tenure --on URL ARGS`, in the store's directory.
    pub(crate) fn command<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = bare(&[]);
        command.arg("--on").arg(self.url()).args(args).current_dir(self.dir.path());
        command
    }

    /// Runs `tenure` with these arguments, split at spaces.
    pub(crate) fn tenure(&self, args: &str) -> Done {
        done(&mut self.command(args.split_whitespace()))
    }

    /// Runs `tenure run ARGS -- sh -c SCRIPT`.
    pub(crate) fn sh(&self, args: &str, script: &str) -> Done {
        done(&mut self.sh_command(args, script))
    }

    pub(crate) fn sh_command(&self, args: &str, script: &str) -> Command {
        let mut command = self.command(["run"]);
        command.args(args.split_whitespace()).args(["--", "sh", "-c", script]);
        command.env("TENURE", BIN);
        command
    }

    /// Starts `tenure run ARGS -- sh -c SCRIPT` and waits until the script has made the file `up`.
    pub(crate) fn start(&self, args: &str, script: &str) -> Running {
        self.start_until(args, &format!("echo $$ > up.tmp; mv up.tmp up; {script}"), "up")
    }

    /// The same, until the script has made this file.
    pub(crate) fn start_until(&self, args: &str, script: &str, file: &str) -> Running {
        let running = Running::of(&mut self.sh_command(args, script));
        eventually(&format!("{file} is there"), || self.file(file).exists());
        running
    }

    /// Starts a run that will wait for NAME, and waits until it does.
    pub(crate) fn start_waiter(&self, name: &str, args: &str) -> Running {
        let before = self.show(name)["waiters"].as_array().unwrap().len();
        let running = Running::of(&mut self.sh_command(&format!("{name} {args}"), "exit 0"));
        eventually("it waits", || self.show(name)["waiters"].as_array().unwrap().len() > before);
        running
    }

    /// The number a script wrote.
    pub(crate) fn pid(&self, file: &str) -> Pid {
        Pid::from_raw(self.read(file).trim().parse().unwrap()).unwrap()
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.file(file)).unwrap()
    }

    pub(crate) fn show(&self, name: &str) -> Value {
        done(&mut self.command(["show", name, "--json"])).exits(0).json()
    }
}

/// The binary under test.
pub(crate) const BIN: &str = env!("CARGO_BIN_EXE_tenure");

/// `tenure ARGS` without anything of ours in its environment.
pub(crate) fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(BIN);
    command.args(args);
    for variable in ["URL", "ON", "HELD", "NAME", "TOKEN", "TERM", "OWNER", "BEARER"] {
        command.env_remove(format!("TENURE_{variable}"));
    }
    command.env("TERM", "xterm");
    command
}

/// Runs a command to its end.
pub(crate) fn done(command: &mut Command) -> Done {
    Running::of(command).wait()
}

/// A process that is ended with the test.
pub(crate) struct Running {
    child: Option<Child>,
    pub(crate) pid: Pid,
}

impl Running {
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::with_stdin(command, Stdio::null())
    }

    pub(crate) fn with_stdin(command: &mut Command, stdin: Stdio) -> Self {
        let child = command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = Pid::from_child(&child);
        Self { child: Some(child), pid }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).unwrap();
    }

    pub(crate) fn stdin(&mut self) -> std::process::ChildStdin {
        self.child.as_mut().unwrap().stdin.take().unwrap()
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
        let output = output.unwrap();
        let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
        Done {
            code: output.status.code().unwrap_or_else(|| -signal.unwrap_or(0)),
            stdout: output.stdout,
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = kill_process(self.pid, Signal::CONT);
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

/// The state of a process, as `ps` shows it.
pub(crate) fn state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Whether a process lives (a zombie does not).
pub(crate) fn is_alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// The keys of a JSON object, in order of the alphabet.
pub(crate) fn keys(value: &Value) -> Vec<String> {
    let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
    keys.sort();
    keys
}

/// All that a call said: its output line by line, each with the number of the stream it came on, and the exit code. The
/// store's URL and times are replaced.
pub(crate) fn told(done: &Done, store: &Store) -> String {
    let stdout = String::from_utf8_lossy(&done.stdout);
    let lines = stdout.lines().map(|line| ("1", line)).chain(done.stderr.lines().map(|line| ("2", line)));
    let mut text: String = lines.map(|(stream, line)| format!("{stream}| {line}\n")).collect();
    text.push_str(&format!("exit {}", done.code));
    without_times(&text.replace(&store.url(), "STORE"))
}

/// The text with `TIME` for each time that depends on the moment.
pub(crate) fn without_times(text: &str) -> String {
    let mut text = text.to_owned();
    for before in ["expires in ", "held by boss for ", "waiting ", "holds it for ", "\"expires_in_ms\":"] {
        let mut parts = text.split(before);
        let mut told = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.find([',', ')', '}']).unwrap_or(part.len());
            let end = part.find(" unless").unwrap_or(end).min(end);
            let is_time = part.starts_with(|c: char| c.is_ascii_digit());
            told.push_str(before);
            told.push_str(if is_time { "TIME" } else { &part[..end] });
            told.push_str(&part[end..]);
        }
        text = told;
    }
    text
}
