//! The `tenure` command: locks between processes.

mod args;
mod bench;
mod break_;
mod claim;
mod complete;
mod deadlocks;
mod docs;
mod doctor;
mod duration;
mod elect;
mod env;
mod exit;
mod explain;
mod failure;
mod groups;
mod held;
mod help;
mod hide;
mod label;
mod line;
mod memo;
mod metrics_file;
mod once;
mod output;
mod plain;
mod run;
mod serve;
mod show;
mod signals;
mod store;
mod table;
mod top;
mod wait;
mod waiting;
mod watch;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::error::ErrorKind;

use args::{Cli, Command};
use exit::Exit;
use failure::Failure;
use store::Store;

/// How long background work that hangs may delay the end of the process.
const FAREWELL: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    // The guardian is started for every run, so it does not go through the parser.
    let mut arguments = std::env::args_os();
    if arguments.nth(1).is_some_and(|first| first == run::GUARD_COMMAND) {
        return run::guardian(arguments.collect()).into();
    }
    let arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.get(1).is_some_and(|first| first == bench::WORKER_COMMAND) {
        return bench::worker().into();
    }
    if arguments.get(1).is_some_and(|first| first == docs::COMPLETE_COMMAND) {
        return complete::main(arguments[2..].to_vec()).into();
    }
    let cli = match Cli::read(&arguments) {
        Ok(cli) => cli,
        Err(error) => return refuse(&error, &arguments).into(),
    };
    if let Some(on) = &cli.common.on {
        hide::password(on, &arguments);
    }
    let (json, conflict) = (cli.common.json, cli.conflict_exit_code());
    cli.talk().set();
    match execute(cli) {
        Ok(exit) => exit.into(),
        Err(mut failure) => {
            if let (Exit::NotAcquired, Some(code)) = (failure.exit, conflict) {
                failure.exit = Exit::Command(code.into());
            }
            failure.tell(json);
            failure.exit.into()
        }
    }
}

/// Tells what the parser has to say: help on stdout, a refusal on stderr.
fn refuse(error: &clap::Error, arguments: &[OsString]) -> Exit {
    let json = args::asks_for_json(arguments);
    let text = hide::passwords_of(arguments, error.render().to_string());
    if !error.use_stderr() {
        return output::print(text.as_bytes()).map_or_else(|failure| failure.exit, |()| Exit::Done);
    }
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    match error.kind() {
        _ if json => Failure::usage(first_paragraph(text)).tell(true),
        // Not even one argument: the help is the answer.
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => failure::write_lines(&format!("{text}\n")),
        _ => failure::say_lines(&without_bad_advice(text)),
    }
    Exit::Usage
}

/// What follows `--` is run, and no value: the parser does not know that when it advises to put an option there.
fn without_bad_advice(text: &str) -> String {
    let paragraphs = text.split("\n\n").filter(|paragraph| !paragraph.trim_start().starts_with("tip: to pass '"));
    paragraphs.collect::<Vec<_>>().join("\n\n")
}

/// What is wrong, without the advice and the usage that follow.
fn first_paragraph(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    lines.join(" ")
}

fn execute(cli: Cli) -> Result<Exit, Failure> {
    let common = cli.common;
    let store = || Store::resolve(common.on.as_deref());
    match cli.command {
        Command::Run(args) => {
            let plan = run::Plan::new(args, store()?, common.json)?;
            on_runtime(run::run(plan))
        }
        Command::Elect(args) => on_runtime(elect::run(args, store()?, common.json)),
        Command::Once(args) => on_runtime(once::run(args, store()?, common.json)),
        Command::Acquire(args) => on_runtime(claim::acquire(args, store()?, common.json)),
        Command::Renew(args) => on_runtime(claim::renew(args, store()?, common.json)),
        Command::Release(args) => on_runtime(claim::release(args, store()?, common.json)),
        Command::Show(args) => on_runtime(show::show(args, store()?, common.json)),
        Command::Explain(args) => on_runtime(explain::run(args, store()?, common.json)),
        Command::Memo(args) => on_runtime(memo::read(args, store()?, common.json)),
        Command::Ls(args) => on_runtime(show::list(args, store()?, common.json)),
        Command::Watch(args) => on_runtime(watch::run(args, store()?, common.json)),
        Command::Top(args) => on_threads(top::run(args, store()?, common.json)),
        Command::Break(args) => on_runtime(break_::run(args, store()?, common.json)),
        Command::Deadlocks(args) => on_runtime(deadlocks::run(&args, store()?, common.json)),
        Command::Doctor => on_runtime(doctor::run(store()?, common.json)),
        Command::Serve(args) => on_all_threads(serve::run(args, store, common.json)),
        Command::Bench(args) => on_runtime(bench::run(args, store()?, common.json)),
        Command::Completions(args) => docs::completions(&args),
        Command::Man(args) => docs::man(&args),
    }
}

/// Runs a command on a runtime of one thread: the quickest to start.
fn on_runtime(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    on(&mut tokio::runtime::Builder::new_current_thread(), command)
}

/// Runs a command beside one more thread, on which tasks run: what they do does not keep it from drawing.
fn on_threads(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    on(tokio::runtime::Builder::new_multi_thread().worker_threads(1), command)
}

/// Runs a command on as many threads as there are processors.
fn on_all_threads(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    on(&mut tokio::runtime::Builder::new_multi_thread(), command)
}

fn on(
    runtime: &mut tokio::runtime::Builder,
    command: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let runtime = runtime
        .enable_all()
        .build()
        .map_err(|error| Failure::new(Exit::Unavailable, format!("the runtime cannot start: {error}")))?;
    let outcome = runtime.block_on(command);
    runtime.shutdown_timeout(FAREWELL);
    outcome
}
