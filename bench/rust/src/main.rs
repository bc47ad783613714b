//! Contestants in Rust: rslock and distributed-lock. `driver ORDER`, as `bench/README.md` has it.

mod distributed_lock;
mod rslock;

use tenure_load::contestant;
use tenure_load::order::{Listing, Order};

fn main() {
    panic_once();
    let locks = ["redis", "redlock"].map(|store| [rslock::listing(store), distributed_lock::listing(store)]);
    contestant::main(std::env::args().nth(1), locks.as_flattened(), async |order| obey(order).await)
}

async fn obey(order: &Order) -> Result<(), tenure_load::BoxError> {
    let Some(target) = order.target() else { return Ok(()) };
    if target.peer == rslock::PEER {
        contestant::obey(&rslock::Rslock::connect(target), order).await
    } else {
        contestant::obey(&distributed_lock::DistributedLock::connect(target).await?, order).await
    }
}

fn listing(peer: &str, store: &str, version: &str, settings: &str, renews: bool) -> Listing {
    Listing {
        peer: peer.to_owned(),
        store: store.to_owned(),
        library: peer.to_owned(),
        version: version.to_owned(),
        settings: settings.to_owned(),
        renews,
    }
}

/// Tells of the first panic of a library's own tasks, not of thousands: that would be measured too.
fn panic_once() {
    let told = std::sync::Once::new();
    std::panic::set_hook(Box::new(move |panic| told.call_once(|| eprintln!("a task of the library: {panic}"))));
}
