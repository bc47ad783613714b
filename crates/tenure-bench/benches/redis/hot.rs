//! Eight processes, one name.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples, now_micros};
use tenure_testkit::servers::Redis;

use super::limit::scripts;

const PROCESSES: usize = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(3);

/// One of the processes: acquires and releases until the time is over, then tells each token and wait.
pub(crate) fn contend(arguments: &[String]) {
    let [url, starts] = arguments else { panic!("URL and start") };
    let starts: u64 = starts.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let turns = runtime.block_on(async {
        let tenure = Tenure::connect(url).await.unwrap();
        let lock = tenure.lock("hot");
        let mut turns = Vec::new();
        tokio::time::sleep(Duration::from_micros(starts.saturating_sub(now_micros()))).await;
        let start = Instant::now();
        while start.elapsed() < ROUND {
            let asked = Instant::now();
            let guard = lock.acquire().await.unwrap();
            turns.push((guard.token().unwrap().0, asked.elapsed().as_micros()));
            guard.release().await.unwrap();
        }
        tenure.close().await.unwrap();
        turns
    });
    let lines: String = turns.iter().map(|(token, wait)| format!("{token} {wait}\n")).collect();
    print!("{lines}");
}

pub(crate) fn processes(server: &Redis, report: &mut Report) {
    let program = std::env::current_exe().unwrap();
    let (mut rates, mut transfers, mut fairness) = (Samples::default(), Samples::default(), Samples::default());
    let (mut p50, mut p99, mut p100, mut commands) =
        (Samples::default(), Samples::default(), Samples::default(), Samples::default());
    for round in 0..=ROUNDS {
        let before = scripts(server).0;
        let starts = (now_micros() + 300_000).to_string();
        let children: Vec<_> = (0..PROCESSES)
            .map(|_| {
                let mut command = Command::new(&program);
                command.args(["--contend", server.url(), &starts]).stdout(Stdio::piped());
                command.spawn().unwrap()
            })
            .collect();
        let mut turns: Vec<(u64, usize)> = Vec::new();
        let mut waits = Samples::default();
        let mut shares = [0.0_f64; PROCESSES];
        for (process, child) in children.into_iter().enumerate() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "a contender failed");
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let (token, wait) = line.split_once(' ').unwrap();
                turns.push((token.parse().unwrap(), process));
                waits.push(wait.parse().unwrap());
                shares[process] += 1.0;
            }
        }
        let sent = scripts(server).0 - before;
        turns.sort_unstable();
        assert!(turns.windows(2).all(|pair| pair[0].0 < pair[1].0), "no token twice");
        let changes = turns.windows(2).filter(|pair| pair[0].1 != pair[1].1).count();
        if round > 0 {
            rates.push(turns.len() as f64 / ROUND.as_secs_f64());
            transfers.push(changes as f64 / ROUND.as_secs_f64());
            p50.push(waits.median());
            p99.push(waits.percentile(99.0));
            p100.push(waits.percentile(100.0));
            commands.push(sent / turns.len() as f64);
            let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
            fairness.push(sum * sum / (PROCESSES as f64 * squares));
        }
    }
    let raw = json!({ "unit": "1/s, us", "acquisitions": rates.raw(), "transfers": transfers.raw(), "wait_p50": p50.raw(),
        "wait_p99": p99.raw(), "wait_max": p100.raw(), "commands_per_acquisition": commands.raw(), "jain": fairness.raw() });
    let figure = format!("{:.0}/s, {:.0} transfers/s", rates.median(), transfers.median());
    report.row("8 processes on one name: acquisitions", &figure, "- (peers later)", true, &raw);
    let figure = format!("p50 {:.0} p99 {:.0} max {:.0} µs", p50.median(), p99.median(), p100.median());
    report.row("8 processes on one name: wait", &figure, "-", true, &raw);
    report.row("8 processes on one name: Jain's index", &format!("{:.3}", fairness.median()), "-", true, &raw);
    let sent = commands.median();
    report.row("8 processes on one name: commands per acquisition", &format!("{sent:.2}"), "<= 3", sent <= 3.0, &raw);
}
