//! tenure as a contestant, and what it is held against: bare statements by the clients that it uses.

use std::time::Duration;

use metrics_exporter_prometheus::PrometheusBuilder;
use tenure_load::order::{Listing, Order};
use tenure_load::{BoxError, TenureLocker, contestant};

use crate::contestant::{Contestant, RECORDED};
use crate::limit::Classic;
use crate::over_http::{self, ByEtcd, ByService, V3LOCK};
use crate::updates::{self, Updates};

/// The contestants that this program has.
pub fn listings() -> Vec<Listing> {
    let stores = [
        ("redis", "ttl_ms, else the defaults; tokio with one thread"),
        ("redlock", "ttl_ms, else the defaults; tokio with one thread"),
        ("embedded", "sqlite, ttl_ms, else the defaults; tokio with one thread"),
        ("etcd", "ttl_ms, else the defaults; tokio with one thread"),
        ("postgres", "ttl_ms, else the defaults; tokio with one thread"),
        (over_http::SERVICE, "`tenure serve` over Redis, by plain HTTP/1.1; a connection for each task"),
        ("zookeeper", "ttl_ms, else the defaults; tokio with one thread"),
        ("memory", "ttl_ms, else the defaults; tokio with one thread"),
    ];
    let tenure = stores.map(|(store, settings)| Listing {
        peer: "tenure".into(),
        store: store.into(),
        library: "tenure".into(),
        version: env!("CARGO_PKG_VERSION").into(),
        settings: settings.into(),
        renews: true,
    });
    let limit = |limit: Contestant| Listing {
        peer: limit.peer,
        store: limit.store,
        library: limit.library,
        version: limit.version,
        settings: limit.settings,
        renews: false,
    };
    tenure
        .into_iter()
        .chain([
            limit(Contestant::classic()),
            limit(Contestant::recorded()),
            limit(updates::contestant()),
            limit(over_http::v3lock()),
        ])
        .collect()
}

/// Does what an order says, and ends the process.
pub fn obey(order: String) -> ! {
    contestant::main(Some(order), &listings(), work)
}

async fn work(order: &Order) -> Result<(), BoxError> {
    let target = order.target().ok_or("an order without a target")?;
    if target.peer == RECORDED {
        record()?;
    }
    if target.store == over_http::SERVICE {
        return contestant::obey(&ByService::of(target)?, order).await;
    }
    match (target.peer.as_str(), order) {
        (V3LOCK, _) => contestant::obey(&ByEtcd::of(target)?, order).await,
        ("tenure", Order::Outage(outage)) => contestant::endure(&TenureLocker::connect(target).await?, outage).await,
        ("tenure" | RECORDED, _) => contestant::obey(&TenureLocker::connect(target).await?, order).await,
        (updates::NAME, _) => contestant::obey(&Updates::connect(target, order).await?, order).await,
        _ => contestant::obey(&Classic::connect(target).await?, order).await,
    }
}

/// Records all metrics of this process, as a program does that Prometheus scrapes.
fn record() -> Result<(), BoxError> {
    const BUCKETS: [f64; 10] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0];
    const UPKEEP: Duration = Duration::from_millis(250);
    let handle = PrometheusBuilder::new().set_buckets(&BUCKETS)?.install_recorder()?;
    // What was recorded is put into its buckets now and then; a scrape does the same.
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            handle.run_upkeep();
        }
    });
    Ok(())
}
