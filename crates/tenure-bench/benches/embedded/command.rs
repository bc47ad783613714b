//! How much later than under `flock` a command starts under `tenure run`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::json;
use tenure_bench::{Report, Samples, now_micros};

const ROUNDS: usize = 200;

pub(crate) fn start(report: &mut Report) {
    let Some(tenure) = command() else {
        return println!("command start: not measured, target/release/tenure is missing: cargo build --release");
    };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("locks.db");
    let stamp = std::env::current_exe().unwrap();
    let under_tenure = || {
        let mut run = Command::new(&tenure);
        run.args(["run", "nightly", "--on"]).arg(format!("sqlite:{}", file.display())).arg("--").arg(&stamp);
        run
    };
    let under_flock = || {
        let mut run = Command::new("flock");
        run.arg(directory.path().join("flock")).arg(&stamp);
        run
    };
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    for round in 0..=ROUNDS {
        let (ours_now, theirs_now) = (delay(under_tenure()), delay(under_flock()));
        if round > 0 {
            ours.push(ours_now);
            theirs.push(theirs_now);
        }
    }
    let later = ours.median() - theirs.median();
    let later_p99 = ours.percentile(99.0) - theirs.percentile(99.0);
    let raw = json!({ "unit": "ms", "tenure": ours.raw(), "flock": theirs.raw() });
    let figure = format!("p50 +{later:.2} p99 +{later_p99:.2} ms");
    report.row("`tenure run` starts its command later than flock", &figure, "p50 <= 10 ms", later <= 10.0, &raw);
}

/// From before the start of the wrapper to the first line of the command, in milliseconds.
fn delay(mut run: Command) -> f64 {
    let before = now_micros();
    let output = run.arg("--stamp").stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{run:?}");
    let started: u64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    started.saturating_sub(before) as f64 / 1e3
}

/// The command as `cargo build --release` leaves it.
fn command() -> Option<PathBuf> {
    let target = std::env::current_exe().ok()?.ancestors().nth(3)?.to_owned();
    let command = target.join("release/tenure");
    command.exists().then_some(command)
}
