//! What a Redis says of itself: CPU time, memory, how often scripts were called, and what clients send.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tenure_testkit::servers::Redis;

/// One look at a server's statistics.
#[derive(Clone, Copy, Debug, Default)]
pub struct Look {
    /// Seconds of CPU time used so far.
    pub cpu_s: f64,
    /// Bytes in use.
    pub memory: f64,
    /// Scripts called by clients so far.
    pub scripts: f64,
    /// Microseconds spent in them.
    pub script_us: f64,
    /// Commands run so far, those within scripts included, and those looks left out.
    pub commands: f64,
    /// Expiries set so far, within scripts or not: what a renewal does.
    pub expiries: f64,
}

/// Reads the sections of `INFO` into one look.
pub fn parse_info(info: &str) -> Look {
    let mut look = Look::default();
    for line in info.lines() {
        let Some((key, value)) = line.trim().split_once(':') else { continue };
        let number = || value.parse::<f64>().unwrap_or(0.0);
        match key {
            "used_cpu_sys" | "used_cpu_user" => look.cpu_s += number(),
            "used_memory" => look.memory = number(),
            _ => {}
        }
        let Some(command) = key.strip_prefix("cmdstat_") else { continue };
        let field = |name: &str| -> f64 {
            let part = value.split(',').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
            part.and_then(|number| number.parse().ok()).unwrap_or(0.0)
        };
        if command != "info" {
            look.commands += field("calls");
        }
        match command {
            "eval" | "evalsha" | "fcall" => {
                look.scripts += field("calls");
                look.script_us += field("usec");
            }
            "pexpire" | "pexpireat" => look.expiries += field("calls"),
            _ => {}
        }
    }
    look
}

/// A connection that looks.
pub struct Looker(redis::Connection);

impl Looker {
    /// Connects.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn new(server: &Redis) -> Result<Self, String> {
        let client = redis::Client::open(server.url()).map_err(|error| error.to_string())?;
        Ok(Self(client.get_connection().map_err(|error| error.to_string())?))
    }

    /// Looks.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn look(&mut self) -> Result<Look, String> {
        let mut command = redis::cmd("INFO");
        command.arg("everything");
        let info: String = command.query(&mut self.0).map_err(|error| error.to_string())?;
        Ok(parse_info(&info))
    }

    /// Forgets all keys.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn flush(&mut self) -> Result<(), String> {
        redis::cmd("FLUSHALL").query(&mut self.0).map_err(|error| error.to_string())
    }
}

/// Looks at a server all the time, for spans whose end alone is known.
pub struct Watch {
    over: Arc<AtomicBool>,
    looks: JoinHandle<Vec<(Instant, Look)>>,
}

impl Watch {
    /// Begins to look, some times a second.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn begin(server: &Redis) -> Result<Self, String> {
        let mut looker = Looker::new(server)?;
        let over = Arc::new(AtomicBool::new(false));
        let seen = over.clone();
        let looks = thread::spawn(move || {
            let mut looks = Vec::new();
            while !seen.load(Ordering::Relaxed) {
                if let Ok(look) = looker.look() {
                    looks.push((Instant::now(), look));
                }
                thread::sleep(Duration::from_millis(100));
            }
            looks
        });
        Ok(Self { over, looks })
    }

    /// Ends it: what was seen of the span that ends now.
    pub fn end(self, span: Duration) -> Option<Seen> {
        self.over.store(true, Ordering::Relaxed);
        let end = Instant::now();
        let looks = self.looks.join().ok()?;
        let before = looks.first()?.1;
        let (from, begin) = *looks.iter().find(|(when, _)| *when + span >= end)?;
        let (to, end) = *looks.iter().rfind(|(when, _)| *when <= end)?;
        (to > from).then(|| Seen { before, begin, end, span: to - from })
    }
}

/// What a [`Watch`] has seen.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Before all.
    pub before: Look,
    /// As the span began.
    pub begin: Look,
    /// As it ended.
    pub end: Look,
    /// How long it was between the looks.
    pub span: Duration,
}

/// When a client sent a command, in seconds since the Unix epoch, by a line of `MONITOR`; none for what scripts do.
pub fn monitor_line(line: &str) -> Option<f64> {
    let (time, rest) = line.trim().trim_start_matches('+').split_once(' ')?;
    let (origin, _) = rest.strip_prefix('[')?.split_once(']')?;
    let from_script = origin.split(' ').nth(1) == Some("lua");
    time.parse().ok().filter(|_| !from_script)
}

/// Takes note of all that clients send.
pub struct Monitor {
    connection: TcpStream,
    times: JoinHandle<Vec<f64>>,
}

impl Monitor {
    /// Begins.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn begin(server: &Redis) -> Result<Self, String> {
        let begin = || {
            let mut connection = TcpStream::connect(server.address())?;
            connection.write_all(b"MONITOR\r\n")?;
            let mut lines = BufReader::new(connection.try_clone()?);
            lines.read_line(&mut String::new())?;
            let times = thread::spawn(move || {
                lines.lines().map_while(Result::ok).filter_map(|line| monitor_line(&line)).collect()
            });
            Ok(Self { connection, times })
        };
        begin().map_err(|error: std::io::Error| format!("MONITOR: {error}"))
    }

    /// How many commands clients sent in this span of Unix time in seconds.
    pub fn end(self, from: f64, until: f64) -> usize {
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
        let times = self.times.join().unwrap_or_default();
        times.iter().filter(|time| (from..=until).contains(*time)).count()
    }
}

/// Seconds of CPU time a process has used, whether it runs or stands still.
pub fn process_cpu(pid: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in brackets, and may have some of its own.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / rustix::param::clock_ticks_per_second() as f64)
}
