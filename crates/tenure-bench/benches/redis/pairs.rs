//! Acquire and release of names that nobody else wants.

use std::time::Instant;

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples, cpu_time};
use tenure_testkit::servers::Redis;

use super::limit::{COMPARE_AND_DELETE, ClassicLimit, scripts, server_cpu};

const ROUNDS: usize = 7;
const PAIRS: usize = 100_000;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Pairs per second of `tasks` tasks, each on names of its own.
async fn pairs(tenure: &Tenure, tasks: usize, pairs: usize) -> f64 {
    let start = Instant::now();
    let running: Vec<_> = (0..tasks)
        .map(|task| {
            let tenure = tenure.clone();
            tokio::spawn(async move {
                for turn in 0..pairs / tasks {
                    let lock = tenure.lock(format!("orders/{task}/{}", turn % 100));
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for task in running {
        task.await.unwrap();
    }
    (pairs / tasks * tasks) as f64 / start.elapsed().as_secs_f64()
}

/// Many tasks in one process, distinct names.
pub(crate) fn throughput(server: &Redis, report: &mut Report) {
    for tasks in [16, 256, 1024] {
        let (mut rates, mut ratios, mut cpu) = (Samples::default(), Samples::default(), Samples::default());
        let (mut limits, mut commands) = (Vec::new(), Samples::default());
        for round in 0..=ROUNDS {
            let limit = ClassicLimit::measure(server);
            let before = scripts(server).0;
            let (rate, used) = runtime().block_on(async {
                let tenure = Tenure::connect(server.url()).await.unwrap();
                pairs(&tenure, tasks, PAIRS / 10).await;
                let used = cpu_time();
                let rate = pairs(&tenure, tasks, PAIRS).await;
                let used = (cpu_time() - used).as_secs_f64() * 1e6 / PAIRS as f64;
                tenure.close().await.unwrap();
                (rate, used)
            });
            let sent = scripts(server).0 - before;
            if round > 0 {
                rates.push(rate);
                ratios.push(rate / limit.pairs());
                cpu.push(used);
                commands.push(sent / (PAIRS + PAIRS / 10) as f64);
                limits.push(json!({ "set": limit.set, "delete": limit.delete, "pairs": limit.pairs() }));
            }
        }
        let ratio = ratios.median();
        let raw = json!({ "unit": "pairs/s", "rounds": rates.raw(), "ratios": ratios.raw(), "limits": limits,
            "client_cpu_us_per_pair": cpu.raw(), "commands_per_pair": commands.raw() });
        let figure = format!("{:.0} k/s = {ratio:.2} of limit", rates.median() / 1e3);
        let what = format!("pairs, {tasks} tasks, distinct names, Redis");
        report.row(&what, &figure, if tasks == 256 { ">= 0.9" } else { "-" }, tasks != 256 || ratio >= 0.9, &raw);
        println!("    client CPU {:.1} µs and {:.3} commands per pair", cpu.median(), commands.median());
    }
}

/// One task: the time of a pair, against the classic pair by the same Redis client.
pub(crate) fn latency(server: &Redis, report: &mut Report) {
    const TURNS: u32 = 5_000;
    let (mut ours, mut classic, mut ratios) = (Samples::default(), Samples::default(), Samples::default());
    let mut commands = Samples::default();
    let mut cpu = Vec::new();
    let spent = |(client, store): (std::time::Duration, f64), server: &Redis| {
        let each = 1e6 / f64::from(TURNS);
        ((cpu_time() - client).as_secs_f64() * each, (server_cpu(server) - store) * each)
    };
    runtime().block_on(async {
        let tenure = Tenure::connect(server.url()).await.unwrap();
        let client = redis::Client::open(server.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let script = redis::Script::new(COMPARE_AND_DELETE);
        for round in 0..=ROUNDS * 2 {
            let before = scripts(server).0;
            let used = (cpu_time(), server_cpu(server));
            let start = Instant::now();
            for turn in 0..TURNS {
                tenure.lock(format!("orders/{}", turn % 100)).acquire().await.unwrap().release().await.unwrap();
            }
            let own = start.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS);
            let own_cpu = spent(used, server);
            let sent = (scripts(server).0 - before) / f64::from(TURNS);
            let used = (cpu_time(), server_cpu(server));
            let start = Instant::now();
            for turn in 0..TURNS {
                let key = format!("classic/{}", turn % 100);
                let mut set = redis::cmd("SET");
                set.arg(&key).arg("0123456789abcdef").arg("NX").arg("PX").arg(10_000);
                let _: Option<String> = set.query_async(&mut connection).await.unwrap();
                let _: i64 = script.key(&key).arg("0123456789abcdef").invoke_async(&mut connection).await.unwrap();
            }
            let theirs = start.elapsed().as_secs_f64() * 1e6 / f64::from(TURNS);
            let classic_cpu = spent(used, server);
            if round > 0 {
                cpu.push(json!({ "own_client_server_us": own_cpu, "classic_client_server_us": classic_cpu }));
                ours.push(own);
                classic.push(theirs);
                ratios.push(own / theirs);
                commands.push(sent);
            }
        }
        tenure.close().await.unwrap();
    });
    let ratio = ratios.median();
    let raw = json!({ "unit": "us", "rounds": ours.raw(), "classic": classic.raw(), "ratios": ratios.raw(),
        "commands_per_pair": commands.raw(), "cpu": cpu });
    println!("    CPU in µs (client, server): {}", cpu[cpu.len() / 2]);
    let figure = format!("{:.0} µs = {ratio:.2} of classic", ours.median());
    report.row("pair of one task, Redis", &figure, "<= 1.3", ratio <= 1.3, &raw);
    report.row(
        "commands per uncontended pair",
        &format!("{:.3}", commands.median()),
        "2",
        commands.median() < 2.01,
        &raw,
    );
}
