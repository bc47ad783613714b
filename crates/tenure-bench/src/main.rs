//! The command of `scripts/bench`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use tenure_bench::bench::Bench;
use tenure_bench::data::Data;
use tenure_bench::plan::Plan;
use tenure_bench::questions::{all, embedded};
use tenure_bench::{child, own, report};

/// Measures tenure against its limits and against other lock libraries.
#[derive(Debug, Parser)]
#[command(name = "tenure-bench", version)]
struct Cli {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Asks the questions, and writes raw data and the report.
    Run {
        /// To see whether everything works: one short round without peers.
        #[arg(long)]
        quick: bool,
        /// Only these of pairs, hot, crowd, takeover, held, outage, waiters, names, redlock, service and embedded;
        /// all if not told.
        #[arg(long, value_delimiter = ',', value_name = "QUESTION,..")]
        only: Vec<String>,
        /// Only these of redis, redlock, embedded, memory, etcd, postgres, zookeeper and service; all if not told.
        #[arg(long, value_delimiter = ',', value_name = "STORE,..")]
        stores: Vec<String>,
        /// Only these peers (redsync, redislock, redisson-rlock, redisson-fair, redisson-fenced, node-redlock,
        /// redis-py, rslock, distributed-lock, etcd-concurrency, etcdctl, curator-mutex, kazoo, pg-advisory,
        /// sqlx-advisory), or all of a language (go, java, node, python, rust); `none` for tenure alone.
        #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
        peers: Option<Vec<String>>,
        /// How often each measurement is made; 5 times if not told, with --quick once.
        #[arg(long, value_name = "N")]
        rounds: Option<usize>,
        /// Where the raw data go (`runs/NAME.jsonl`) and the report.
        #[arg(long, default_value = "target/bench/report", value_name = "DIR")]
        out: PathBuf,
        /// What the raw data are called.
        #[arg(long, default_value = "all", value_name = "NAME")]
        name: String,
    },
    /// Makes the report again from raw data.
    Report {
        /// The raw data; a later file replaces what it has, question by question and store by store, of those before.
        #[arg(value_name = "RAW.jsonl", required = true)]
        raw: Vec<PathBuf>,
        /// Where the report goes; beside the folder of the raw data if not told.
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
    },
    /// Takes part: does as one order says (bench/README.md).
    Contestant {
        /// The order, as JSON.
        order: String,
    },
    /// Tells the time.
    #[command(hide = true)]
    Stamp,
    /// Waits for a lock, once for each line.
    #[command(hide = true)]
    WaitInLine {
        /// Where.
        url: String,
    },
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().what {
        What::Run { quick, only, stores, peers, rounds, out, name } => {
            let rounds = rounds.unwrap_or(if quick { 1 } else { 5 }).max(1);
            run(Plan { quick, rounds, only, stores, peers }, &out, &name)
        }
        What::Report { raw, out } => {
            let first = raw.first().and_then(|raw| raw.parent()).and_then(Path::parent);
            let beside = || first.unwrap_or(Path::new(".")).to_owned();
            make_report(&raw, &out.unwrap_or_else(beside))
        }
        What::Contestant { order } => own::obey(order),
        What::Stamp => {
            embedded::stamp();
            Ok(())
        }
        What::WaitInLine { url } => embedded::wait_in_line(&url),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("tenure-bench: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(plan: Plan, out: &Path, name: &str) -> Result<(), String> {
    let questions = all();
    if let Some(unknown) = plan.only.iter().find(|only| questions.iter().all(|question| question.name != **only)) {
        let names: Vec<&str> = questions.iter().map(|question| question.name).collect();
        return Err(format!("no question {unknown}; there are {}", names.join(", ")));
    }
    let raw = out.join("runs").join(format!("{name}.jsonl"));
    let told = raw.clone();
    child::end_on_signal(Arc::new(move || eprintln!("ended early; what was measured is in {}", told.display())))?;
    let without = Bench::new(plan, &raw)?.run(&questions)?;
    make_report(&[raw], out)?;
    if without.is_empty() { Ok(()) } else { Err(format!("no figures of tenure's for {}", without.join(", "))) }
}

fn make_report(raw: &[PathBuf], out: &Path) -> Result<(), String> {
    let mut data = Data::default();
    for (index, raw) in raw.iter().enumerate() {
        let read = Data::read(raw)?;
        if index == 0 { data = read } else { data.replace(read) }
    }
    report::write(&data, out)?;
    eprintln!("{}", out.join("REPORT.md").display());
    Ok(())
}
