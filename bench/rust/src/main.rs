//! Contestants in Rust: rslock, distributed-lock and PostgreSQL's advisory locks. `driver ORDER`, as
//! `bench/README.md` has it.

mod distributed_lock;
mod postgres;
mod rslock;

use tenure_load::contestant;
use tenure_load::order::{Listing, Order};

fn main() {
    panic_once();
    let locks = ["redis", "redlock"].map(|store| [rslock::listing(store), distributed_lock::listing(store)]);
    let locks = [locks.as_flattened(), &postgres::listings()].concat();
    contestant::main(std::env::args().nth(1), &locks, async |order| obey(order).await)
}

async fn obey(order: &Order) -> Result<(), tenure_load::BoxError> {
    let Some(target) = order.target() else { return Ok(()) };
    match target.peer.as_str() {
        rslock::PEER => contestant::obey(&rslock::Rslock::connect(target).await?, order).await,
        postgres::PLAIN => contestant::obey(&postgres::Plain::connect(target).await?, order).await,
        postgres::SQLX => contestant::obey(&postgres::Sqlx::connect(order, target).await?, order).await,
        _ => contestant::obey(&distributed_lock::DistributedLock::connect(target).await?, order).await,
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
