//! How much later than under `flock` a command starts under `tenure run`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use tenure_load::{Samples, epoch_micros};

use crate::child::Child;

/// The command that is started: says when it runs.
pub fn stamp() {
    println!("{}", epoch_micros());
}

/// Both in turn, so that both meet the same machine.
pub(super) fn start(folder: &Path, times: usize) -> [(&'static str, Result<Value, String>); 2] {
    let (mut ours, mut theirs) = (Ok(Samples::default()), Ok(Samples::default()));
    for turn in 0..=times {
        for (samples, run) in [(&mut ours, under_tenure(folder)), (&mut theirs, under_flock(folder))] {
            let took = run.and_then(delay);
            // The first time warms up.
            match (samples.as_mut(), took) {
                (Ok(samples), Ok(took)) if turn > 0 => samples.push(took),
                (Ok(_), Err(why)) => *samples = Err(why),
                _ => {}
            }
        }
    }
    let told = |samples: Result<Samples, String>| {
        let samples = samples?;
        let [p50, p99, max] = samples.percentiles([50.0, 99.0, 100.0]);
        Ok(json!({ "p50_ms": p50, "p99_ms": p99, "max_ms": max, "starts": times }))
    };
    [("tenure", told(ours)), ("flock", told(theirs))]
}

fn under_tenure(folder: &Path) -> Result<Command, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    // As `cargo build --release` leaves both.
    let tenure = own.with_file_name("tenure");
    if !tenure.exists() {
        return Err("the tenure command is not built: cargo build --release".into());
    }
    let mut run = Command::new(tenure);
    let store = format!("sqlite:{}", folder.join("command.db").display());
    run.args(["run", "nightly", "--on", &store, "--"]).arg(own).arg("stamp");
    Ok(run)
}

fn under_flock(folder: &Path) -> Result<Command, String> {
    let mut run = Command::new("flock");
    run.arg(folder.join("flock")).arg(std::env::current_exe().map_err(|error| error.to_string())?).arg("stamp");
    Ok(run)
}

/// From before the start of the wrapper to the first line of the command, in milliseconds.
fn delay(run: Command) -> Result<f64, String> {
    let before = epoch_micros();
    let started = Child::start(run, Duration::from_secs(30))?.result()?;
    let started = started.as_u64().ok_or("the command did not tell the time")?;
    Ok(started.saturating_sub(before) as f64 / 1e3)
}
