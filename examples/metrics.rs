//! Locks that Prometheus sees: some are busy, some are waited for, some are lost.
//!
//! `cargo run -p tenure-examples --example metrics -- 127.0.0.1:9464 60` serves `/metrics` for a minute. Without
//! arguments it works for a moment and looks at its own.

use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use metrics_exporter_prometheus::PrometheusBuilder;
use tenure::fence::Gate;
use tenure::{ErrorKind, Tenure};
use tokio::time::sleep;

/// From a round trip to a long hold. Without bounds there are no histograms, and no alert on them.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let listen: Option<SocketAddr> = arguments.next().map(|address| address.parse()).transpose()?;
    let seconds: f64 = arguments.next().map_or(Ok(1.0), |seconds| seconds.parse())?;

    // Before a client connects: that is when it asks who listens.
    let builder = PrometheusBuilder::new().set_buckets(&BUCKETS)?;
    let handle = match listen {
        Some(address) => {
            let (recorder, serve) = builder.with_http_listener(address).build()?;
            tokio::spawn(serve);
            let handle = recorder.handle();
            metrics::set_global_recorder(recorder)?;
            handle
        }
        None => builder.install_recorder()?,
    };

    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("locks.db").display());
    let tenure = Tenure::builder(url).metric_groups(["orders", "jobs"]).connect().await?;
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        tasks.spawn(sell(tenure.clone(), until));
    }
    tasks.spawn(job(tenure.clone(), until));
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }

    let text = handle.render();
    let seen = |line: &str| {
        let value = text.lines().find_map(|sample| sample.strip_prefix(line)?.trim().parse::<f64>().ok());
        assert!(value.is_some_and(|value| value > 0.0), "{line}: {value:?}");
    };
    seen("tenure_acquire_total{store=\"sqlite\",group=\"orders\",result=\"granted\"}");
    seen("tenure_acquire_total{store=\"sqlite\",group=\"jobs\",result=\"timeout\"}");
    seen("tenure_lost_total{store=\"sqlite\",group=\"jobs\",reason=\"broken\"}");
    seen("tenure_fence_refused_total{resource=\"report\"}");
    println!("{} samples", text.lines().filter(|line| !line.starts_with('#')).count());
    Ok(())
}

/// Wants the same item as all others.
async fn sell(tenure: Tenure, until: Instant) -> Result<(), tenure::Error> {
    while Instant::now() < until {
        let guard = tenure.lock("orders/42").acquire().await?;
        sleep(Duration::from_millis(2)).await;
        guard.release().await?;
        // As another process would: it waits in the store.
        drop(tenure.lock("orders/7").strict_fifo().acquire().await?);
    }
    Ok(())
}

/// Holds for so long that it is renewed, warned of, and broken; the one after it waits in vain.
async fn job(tenure: Tenure, until: Instant) -> Result<(), tenure::Error> {
    let report = Gate::new(0).named("report");
    loop {
        let lock = tenure.lock("jobs/nightly").ttl(Duration::from_millis(300)).warn_after(Duration::from_millis(100));
        let stale = lock.acquire().await?;
        if let Err(error) = lock.acquire_within(Duration::from_millis(200)).await {
            assert_eq!(error.kind(), ErrorKind::Timeout);
        }
        tenure.break_holders("jobs/nightly", None, "to show it").await?;
        let lost = stale.lost().await;
        let fresh = lock.acquire().await?;
        let _ = report.write(&fresh, |report| *report += 1);
        assert!(report.write(&stale, |report| *report += 1).is_err(), "{lost}");
        fresh.release().await?;
        if Instant::now() >= until {
            return Ok(());
        }
    }
}
