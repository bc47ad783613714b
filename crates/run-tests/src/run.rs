//! Runs programs side by side.

use std::collections::VecDeque;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Options;
use crate::program::Program;
use crate::report::{Counts, Outcome, Report};

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Runs all of them, as many at a time as the options say, and prints a line when one has ended.
pub(crate) fn side_by_side(programs: Vec<Program>, options: &Options) -> Report {
    let queue = Mutex::new(VecDeque::from(programs));
    let report = Mutex::new(Report::default());
    thread::scope(|threads| {
        for _ in 0..options.jobs.max(1) {
            threads.spawn(|| {
                while let Some(program) = next(&queue) {
                    let outcome = run(&program, options);
                    let mut report = lock(&report);
                    println!("{outcome}");
                    report.add(&outcome);
                }
            });
        }
    });
    report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// Of its own, so that the queue is locked no longer than this takes.
fn next(queue: &Mutex<VecDeque<Program>>) -> Option<Program> {
    lock(queue).pop_front()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run(program: &Program, options: &Options) -> Outcome {
    let log = options.logs.join(format!("{}.log", program.name.replace("::", "-").replace(' ', "-")));
    let started = Instant::now();
    let ended = File::create(&log)
        .and_then(|log| start(program, options, log))
        .map_err(|error| format!("cannot be started: {error}"))
        .and_then(|child| wait(child, options.limit()));
    let said = std::fs::read(&log).map_or_else(|_| String::new(), |text| String::from_utf8_lossy(&text).into_owned());
    let counts = Counts::in_output(&said);
    let failure = match (ended, counts) {
        (Err(why), _) => Some(why),
        (Ok(None), Some(counts)) if counts.failed == 0 => None,
        (Ok(None), _) => Some("ended well, but does not say so".to_owned()),
        (Ok(Some(status)), _) => Some(status),
    };
    Outcome { name: program.name.clone(), counts: counts.unwrap_or_default(), took: started.elapsed(), failure, said }
}

/// The thread that calls this waits for the child, so that the child is killed if this process ends before it. Tests
/// of signals need these as a terminal leaves them, and a script in the background has SIGINT ignored.
fn start(program: &Program, options: &Options, log: File) -> std::io::Result<Child> {
    Command::new("env")
        .args(["--default-signal", "setpriv", "--pdeathsig", "KILL", "--"])
        .arg(&program.executable)
        .arg(format!("--test-threads={}", options.threads))
        .args(&options.arguments)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Waits until it has ended: well, or with a status that says otherwise.
fn wait(mut child: Child, limit: Duration) -> Result<Option<String>, String> {
    let started = Instant::now();
    loop {
        match child.try_wait() {
            Err(error) => return Err(format!("cannot be waited for: {error}")),
            Ok(Some(status)) => return Ok((!status.success()).then(|| status.to_string())),
            Ok(None) if started.elapsed() >= limit => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("was killed after {} minutes", limit.as_secs() / 60));
            }
            Ok(None) => thread::sleep(LOOK_EVERY),
        }
    }
}
