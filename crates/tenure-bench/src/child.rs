//! Children: each has a time limit, and none outlives the run.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

/// The groups of all children that run, by the id of their first process.
static RUNNING: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn running() -> MutexGuard<'static, BTreeSet<u32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn kill_group(id: u32) {
    // A group that has ended already is as good.
    let _ = killpg(Pid::from_raw(id.cast_signed()), Signal::SIGKILL);
}

/// Ends all children, for a run that is over early.
pub fn kill_all() {
    running().iter().copied().for_each(kill_group);
}

/// A process that does as it is told, in a group of its own: its launcher may be a shell.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    complaints: Option<JoinHandle<String>>,
    until: Instant,
    limit: Duration,
}

impl Child {
    /// Starts a command that may take this long.
    ///
    /// # Errors
    ///
    /// If it cannot be started.
    pub fn start(mut command: Command, limit: Duration) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut process = command.spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
        running().insert(process.id());
        let (said, lines) = channel();
        let output = process.stdout.take();
        thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            // Ends with the child's output, or with whoever listened.
            lines.map_while(Result::ok).try_for_each(|line| said.send(line))
        });
        let complaints = process.stderr.take().map(|errors| thread::spawn(move || last_words(errors)));
        Ok(Self { orders: process.stdin.take(), process, lines, complaints, until: Instant::now() + limit, limit })
    }

    /// The process; also the id of its group.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// What it prints next.
    ///
    /// # Errors
    ///
    /// If it ends or its time is over; it is ended then.
    pub fn line(&mut self) -> Result<String, String> {
        match self.lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => {
                self.kill();
                Err(format!("no answer within {:.0} s: ended", self.limit.as_secs_f64()))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.failure()),
        }
    }

    /// Waits until it prints this line, and ignores others.
    ///
    /// # Errors
    ///
    /// If it ends or its time is over; it is ended then.
    pub fn expect(&mut self, line: &str) -> Result<(), String> {
        while self.line()?.trim() != line {}
        Ok(())
    }

    /// Writes a line to its input.
    ///
    /// # Errors
    ///
    /// If it does not read any more.
    pub fn tell(&mut self, line: &str) -> Result<(), String> {
        let written = self.orders.as_mut().map_or(Ok(()), |orders| writeln!(orders, "{line}"));
        written.map_err(|error| format!("it does not listen: {error}"))
    }

    /// Lets it end, and returns the last line it printed, as JSON.
    ///
    /// # Errors
    ///
    /// If it fails, takes too long, or its last line is not JSON.
    pub fn result(mut self) -> Result<Value, String> {
        self.orders = None;
        let mut last = String::new();
        loop {
            match self.lines.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok(line) => last = line,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {
                    self.kill();
                    return Err(format!("no result within {:.0} s: ended", self.limit.as_secs_f64()));
                }
            }
        }
        if !self.ended().success() {
            return Err(self.failure());
        }
        serde_json::from_str(&last).map_err(|error| format!("its last line is not JSON ({error}): {last:.200}"))
    }

    /// Ends it and all it has started with SIGKILL.
    pub fn kill(&mut self) {
        kill_group(self.id());
        let _ = self.process.wait();
        running().remove(&self.id());
    }

    /// How it has ended; ended by force if it only closed its output.
    fn ended(&mut self) -> ExitStatus {
        let patience = Instant::now() + Duration::from_secs(5);
        while Instant::now() < patience {
            if let Ok(Some(status)) = self.process.try_wait() {
                return status;
            }
            thread::sleep(Duration::from_millis(1));
        }
        kill_group(self.id());
        self.process.wait().unwrap_or_else(|_| ExitStatus::from_raw(1))
    }

    fn failure(&mut self) -> String {
        let status = self.ended();
        let said = self.complaints.take().and_then(|complaints| complaints.join().ok()).unwrap_or_default();
        format!("{status}: {}", if said.is_empty() { "it said nothing" } else { &said })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The end of what a child had to say on standard error, in one line.
fn last_words(mut errors: impl std::io::Read) -> String {
    let mut text = Vec::new();
    let mut chunk = [0; 4096];
    // All is read, so that the child is never held up, and the end is kept.
    while let Ok(count @ 1..) = errors.read(&mut chunk) {
        text.extend_from_slice(&chunk[..count]);
        let surplus = text.len().saturating_sub(16 * 1024);
        text.drain(..surplus);
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join(" | ").chars().take(300).collect()
}

/// Ends all children when the run is interrupted, and then the run; servers end with it.
///
/// # Errors
///
/// If signals cannot be listened for.
pub fn end_on_signal(interrupted: Arc<dyn Fn() + Send + Sync>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    thread::spawn(move || {
        runtime.block_on(async {
            let terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate());
            let Ok(mut terminated) = terminated else { return std::future::pending().await };
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
        });
        kill_all();
        interrupted();
        std::process::exit(130);
    });
    Ok(())
}
