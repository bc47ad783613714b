//! tenure as a contestant: `tenure-bench contestant ORDER`, as `bench/README.md` has it.

use tenure_load::order::Listing;
use tenure_load::{TenureLocker, contestant};

fn main() {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() != Some("contestant") {
        eprintln!("usage: tenure-bench contestant ORDER (bench/README.md)");
        std::process::exit(64);
    }
    let locks = ["redis", "redlock"].map(|store| Listing {
        peer: "tenure".to_owned(),
        store: store.to_owned(),
        library: "tenure".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: "the defaults".to_owned(),
        renews: true,
    });
    contestant::main(arguments.next(), &locks, async |order| match order.target() {
        Some(target) => contestant::obey(&TenureLocker::connect(target).await?, order).await,
        None => Ok(()),
    });
}
