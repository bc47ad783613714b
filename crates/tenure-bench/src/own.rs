//! tenure as a contestant, and the classic pair by the same Redis client.

use tenure_load::order::{Listing, Order};
use tenure_load::{BoxError, TenureLocker, contestant};

use crate::contestant::Contestant;
use crate::limit::Classic;

/// The contestants that this program has.
pub fn listings() -> Vec<Listing> {
    let stores = [
        ("redis", "ttl_ms, else the defaults; tokio with one thread"),
        ("redlock", "ttl_ms, else the defaults; tokio with one thread"),
        ("embedded", "sqlite, ttl_ms, else the defaults; tokio with one thread"),
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
    let classic = Contestant::classic();
    let classic = Listing {
        peer: classic.peer,
        store: classic.store,
        library: classic.library,
        version: classic.version,
        settings: classic.settings,
        renews: false,
    };
    tenure.into_iter().chain([classic]).collect()
}

/// Does what an order says, and ends the process.
pub fn obey(order: String) -> ! {
    contestant::main(Some(order), &listings(), work)
}

async fn work(order: &Order) -> Result<(), BoxError> {
    let target = order.target().ok_or("an order without a target")?;
    if target.peer == "tenure" {
        contestant::obey(&TenureLocker::connect(target).await?, order).await
    } else {
        contestant::obey(&Classic::connect(target).await?, order).await
    }
}
