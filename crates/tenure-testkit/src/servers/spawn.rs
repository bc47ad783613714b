//! Processes that die with the test process, even if that is killed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::wait::wait_until;

/// If the parent died before the child asked to die with it, there is another parent now.
const UNLESS_ORPHANED: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;

/// How to start a server, any number of times.
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) args: Vec<OsString>,
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) log: PathBuf,
}

impl Launch {
    pub(super) fn spawn(&self) -> Process {
        must_be_installed(Path::new("setpriv"));
        must_be_installed(&self.program);
        let log = File::options().create(true).append(true).open(&self.log).expect("the server's log");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "sh", "-c", UNLESS_ORPHANED])
            .arg(std::process::id().to_string())
            .arg(&self.program)
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("the server's log"))
            .stderr(log);
        Process { child: spawn_from_a_lasting_thread(command).expect("cannot run setpriv"), paused: false }
    }

    /// What the server said so far.
    pub(super) fn said(&self) -> String {
        fs::read(&self.log).map_or_else(|error| error.to_string(), |log| String::from_utf8_lossy(&log).into_owned())
    }
}

/// A server's process; killed and reaped when dropped.
pub(super) struct Process {
    child: Child,
    paused: bool,
}

impl Process {
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.status().is_some()
    }

    /// How it has ended, if it has.
    pub(super) fn status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Reaped at once: the port is free when this returns.
    pub(super) fn kill(&mut self) {
        // That it has ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns when the process stands still, which is later than the signal.
    pub(super) fn pause(&mut self) {
        self.signal(Signal::SIGSTOP);
        let stat = format!("/proc/{}/stat", self.pid());
        wait_until("the server stands still", || {
            let stat = fs::read_to_string(&stat).expect("the server's state");
            // The name before the state is in brackets, and may have some of its own.
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
        });
        self.paused = true;
    }

    pub(super) fn resume(&mut self) {
        self.signal(Signal::SIGCONT);
        self.paused = false;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.paused
    }

    fn signal(&mut self, signal: Signal) {
        assert!(!self.has_ended(), "{signal} for a server that is not running");
        kill(Pid::from_raw(self.pid().cast_signed()), signal).expect("a signal for a child of ours");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The kernel tells a child of its parent's death when the *thread* that spawned it ends, and a test's thread
/// ends with the test.
fn spawn_from_a_lasting_thread(command: Command) -> io::Result<Child> {
    type Order = (Command, mpsc::SyncSender<io::Result<Child>>);
    static ORDERS: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let orders = ORDERS.get_or_init(|| {
        let (orders, taken) = mpsc::channel::<Order>();
        let spawner = move || {
            for (mut command, answer) in taken {
                // Whoever asked waits for the answer, so this cannot fail.
                let _ = answer.send(command.spawn());
            }
        };
        thread::Builder::new().name("spawner".into()).spawn(spawner).expect("a thread");
        orders
    });
    let (answer, answered) = mpsc::sync_channel(1);
    orders.send((command, answer)).expect("the spawner lives as long as the process");
    answered.recv().expect("the spawner answers")
}

/// # Panics
///
/// If there is no such program: a test that needs a server and has none has failed.
pub(super) fn must_be_installed(program: &Path) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // A path with a slash is not looked for in `PATH`, and joining an absolute one replaces what it is joined to.
    let found = match program.parent() {
        Some(folder) if folder != Path::new("") => program.is_file(),
        _ => std::env::split_paths(&path).any(|folder| folder.join(program).is_file()),
    };
    assert!(found, "{} is not installed: run scripts/setup", program.display());
}
