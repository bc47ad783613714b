//! The command line, and nothing but its parsing. What values mean is decided where they are used.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use tenure::{Lock, Missed, Name, Replicas, Session};
use tenure_server::Right;

use crate::failure::Talk;
use crate::{duration, groups, help, serve};

/// Locks between processes: flock that says when a lock is lost
#[derive(Debug, Parser)]
#[command(name = "tenure", version, after_help = help::SHORT, after_long_help = help::TOP, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// Reads the command line. A name that begins with `-` stands between two `--`, for the first ends the options:
    /// `run -- -x -- COMMAND`.
    pub(crate) fn read(arguments: &[OsString]) -> Result<Self, clap::Error> {
        if let Some(option) = without_value(arguments) {
            let message =
                format!("a value is required for '{option}' (one that begins with -- is written as {option}=VALUE)\n");
            return Err(clap::Error::raw(ErrorKind::InvalidValue, message));
        }
        let refused = match Self::try_parse_from(arguments) {
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => error,
            outcome => return outcome,
        };
        let Some((name, rest)) = without_dashed_name(arguments) else {
            return Err(without_dashes(arguments).unwrap_or(refused));
        };
        // What is wrong with the rest is wrong either way.
        let mut cli = Self::try_parse_from(rest)?;
        match &mut cli.command {
            Command::Run(run) => run.names = vec![name],
            _ => return Err(refused),
        }
        Ok(cli)
    }
}

impl Cli {
    /// What `--conflict-exit-code` says.
    pub(crate) fn conflict_exit_code(&self) -> Option<u8> {
        match &self.command {
            Command::Run(run) => run.waiting.conflict_exit_code,
            Command::Acquire(acquire) => acquire.waiting.conflict_exit_code,
            _ => None,
        }
    }

    pub(crate) fn talk(&self) -> Talk {
        match (self.common.quiet, self.common.verbose) {
            (true, _) => Talk::Quiet,
            (_, true) => Talk::Verbose,
            _ => Talk::Usual,
        }
    }
}

/// The first option that takes any text and is followed by another option: `--owner $UNSET --no-wait` would otherwise
/// claim for the owner `--no-wait`, and wait.
fn without_value(arguments: &[OsString]) -> Option<&'static str> {
    let options = arguments.split(|argument| argument == "--").next()?.len();
    arguments.iter().take(options).zip(arguments.iter().skip(1)).find_map(|(option, value)| {
        let option = ["--owner", "--label", "--reason", "--address"].into_iter().find(|text| option == text)?;
        value.to_str().is_some_and(|value| value.starts_with("--")).then_some(option)
    })
}

/// What to tell somebody who wrote a command without `--` before it, if it is that: more than one name, and no command.
fn without_dashes(arguments: &[OsString]) -> Option<clap::Error> {
    if arguments.iter().any(|argument| argument == "--") {
        return None;
    }
    let with_command = arguments.iter().cloned().chain(["--".into(), "COMMAND".into()]);
    let Command::Run(Run { names, .. }) = Cli::try_parse_from(with_command).ok()?.command else { return None };
    let mut at = 0;
    for name in names.get(..2)? {
        at += 1 + arguments.get(at + 1..)?.iter().position(|argument| argument == name.as_str())?;
    }
    let quoted = |argument: &OsString| quoted(&argument.to_string_lossy());
    let (before, command) = arguments.split_at_checked(at)?;
    let words = ["tenure".to_owned()].into_iter().chain(before.iter().skip(1).map(quoted));
    let line: Vec<String> = words.chain(["--".to_owned()]).chain(command.iter().map(quoted)).collect();
    let message = format!("put `--` before the command: {}\n", line.join(" "));
    Some(clap::Error::raw(ErrorKind::MissingRequiredArgument, message))
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_./:=@%+,-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whether errors are to be told as JSON, as far as can be seen of arguments that make no sense.
pub(crate) fn asks_for_json(arguments: &[OsString]) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == "--json")
}

/// The name of `OPTIONS -- NAME -- COMMAND`, and the arguments with a place-holder for it among the options.
fn without_dashed_name(arguments: &[OsString]) -> Option<(String, Vec<OsString>)> {
    let first = arguments.iter().position(|argument| argument == "--")?;
    let name = arguments.get(first + 1)?.to_str().filter(|name| name.starts_with('-'))?;
    let command = arguments.get(first + 2..).filter(|rest| rest.first().is_some_and(|next| next == "--"))?;
    let options = arguments.get(..first)?.iter().cloned();
    Some((name.to_owned(), options.chain(["NAME".into()]).chain(command.iter().cloned()).collect()))
}

fn permits(text: &str) -> Result<u32, String> {
    let permits = text.parse().ok().filter(|permits| *permits > 0);
    permits.ok_or_else(|| format!("N is a whole number from 1 to {}", u32::MAX))
}

fn missed(text: &str) -> Result<Missed, String> {
    match text {
        "run" => Ok(Missed::Run),
        "skip" => Ok(Missed::Skip),
        _ => Err("write run or skip".to_owned()),
    }
}

fn retries(text: &str) -> Result<u32, String> {
    text.parse().ok().filter(|retries| *retries <= 1_000).ok_or_else(|| "N is a whole number up to 1000".to_owned())
}

fn exit_code(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "an exit code is a whole number from 0 to 255".to_owned())
}

fn replicas(text: &str) -> Result<Replicas, String> {
    if text == "majority" {
        return Ok(Replicas::Majority);
    }
    let count = text.parse().ok().filter(|count| *count > 0).map(Replicas::AtLeast);
    count.ok_or_else(|| "write a whole number from 1, or majority".to_owned())
}

fn at_most<const MAX: usize>(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= MAX);
    count.ok_or_else(|| format!("write whole numbers up to {MAX} with commas between them, or 0 to leave it out"))
}

fn seconds(text: &str) -> Result<f64, String> {
    // Every turn on the hot name is kept until the end: in an hour there would be more than memory has room for.
    let seconds = text.parse().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    seconds.ok_or_else(|| "write a number of seconds from 0.1 to 60".to_owned())
}

/// What every command takes.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "For every command")]
pub(crate) struct Common {
    /// The store, such as redis://HOST (`tenure --help` has them all); $TENURE_URL if not given, else sqlite:, the
    /// embedded one
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) on: Option<String>,
    /// Data as JSON on stdout, errors as JSON on stderr
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say nothing but errors: no warnings, no line while waiting
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say what is done: what is waited for, what was acquired, how it ended
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    #[command(after_long_help = help::RUN)]
    Run(Run),
    /// Run a command while leading, and campaign again when that is lost
    #[command(after_long_help = help::ELECT)]
    Elect(Elect),
    /// Run a command once per period or point of a schedule, over a whole fleet
    #[command(after_long_help = help::ONCE)]
    Once(Once),
    /// Take a lock and leave it to the script
    #[command(after_long_help = help::ACQUIRE)]
    Acquire(Acquire),
    /// Keep a lock that acquire took
    #[command(after_long_help = help::RENEW)]
    Renew(Renew),
    /// Give a lock back that acquire took
    #[command(after_long_help = help::RELEASE)]
    Release(Release),
    /// Show who holds a name and who waits for it
    #[command(after_long_help = help::SHOW)]
    Show(Show),
    /// Show a name with a diagnosis: who holds it, whether it renews, how long a wait may be
    #[command(after_long_help = help::EXPLAIN)]
    Explain(Explain),
    /// Print what is kept with a name
    #[command(after_long_help = help::MEMO)]
    Memo(ReadMemo),
    /// List the names in use
    #[command(after_long_help = help::LS)]
    Ls(Ls),
    /// Tell who is granted, waits, releases and loses, as it happens
    #[command(after_long_help = help::WATCH)]
    Watch(Watch),
    /// Show all locks on a full screen
    #[command(after_long_help = help::TOP_SCREEN)]
    Top(Top),
    /// End the claims of a lock's holders
    #[command(after_long_help = help::BREAK)]
    Break(Break),
    /// Find owners that wait for each other
    #[command(after_long_help = help::DEADLOCKS)]
    Deadlocks(Deadlocks),
    /// Check a store for what makes locks unsafe or slow there
    #[command(after_long_help = help::DOCTOR)]
    Doctor,
    /// Serve the locks of a store over HTTP, with a dashboard
    #[command(after_long_help = help::SERVE)]
    Serve(Serve),
    /// Measure how fast locks are in a store
    #[command(after_long_help = help::BENCH)]
    Bench(Bench),
    /// Print completions for a shell
    #[command(after_long_help = help::COMPLETIONS)]
    Completions(Completions),
    /// Print the manual page
    #[command(after_long_help = help::MAN)]
    Man(Man),
}

/// `serve`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Serve {
    #[command(subcommand)]
    pub(crate) command: Option<ServeCommand>,
    /// Where to listen. Off this machine it needs --tokens
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7420", value_parser = serve::address)]
    pub(crate) listen: SocketAddr,
    /// Who may do what: a file of tokens, as `tenure serve token` makes them. Read again at SIGHUP
    #[arg(long, value_name = "FILE")]
    pub(crate) tokens: Option<PathBuf>,
    /// Speak TLS with this certificate (PEM). Read again at SIGHUP
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Ask callers for a certificate of this authority (PEM); it counts as the token of the name in it
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,
    /// Connections at once; beyond, idle ones are closed
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub(crate) connections: usize,
    /// Acquires that wait at once: with the streams never more than three quarters of the connections
    #[arg(long, value_name = "N", default_value_t = 12_032)]
    pub(crate) waiters: usize,
    /// Acquires of one token that wait at once; unless given, as many as --waiters, as for one name
    #[arg(long, value_name = "N")]
    pub(crate) waiters_of_caller: Option<usize>,
    /// Acquires for one name that wait at once
    #[arg(long, value_name = "N")]
    pub(crate) waiters_for_name: Option<usize>,
    /// A name of this service besides localhost, where there are no tokens; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) host: Vec<String>,
    /// How long requests under way may take once the service is told to stop
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    pub(crate) drain: Duration,
    /// Streams of events at once
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub(crate) streams: usize,
    /// Tell names apart in metrics by what stands before the first slash (orders of orders/42): these, and other for
    /// all else; at most 64
    #[arg(long, value_name = "GROUPS", value_delimiter = ',', value_parser = groups::parse)]
    pub(crate) groups: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ServeCommand {
    /// Make a token: its entry for the file on stdout, the secret on stderr
    #[command(after_long_help = help::SERVE_TOKEN)]
    Token(Token),
}

/// `serve token`.
#[derive(Debug, Args)]
pub(crate) struct Token {
    /// Who has it. One name may have several secrets, so that one can be replaced
    pub(crate) name: String,
    /// What it may do: acquire (and renew, release), read, break, or admin for all of it
    #[arg(long, value_name = "RIGHTS", value_delimiter = ',', default_value = "acquire,read")]
    pub(crate) may: Vec<Right>,
    /// Only with names that begin so; may be given several times
    #[arg(long, value_name = "PREFIX")]
    pub(crate) prefix: Vec<String>,
}

/// How long to wait.
#[derive(Clone, Debug, Args)]
pub(crate) struct Waiting {
    /// Wait at most this long; for ever if not given
    #[arg(short, long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Do not wait: exit 75 if somebody else holds it
    #[arg(short, long, alias = "nonblock")]
    pub(crate) no_wait: bool,
    /// The exit code instead of 75
    #[arg(short = 'E', long, value_name = "CODE", allow_hyphen_values = true, value_parser = exit_code)]
    pub(crate) conflict_exit_code: Option<u8>,
}

/// How much of the name to take.
#[derive(Clone, Debug, Args)]
pub(crate) struct Sharing {
    /// Hold it together with others that say --shared, but with no other
    #[arg(long, conflicts_with = "permits")]
    pub(crate) shared: bool,
    /// Let N hold this name together; all must say the same N
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = permits)]
    pub(crate) permits: Option<u32>,
}

impl Sharing {
    /// The lock of a name that takes so much of it.
    pub(crate) fn lock(&self, session: &Session, name: &Name) -> Lock {
        match self.permits {
            Some(permits) => session.semaphore(name.as_str(), permits),
            None if self.shared => session.rwlock(name.as_str()).read(),
            None => session.lock(name.as_str()),
        }
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        !self.shared && self.permits.is_none()
    }
}

/// How many replicas must have the lock.
#[derive(Clone, Debug, Args)]
pub(crate) struct Replication {
    /// Hold it only while so many replicas have it; N or majority, for stores with replicas (Redis; on redis://
    /// majority needs ?replicas=N in the URL)
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = replicas)]
    pub(crate) min_replicas: Option<Replicas>,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// What to lock, such as nightly or orders/42; several are held together or not at all
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// How long the lock outlives a machine that died; renewed every third of it [default: 10s, or what the store
    /// allows]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) replication: Replication,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    /// From SIGTERM to SIGKILL when the lease is lost; a third of the ttl at most, less where leases lag (ZooKeeper)
    /// [default: a fifth of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// What others see of the holder [default: host:pid and the command's name]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) label: Option<String>,
    /// Write metrics of this run to FILE when it ends, for node_exporter's textfile collector (FILE.prom)
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_file: Option<PathBuf>,
    /// Tell names apart in these metrics by what stands before the first slash: these, and other for all else
    #[arg(long, value_name = "GROUPS", value_delimiter = ',', value_parser = groups::parse, requires = "metrics_file")]
    pub(crate) groups: Vec<String>,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "line", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
    /// Run this line in a shell ($SHELL, else /bin/sh) instead of a COMMAND
    #[arg(short = 'c', long = "command", value_name = "LINE", allow_hyphen_values = true, conflicts_with = "command")]
    pub(crate) line: Option<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Elect {
    /// What is led, such as billing or shard/7
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Exit 76 when the leadership is lost, instead of campaigning again
    #[arg(long, conflicts_with = "observe")]
    pub(crate) once: bool,
    /// Print who leads, a line for each change, instead of campaigning
    #[arg(long, conflicts_with_all = ["ttl", "grace", "label", "address", "min_replicas", "command"])]
    pub(crate) observe: bool,
    /// How long nobody leads after a machine that died; renewed every third of it [default: 10s, or what the store
    /// allows]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    /// From SIGTERM to SIGKILL when the leadership is lost; a third of the ttl at most [default: a fifth of the ttl, at
    /// most 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// What others see of the leader [default: host:pid and the command's name]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) label: Option<String>,
    /// Where the leader is reached: observers are told
    #[arg(long, value_name = "ADDRESS", allow_hyphen_values = true)]
    pub(crate) address: Option<String>,
    #[command(flatten)]
    pub(crate) replication: Replication,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "observe", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Once {
    /// The job, such as nightly-report: the same on all hosts
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Once in each period of this length, counted from 1970 in UTC
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse,
        required_unless_present_any = ["cron", "status"])]
    pub(crate) every: Option<Duration>,
    /// Once at each point of this schedule: minute hour day month weekday
    #[arg(long, value_name = "SCHEDULE", conflicts_with = "every")]
    pub(crate) cron: Option<String>,
    /// The time zone of --cron, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron", conflicts_with = "every")]
    pub(crate) tz: Option<String>,
    /// What to do when the slot is over by the time the name is granted: skip it, or run as the slot then present
    #[arg(long, value_name = "WHAT", value_parser = missed, default_value = "skip")]
    pub(crate) missed: Missed,
    /// Try a slot again up to N times after a failure, here or on another host; an end that was not recorded is one
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = retries, default_value = "0")]
    pub(crate) retry: u32,
    /// Replace the schedule that was used under this name until now
    #[arg(long)]
    pub(crate) reschedule: bool,
    /// End the command (SIGTERM, and SIGKILL after the grace) when it has run for this long: that is a failure
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) timeout: Option<Duration>,
    /// Show the last slots, instead of running anything
    #[arg(long, conflicts_with_all = ["every", "cron", "retry", "reschedule", "timeout", "ttl", "grace", "label", "min_replicas", "command"])]
    pub(crate) status: bool,
    /// How long a host that died keeps others waiting; renewed every third of it [default: 10s, or what the store
    /// allows]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    /// From SIGTERM to SIGKILL when the lease is lost or the time is over; a third of the ttl at most [default: a
    /// fifth of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,
    /// What others see of the host that runs it [default: host:pid and the command's name]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) label: Option<String>,
    #[command(flatten)]
    pub(crate) replication: Replication,
    /// The command and its arguments
    #[arg(last = true, required_unless_present = "status", value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Acquire {
    /// What to lock
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How long it is yours without a renewal [default: 30s, or what the store allows]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) replication: Replication,
    /// Who claims: 1 to 128 visible ASCII characters; the same again repeats the attempt [default: random]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) owner: Option<String>,
    /// What others see of the holder [default: host and pid of the caller]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) label: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// What is locked
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The owner that acquire printed
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) owner: String,
    /// For how long; a shorter one than it has keeps the longer [default: as acquired]
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// What is locked
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// The owner that acquire printed
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) owner: String,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The name to look at
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct ReadMemo {
    /// The name
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The name
    pub(crate) name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that begin with this
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// How often to look at the store
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_interval, default_value = "500ms")]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// Only names that begin with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// How often to look at the store
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true, value_parser = duration::parse_interval, default_value = "500ms")]
    pub(crate) interval: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Break {
    /// Whose holders to end
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Do it; without this, only says what would be ended
    #[arg(long)]
    pub(crate) yes: bool,
    /// End only this owner's claims
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) owner: Option<String>,
    /// Why: the evicted holder is told
    #[arg(long, allow_hyphen_values = true, default_value = "", hide_default_value = true)]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Deadlocks {
    /// End each: the claim that came last stops waiting, and is told why
    #[arg(long = "break")]
    pub(crate) break_: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Bench {
    /// Tasks of one process, each on names of its own
    #[arg(long, value_name = "N,…", allow_hyphen_values = true, value_delimiter = ',', value_parser = at_most::<10_000>, default_value = "1,16,256")]
    pub(crate) tasks: Vec<usize>,
    /// Processes that all want one name
    #[arg(long, value_name = "N,…", allow_hyphen_values = true, value_delimiter = ',', value_parser = at_most::<256>, default_value = "2,8,32")]
    pub(crate) processes: Vec<usize>,
    /// Leases held at the same time
    #[arg(long, value_name = "N,…", allow_hyphen_values = true, value_delimiter = ',', value_parser = at_most::<1_000_000>, default_value = "1000,10000")]
    pub(crate) leases: Vec<usize>,
    /// How long each measurement lasts, at most 60 [default: 5, with --quick 1]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// A rougher measurement, in less than 20 seconds
    #[arg(long)]
    pub(crate) quick: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct Man {
    /// Write one page per command into this directory instead
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn options_stand_before_or_after_the_name_and_the_rest_is_the_command() {
        for line in [
            ["tenure", "run", "--ttl", "5s", "x", "--", "cmd", "--ttl"],
            ["tenure", "run", "x", "--ttl", "5s", "--", "cmd", "--ttl"],
        ] {
            let Command::Run(run) = Cli::try_parse_from(line).unwrap().command else { panic!("not run") };
            assert_eq!(run.names, ["x"]);
            assert_eq!(run.ttl, Some(Duration::from_secs(5)));
            assert_eq!(run.command, ["cmd", "--ttl"]);
        }
    }

    #[test]
    fn a_name_may_begin_with_a_dash_between_two_double_dashes() {
        let read = |line: &[&str]| Cli::read(&line.iter().map(OsString::from).collect::<Vec<_>>());
        for (line, name, command) in [
            (&["tenure", "run", "--ttl", "5s", "--", "-x", "--", "cmd", "--", "y"][..], "-x", &["cmd", "--", "y"][..]),
            (&["tenure", "run", "x", "--", "-y", "--", "z"], "x", &["-y", "--", "z"]),
            (&["tenure", "run", "--", "--", "--", "cmd"], "--", &["cmd"]),
        ] {
            let Command::Run(run) = read(line).unwrap().command else { panic!("not run") };
            assert_eq!(
                (run.names.concat().as_str(), run.command.as_slice()),
                (name, command.iter().map(OsString::from).collect::<Vec<_>>().as_slice())
            );
        }
        for line in [&["tenure", "run", "--", "-x", "cmd"][..], &["tenure", "run", "--", "-x", "--"]] {
            assert_eq!(read(line).unwrap_err().kind(), ErrorKind::MissingRequiredArgument, "{line:?}");
        }
    }
}
