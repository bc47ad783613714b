//! `once`: a command that runs once per slot, over a whole fleet.

use std::time::SystemTime;

use serde::Serialize;
use tenure::{Name, OnceRun, Tenure};

use crate::args::Once;
use crate::exit::Exit;
use crate::failure::{Failure, say};
use crate::plain::plain;
use crate::store::Store;
use crate::table::{finish, table};
use crate::{label, output, run};

/// A run, for programs.
#[derive(Serialize)]
struct Told<'a> {
    schedule: &'a str,
    slot: &'a str,
    attempt: u32,
    by: &'a str,
    started: String,
    ended: Option<String>,
    outcome: Option<&'a str>,
}

pub(crate) async fn run(args: Once, store: Store, json: bool) -> Result<Exit, Failure> {
    if args.status {
        return status(&args.name, &store, json).await;
    }
    run::run(run::Plan::of_job(args, store, json)?).await
}

async fn status(name: &str, store: &Store, json: bool) -> Result<Exit, Failure> {
    let name = Name::new(name)?;
    let read = async |tenure: &Tenure| store.ask(tenure.once(name.as_str()).status()).await;
    let runs = store.with(&label::of_person(), json, read).await?;
    if json {
        output::print_json(&runs.iter().map(told).collect::<Vec<_>>())?;
    } else if runs.is_empty() {
        say(format_args!("{name}: nothing was run yet"));
    } else {
        output::print(shown(&runs).as_bytes())?;
    }
    Ok(Exit::Done)
}

fn told(run: &OnceRun) -> Told<'_> {
    Told {
        schedule: &run.schedule,
        slot: &run.slot,
        attempt: run.attempt,
        by: &run.by,
        started: at(run.started),
        ended: run.ended.map(at),
        outcome: run.outcome.as_deref(),
    }
}

fn shown(runs: &[OnceRun]) -> String {
    let mut rows = table(["SLOT", "ATTEMPT", "OUTCOME", "STARTED", "ENDED", "BY", "SCHEDULE"]);
    for run in runs {
        rows.add_row([
            plain(&run.slot),
            run.attempt.to_string(),
            run.outcome.as_deref().map_or_else(|| "not recorded".to_owned(), plain),
            at(run.started),
            run.ended.map_or_else(|| "-".to_owned(), at),
            plain(&run.by),
            plain(&run.schedule),
        ]);
    }
    finish(rows, &["SCHEDULE", "BY", "OUTCOME"])
}

fn at(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
