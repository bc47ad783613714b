//! Several processes that want one name: how long each waits, and whether all get their turn.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples};
use tenure_testkit::servers::Fleet;

use super::runtime;

const SECONDS: u64 = 5;

/// One contender: connects, says so, begins when told, and prints the microseconds of each wait.
pub(crate) fn process(arguments: &[String]) {
    let [url, name] = arguments else { panic!("--contend URL NAME") };
    runtime().block_on(async {
        let tenure = Tenure::connect(url).await.unwrap();
        println!("ready");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
        let end = Instant::now() + Duration::from_secs(SECONDS);
        let mut waits = Vec::new();
        while Instant::now() < end {
            let start = Instant::now();
            let guard = tenure.lock(name).acquire().await.unwrap();
            waits.push(start.elapsed().as_micros());
            guard.release().await.unwrap();
        }
        tenure.close().await.unwrap();
        println!("{}", json!(waits));
    });
}

fn start(url: &str, name: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--contend", url, name])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    (child, output)
}

/// How evenly turns are spread: 1 if all have the same, 1/n if one has all.
fn jain(turns: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (turns.iter().sum(), turns.iter().map(|turn| turn * turn).sum());
    sum * sum / (turns.len() as f64 * squares)
}

pub(crate) fn fairness(report: &mut Report) {
    let fleet = Fleet::start(5);
    for contenders in [2, 8, 32] {
        let url = fleet.url();
        let name = format!("hot/{contenders}");
        let mut running: Vec<_> = (0..contenders).map(|_| start(&url, &name)).collect();
        for (child, _) in &mut running {
            child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        }
        let (mut waits, mut turns) = (Samples::default(), Vec::new());
        for (child, output) in &mut running {
            let mut line = String::new();
            output.read_line(&mut line).unwrap();
            assert!(child.wait().unwrap().success());
            let own: Vec<f64> = serde_json::from_str(&line).unwrap();
            turns.push(own.len() as f64);
            own.iter().for_each(|wait| waits.push(wait / 1e3));
        }
        let rate = turns.iter().sum::<f64>() / SECONDS as f64;
        let (fair, mean) = (jain(&turns), waits.mean());
        let figure = format!("{rate:.0}/s Jain {fair:.3}");
        let raw = json!({ "contenders": contenders, "turns": turns, "rate": rate, "jain": fair, "wait_ms": {
            "mean": mean, "p50": waits.median(), "p99": waits.percentile(99.0), "max": waits.percentile(100.0) } });
        let met = fair >= 0.9 && waits.percentile(100.0) <= 20.0 * mean;
        report.row(
            &format!("{contenders} processes on one name, five nodes"),
            &figure,
            "Jain >= 0.9, max <= 20 mean",
            met,
            &raw,
        );
        println!(
            "    time to acquire: mean {mean:.1} p50 {:.1} p99 {:.1} max {:.1} ms",
            waits.median(),
            waits.percentile(99.0),
            waits.percentile(100.0)
        );
    }
}
