//! The foreign clients without tenure: that the drivers lock at all, and that what we say of the plain layout is so.

use std::thread;

use tenure_testkit::servers::Redis;

use crate::cases::{LONG, NOW, SHORT};
use crate::clients::Client;
use crate::counter::{Counter, with_driver};
use crate::driver::Driver;

/// Two of each client that takes part.
fn pairs(redis: &Redis) -> Vec<Driver> {
    let clients = Client::plain_listed();
    clients.iter().chain(&clients).map(|&client| Driver::start(client, &[redis.url()])).collect()
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn plain_clients_exclude_each_other() {
    let redis = Redis::start();
    let mut drivers = pairs(&redis);
    for holder in 0..drivers.len() {
        assert!(drivers[holder].acquire("x", LONG, NOW));
        for other in (0..drivers.len()).filter(|&other| other != holder) {
            assert!(!drivers[other].acquire("x", LONG, NOW));
        }
        let next = (holder + 1) % drivers.len();
        assert!(!drivers[next].acquire("x", LONG, SHORT));
        drivers[holder].extend(LONG).unwrap();
        drivers[holder].must("held");
        drivers[next].send_acquire("x", LONG, LONG);
        drivers[holder].must("release");
        assert!(drivers[next].acquired(LONG));
        drivers[next].must("release");
    }
}

#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn plain_clients_lose_no_update() {
    const ROUNDS: u32 = 25;
    let redis = Redis::start();
    let (mut drivers, counter) = (pairs(&redis), Counter::new());
    let contenders = u32::try_from(drivers.len()).unwrap();
    thread::scope(|threads| {
        for driver in &mut drivers {
            threads.spawn(|| with_driver(&counter, driver, ROUNDS));
        }
    });
    assert_eq!(counter.read(), contenders * ROUNDS);
}
