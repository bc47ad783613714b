//! Runs the test programs that cargo built, several at a time: most tests wait for servers and deadlines, so programs
//! side by side take a fraction of the time, and a program's own threads cannot do it alone.
//!
//! `cargo test --no-run --message-format json | run-tests` runs each program as `cargo test` would: in its package's folder, on
//! its own. A program's output is kept in `--logs` and printed whole if it failed. The last line has the totals.

mod program;
mod report;
mod run;

use std::io::{BufRead, stdin};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use crate::program::Program;
use crate::report::Report;

#[derive(Parser)]
#[command(about = "Runs the test programs named in cargo's messages on standard input")]
pub(crate) struct Options {
    /// How many programs run at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// How many tests of one program run at a time
    #[arg(long, default_value_t = 4)]
    threads: usize,
    /// How long a program may take before it is killed, in minutes
    #[arg(long, default_value_t = 20)]
    minutes: u64,
    /// Where the programs' output goes, one file for each
    #[arg(long, default_value = "target/tests")]
    logs: PathBuf,
    /// Run these programs only (`tenure::redis`; `tenure` for the tests within that crate)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these programs out
    #[arg(long, value_delimiter = ',')]
    skip: Vec<String>,
    /// For every program: filters, and options as `--ignored`
    #[arg(last = true)]
    arguments: Vec<String>,
}

impl Options {
    fn limit(&self) -> Duration {
        Duration::from_secs(60 * self.minutes)
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run_all(&options) {
        Ok(report) => {
            println!("{report}");
            ExitCode::from(u8::from(!report.is_good()))
        }
        Err(error) => {
            eprintln!("run-tests: {error}");
            ExitCode::from(2)
        }
    }
}

fn run_all(options: &Options) -> Result<Report, String> {
    let lines = stdin().lock().lines().collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
    let programs = program::chosen(Program::all_in(&lines)?, &options.only, &options.skip)?;
    std::fs::create_dir_all(&options.logs).map_err(|error| format!("{}: {error}", options.logs.display()))?;
    Ok(run::side_by_side(programs, options))
}
