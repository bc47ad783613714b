//! tenure as a contestant, and what it is held against: bare statements by the clients that it uses.

use tenure_load::order::{Listing, Order};
use tenure_load::{BoxError, TenureLocker, contestant};

use crate::contestant::Contestant;
use crate::limit::Classic;
use crate::updates::{self, Updates};

/// The contestants that this program has.
pub fn listings() -> Vec<Listing> {
    let stores = [
        ("redis", "ttl_ms, else the defaults; tokio with one thread"),
        ("redlock", "ttl_ms, else the defaults; tokio with one thread"),
        ("embedded", "sqlite, ttl_ms, else the defaults; tokio with one thread"),
        ("etcd", "ttl_ms, else the defaults; tokio with one thread"),
        ("postgres", "ttl_ms, else the defaults; tokio with one thread"),
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
    tenure.into_iter().chain([limit(Contestant::classic()), limit(updates::contestant())]).collect()
}

/// Does what an order says, and ends the process.
pub fn obey(order: String) -> ! {
    contestant::main(Some(order), &listings(), work)
}

async fn work(order: &Order) -> Result<(), BoxError> {
    let target = order.target().ok_or("an order without a target")?;
    match (target.peer.as_str(), order) {
        ("tenure", Order::Outage(outage)) => contestant::endure(&TenureLocker::connect(target).await?, outage).await,
        ("tenure", _) => contestant::obey(&TenureLocker::connect(target).await?, order).await,
        (updates::NAME, _) => contestant::obey(&Updates::connect(target, order).await?, order).await,
        _ => contestant::obey(&Classic::connect(target).await?, order).await,
    }
}
