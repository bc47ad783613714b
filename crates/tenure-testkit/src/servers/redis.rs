//! One Redis.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tempfile::TempDir;

use super::builder::Builder;
use super::certificates::Certificates;
use super::clock_shift::ClockShift;
use super::ports::Port;
use super::spawn::{Launch, Process, must_be_installed};
use super::wait::{LIMIT, wait_for, wait_until};

/// Who [`Redis::cli`] is, where there are users.
pub(super) const ADMIN: &str = "testkit-admin";
pub(super) const ADMIN_PASSWORD: &str = "testkit-admin";
/// How exact a shift is looked at: clocks are read in whole seconds, one after the other.
const CLOCK_ERROR_SECONDS: i64 = 2;

/// A `redis-server` of this process on a port of its own; killed when dropped.
///
/// Its methods block their thread, for milliseconds mostly.
pub struct Redis {
    process: Mutex<Process>,
    launch: Launch,
    url: String,
    certificates: Option<Certificates>,
    clock: Option<ClockShift>,
    has_users: bool,
    directory: TempDir,
    port: Port,
}

impl Redis {
    /// A Redis that keeps nothing on disk.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    #[must_use]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A Redis to one's taste; as [`start`](Self::start) has it unless told otherwise.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(super) fn new(
        launch: Launch,
        port: Port,
        url: String,
        certificates: Option<Certificates>,
        clock: Option<ClockShift>,
        has_users: bool,
        directory: TempDir,
    ) -> Self {
        let process = Mutex::new(launch.spawn());
        Self { process, launch, url, certificates, clock, has_users, directory, port }
    }

    /// Its port; the same for life.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// `redis://127.0.0.1:PORT`, or `rediss://127.0.0.1:PORT?ca=PATH`, with the login and the database of its builder.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The certificate of the authority that its certificate is signed by.
    ///
    /// # Panics
    ///
    /// If it has no TLS.
    pub fn ca_path(&self) -> PathBuf {
        self.certificates().certificate("authority")
    }

    /// A client's certificate and key that it accepts.
    ///
    /// # Panics
    ///
    /// If it has no TLS.
    pub fn client_certificate(&self) -> (PathBuf, PathBuf) {
        (self.certificates().certificate("client"), self.certificates().key("client"))
    }

    /// The directory it works in: `redis.conf`, `log`, and what it keeps.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The process it is now, or was last.
    pub fn pid(&self) -> u32 {
        self.process().pid()
    }

    /// What it wrote to its log so far.
    pub fn log(&self) -> String {
        self.launch.said()
    }

    /// What `redis-cli` says to these arguments, options of its own included; an error of the server is an answer too.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn cli(&self, args: &[&str]) -> String {
        let output = self.run_cli(args);
        assert!(
            output.status.success(),
            "redis-cli {args:?} at {}: {}\n{}\n{}",
            self.address(),
            output.status,
            String::from_utf8_lossy(&output.stderr),
            printed(&output)
        );
        printed(&output)
    }

    /// Whether it is up and has loaded its data. A server that is paused is not asked.
    pub fn answers(&self) -> bool {
        let (pid, fit) = {
            let mut process = self.process();
            (process.pid(), !process.has_ended() && !process.is_paused())
        };
        // Another program may listen on the port while ours is about to find it taken.
        let ours =
            || printed(&self.run_cli(&["info", "server"])).lines().any(|line| line == format!("process_id:{pid}"));
        fit && ours() && printed(&self.run_cli(&["ping"])) == "PONG"
    }

    /// Ends it with SIGKILL; when this returns, it is gone and its port is free.
    pub fn kill(&self) {
        self.process().kill();
    }

    /// Kills it, and starts it again on its port, in its directory; returns when it answers and has loaded its data.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn restart(&self) {
        self.start_again_without_waiting();
        self.wait();
    }

    /// [`restart`](Self::restart) that returns at once.
    pub fn start_again_without_waiting(&self) {
        let mut process = self.process();
        process.kill();
        *process = self.launch.spawn();
    }

    /// Returns when it answers and has loaded its data.
    ///
    /// # Panics
    ///
    /// If it does not start: with its log.
    pub fn wait(&self) {
        assert!(self.try_wait(), "the port of a server was taken while it was down:\n{}", self.log());
    }

    /// Stops its process with SIGSTOP; connections stay, and new ones are accepted by the kernel.
    pub fn pause(&self) {
        self.process().pause();
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process().resume();
    }

    /// Sets how far its wall clock is ahead of ours, or behind if negative; it stays so across restarts. Returns when
    /// the server shows it; a server that is down or paused will.
    ///
    /// # Panics
    ///
    /// If it was not built with [`Builder::shifted_clock`].
    pub fn shift_clock(&self, seconds: i64) {
        self.clock.as_ref().expect("a server with a shifted clock").set(seconds);
        if self.answers() {
            let shows = || (self.clock_ahead() - seconds).abs() <= CLOCK_ERROR_SECONDS;
            wait_until("the clock is shifted", shows);
        }
    }

    /// How far its wall clock is ahead of ours, in seconds, give or take one.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub fn clock_ahead(&self) -> i64 {
        let said = self.cli(&["time"]);
        let theirs = said.lines().next().and_then(|seconds| seconds.parse::<i64>().ok());
        let ours = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs();
        theirs.unwrap_or_else(|| panic!("no time: {said}")) - ours.cast_signed()
    }

    /// Waits until the server answers; false if it ended since its port was taken.
    pub(super) fn try_wait(&self) -> bool {
        let answered = wait_for(|| {
            // In this order: a server that answered has not ended.
            if self.answers() {
                return Some(true);
            }
            self.process().has_ended().then_some(false)
        });
        let log = self.log();
        match answered {
            Some(true) => true,
            Some(false) if log.contains("Address already in use") || log.contains("Failed listening") => false,
            Some(false) => panic!("{} ended:\n{log}", self.launch.program.display()),
            None => panic!("{} does not answer:\n{log}", self.launch.program.display()),
        }
    }

    fn run_cli(&self, args: &[&str]) -> Output {
        must_be_installed(Path::new("redis-cli"));
        let limit = LIMIT.as_secs().to_string();
        let mut command = Command::new("timeout");
        // A server that is paused would be waited for without end.
        command.args(["--signal=KILL", &limit, "redis-cli", "--raw", "--no-auth-warning", "-h", "127.0.0.1", "-p"]);
        command.arg(self.port().to_string()).env_remove("REDISCLI_AUTH");
        if self.has_users {
            command.args(["--user", ADMIN, "--pass", ADMIN_PASSWORD]);
        }
        if self.certificates.is_some() {
            command.arg("--tls").arg("--cacert").arg(self.ca_path());
        }
        command.args(args).output().expect("cannot run timeout")
    }

    fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().expect("a server with TLS")
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}
