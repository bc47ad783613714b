//! What it costs to hold a hundred thousand leases.

use std::time::{Duration, Instant};

use serde_json::json;
use tenure::Tenure;
use tenure_bench::{Report, Samples, cpu_time};
use tenure_testkit::servers::Redis;

use super::limit::{scripts, server_cpu};

const LEASES: usize = 100_000;
const ROUNDS: usize = 5;
/// Three renewals of each lease.
const ROUND: Duration = Duration::from_secs(10);

pub(crate) fn held(server: &Redis, report: &mut Report) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut client, mut store, mut sent) = (Samples::default(), Samples::default(), Samples::default());
    let mut renewed = Samples::default();
    let (mut bytes, mut store_bytes) = (0, 0.0);
    runtime.block_on(async {
        let tenure = Tenure::connect(server.url()).await.unwrap();
        let (before, store_before) = (resident_bytes(), used_memory(server));
        let mut guards = Vec::with_capacity(LEASES);
        for chunk in 0..LEASES / 250 {
            let taking = (0..250).map(|number| {
                let lock = tenure.lock(format!("orders/{}", chunk * 250 + number));
                async move { lock.acquire().await.unwrap() }
            });
            guards.extend(futures_util::future::join_all(taking).await);
            // Spread like the claims of a program, not taken in one burst.
            tokio::time::sleep(Duration::from_millis(8)).await;
        }
        bytes = (resident_bytes() - before) / LEASES;
        store_bytes = (used_memory(server) - store_before) / LEASES as f64;
        for _ in 0..ROUNDS {
            let (cpu, wall, calls, store_cpu) = (cpu_time(), Instant::now(), scripts(server).0, server_cpu(server));
            let pexpire = pexpires(server);
            tokio::time::sleep(ROUND).await;
            let seconds = wall.elapsed().as_secs_f64();
            client.push((cpu_time() - cpu).as_secs_f64() / seconds * 100.0);
            store.push((server_cpu(server) - store_cpu) / seconds * 100.0);
            sent.push((scripts(server).0 - calls) / seconds);
            renewed.push((pexpires(server) - pexpire) / seconds);
        }
        assert!(guards.iter().all(tenure::Guard::is_held), "every lease is held");
        drop(guards);
        tenure.close().await.unwrap();
    });
    let median = client.median();
    let raw = json!({ "unit": "% of one core", "client": client.raw(), "server": store.raw(), "commands_per_s": sent.raw(),
        "renewals_per_s": renewed.raw(), "client_bytes_per_lease": bytes, "server_bytes_per_lease": store_bytes });
    let figure = format!("{median:.1} %, {bytes} B each");
    report.row("100,000 leases held, Redis: client", &figure, "<= 10 %, 1024 B", median <= 10.0 && bytes <= 1024, &raw);
    let figure = format!("{:.1} %, {store_bytes:.0} B each", store.median());
    report.row("100,000 leases held, Redis: server", &figure, "-", true, &raw);
    let figure = format!("{:.0}/s in {:.0} commands/s", renewed.median(), sent.median());
    report.row("renewals on the wire", &figure, "-", true, &raw);
}

fn pexpires(server: &Redis) -> f64 {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_pexpire:calls="));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0.0)
}

fn used_memory(server: &Redis) -> f64 {
    let info = server.cli(&["INFO", "memory"]);
    info.lines().find_map(|line| line.strip_prefix("used_memory:")?.trim().parse().ok()).unwrap_or(0.0)
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}
