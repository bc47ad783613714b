//! The near end of the line to the workers: each is told its order on stdin, answers on stdout, and stops when stdin
//! ends.

use std::path::Path;
use std::process::{ExitStatus, Stdio};

use futures_util::future::{join_all, try_join_all};
use serde::de::DeserializeOwned;
use tenure_load::order::Order;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::WORKER_COMMAND;
use crate::env;
use crate::exit::Exit;
use crate::failure::Failure;

/// This very program, even if its file was replaced since it started.
const SELF: &str = "/proc/self/exe";

/// The workers of one measurement.
#[derive(Debug, Default)]
pub(super) struct Crew(Vec<Worker>);

impl Crew {
    /// Starts so many workers, and tells each the order.
    pub(super) async fn start(&mut self, count: usize, order: &Order) -> Result<(), Failure> {
        let order = serde_json::to_string(order).map_err(|error| failed(&format!("no order: {error}")))?;
        for number in 1..=count {
            let title = if count == 1 { "the worker".to_owned() } else { format!("worker {number} of {count}") };
            self.0.push(Worker::start(title)?);
        }
        self.tell(&order).await;
        Ok(())
    }

    /// One line to each. Who is gone says why where it should have answered.
    pub(super) async fn tell(&mut self, line: &str) {
        let line = format!("{line}\n");
        for worker in &mut self.0 {
            if let Some(stdin) = &mut worker.stdin {
                let _ = stdin.write_all(line.as_bytes()).await;
            }
        }
    }

    /// The next line of each. A failure as soon as one of them ends without it.
    pub(super) async fn lines(&mut self) -> Result<Vec<String>, Failure> {
        try_join_all(self.0.iter_mut().map(Worker::line)).await
    }

    /// The result of each, and the end of all.
    pub(super) async fn results<T: DeserializeOwned>(&mut self) -> Result<Vec<T>, Failure> {
        let lines = self.lines().await?;
        let results: Result<Vec<T>, _> = lines.iter().map(|line| serde_json::from_str(line)).collect();
        let results = results.map_err(|error| failed(&format!("a worker did not tell its result: {error}")))?;
        for worker in &mut self.0 {
            worker.finish().await?;
        }
        self.0.clear();
        Ok(results)
    }

    /// Tells all to stop, and waits for their end. False if one of them did not end well.
    pub(super) async fn stop(&mut self) -> bool {
        for worker in &mut self.0 {
            worker.stdin = None;
        }
        let ends = join_all(self.0.iter_mut().map(Worker::end)).await;
        ends.into_iter().all(|end| end.is_ok_and(|end| end.success()))
    }

    /// Kills who is left. None is there afterwards, not even as a zombie.
    pub(super) async fn kill(&mut self) {
        join_all(self.0.iter_mut().map(|worker| worker.child.kill())).await;
        self.0.clear();
    }
}

#[derive(Debug)]
struct Worker {
    title: String,
    child: Child,
    /// Its end tells the worker to stop.
    stdin: Option<ChildStdin>,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// Its end, whatever it still has to say: unread, a long result would keep it.
    async fn end(&mut self) -> std::io::Result<std::process::ExitStatus> {
        while let Ok(Some(_)) = self.stdout.next_line().await {}
        self.child.wait().await
    }

    fn start(title: String) -> Result<Self, Failure> {
        Self::try_start(title).map_err(|error| failed(&format!("a worker process cannot start: {error}")))
    }

    fn try_start(title: String) -> std::io::Result<Self> {
        let program = if Path::new(SELF).exists() { SELF.into() } else { std::env::current_exe()? };
        let mut command = Command::new(program);
        command.arg0("tenure").arg(WORKER_COMMAND).env_remove(env::ON);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The signals of a terminal are for us, who tell the workers.
        command.process_group(0).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let stdout = stdout.ok_or_else(|| std::io::Error::other("no stdout"))?;
        Ok(Self { title, child, stdin, stdout: BufReader::new(stdout).lines() })
    }

    async fn line(&mut self) -> Result<String, Failure> {
        match self.stdout.next_line().await {
            Ok(Some(line)) => Ok(line),
            Ok(None) | Err(_) => {
                let end = self.child.wait().await;
                Err(self.ended(end).await)
            }
        }
    }

    async fn finish(&mut self) -> Result<(), Failure> {
        match self.child.wait().await {
            Ok(end) if end.success() => Ok(()),
            end => Err(self.ended(end).await),
        }
    }

    /// How it came to its end too early, in its own words if it left any.
    async fn ended(&mut self, end: std::io::Result<ExitStatus>) -> Failure {
        let mut words = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            let _ = stderr.read_to_string(&mut words).await;
        }
        let why = match (words.trim(), end) {
            ("", Ok(status)) => format!("ended before its time: {status}"),
            ("", Err(error)) => format!("ended before its time: {error}"),
            (words, _) => words.to_owned(),
        };
        failed(&format!("{}: {why}", self.title))
    }
}

fn failed(message: &str) -> Failure {
    Failure::new(Exit::Unavailable, message)
}
