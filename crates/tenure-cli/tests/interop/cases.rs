//! What holds between tenure and any client that it shares a layout with.

use std::time::Duration;

use crate::clients::Client;
use crate::command::eventually;
use crate::counter::{Counter, with_driver, with_tenure_acquire, with_tenure_run};
use crate::scene::Scene;

pub(crate) const LONG: Duration = Duration::from_secs(30);
pub(crate) const NOW: Duration = Duration::ZERO;
/// Long enough for a client to try again a few times.
pub(crate) const SHORT: Duration = Duration::from_millis(500);

/// One named test per case with this client.
macro_rules! every_case {
    ($client:expr) => {
        crate::cases::every_case!($client, crate::scene::Scene::new);
    };
    ($client:expr, $scene:expr) => {
        crate::cases::every_case!(
            $client, $scene;
            a_client_that_holds_keeps_tenure_out
            what_tenure_holds_keeps_the_client_out
            what_tenure_releases_the_client_acquires
            what_tenure_lets_expire_the_client_acquires
            what_the_client_releases_a_waiting_run_gets
            a_release_by_another_owner_leaves_the_clients_lock
            a_late_release_of_the_client_leaves_tenures_lock
            no_update_is_lost
        );
    };
    ($client:expr, $scene:expr; $($case:ident)*) => {
        $(
            #[test]
            #[ignore = "interop: scripts/interop installs the client and runs it"]
            fn $case() {
                crate::scene::play($client, $scene, crate::cases::$case);
            }
        )*
    };
}
pub(crate) use every_case;

pub(crate) fn a_client_that_holds_keeps_tenure_out(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", LONG, NOW));
    scene.settle("x");
    let content = scene.content("x");
    scene.tenure("acquire x --ttl 30s --no-wait --owner a").exits(75);
    scene.tenure("acquire x --ttl 30s --wait 1s --owner a").exits(75);
    scene.tenure("run x --no-wait -- true").exits(75);
    let left = scene.foreign_holder(scene.layout(), "x")["expires_in_ms"].as_u64().unwrap();
    assert!(left <= 30_000, "{left}");
    assert_eq!(scene.content("x"), content);
    driver.must("held");
}

pub(crate) fn what_tenure_holds_keeps_the_client_out(scene: &Scene) {
    let mut driver = scene.driver();
    scene.tenure("acquire x --ttl 30s --no-wait --owner a").exits(0);
    assert!(!driver.acquire("x", LONG, NOW));
    assert!(!driver.acquire("x", LONG, SHORT));
    scene.tenure("renew x --ttl 40s --owner a").exits(0);
    assert!(!driver.acquire("x", LONG, NOW));
    scene.tenure("acquire x --no-wait --owner b").exits(75);
}

pub(crate) fn what_tenure_releases_the_client_acquires(scene: &Scene) {
    let mut driver = scene.driver();
    scene.tenure("acquire x --ttl 60s --no-wait --owner a").exits(0);
    assert!(!driver.acquire("x", LONG, NOW));
    scene.start_acquire(&mut driver, "x", LONG, LONG);
    scene.tenure("release x --owner a").exits(0);
    assert!(driver.acquired(LONG));
    driver.must("held");
}

pub(crate) fn what_tenure_lets_expire_the_client_acquires(scene: &Scene) {
    let mut driver = scene.driver();
    scene.tenure("acquire x --ttl 6s --no-wait --owner a").exits(0);
    assert!(driver.acquire("x", LONG, LONG));
    scene.tenure("release x --owner a").exits(1);
    driver.must("held");
}

pub(crate) fn what_the_client_releases_a_waiting_run_gets(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", LONG, NOW));
    let run = scene.start(&["run", "x", "--wait", "20s", "--ttl", "10m", "--", "echo", "got it"]).going();
    driver.must("release");
    assert_eq!(run.wait().exits(0).stdout, "got it");
    eventually("nothing is left of the run", || scene.is_free("x"));
}

pub(crate) fn a_release_by_another_owner_leaves_the_clients_lock(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", LONG, NOW));
    scene.settle("x");
    let content = scene.content("x");
    scene.tenure("release x --owner a").exits(1);
    scene.tenure("renew x --owner a --ttl 60s").exits(76);
    assert_eq!(scene.content("x"), content);
    assert!(scene.left("x") <= LONG, "the lease was lengthened");
    driver.must("held");
    driver.must("release");
}

pub(crate) fn a_late_release_of_the_client_leaves_tenures_lock(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", Duration::from_secs(2), NOW));
    eventually("its lease ends", || scene.is_free("x"));
    scene.tenure("acquire x --ttl 30s --no-wait --owner a").exits(0);
    assert!(driver.ask("release").is_err());
    scene.tenure("renew x --owner a").exits(0);
}

pub(crate) fn no_update_is_lost(scene: &Scene) {
    const ROUNDS: u32 = 50;
    let counter = Counter::new();
    let (mut one, mut other) = (scene.driver(), scene.driver());
    std::thread::scope(|threads| {
        threads.spawn(|| with_driver(&counter, &mut one, ROUNDS));
        threads.spawn(|| with_driver(&counter, &mut other, ROUNDS));
        threads.spawn(|| with_tenure_run(&counter, &scene.url(), ROUNDS));
        threads.spawn(|| with_tenure_acquire(&counter, &scene.url(), ROUNDS));
    });
    assert_eq!(counter.read(), 4 * ROUNDS);
}

/// A lock of one layout's client is not one's own in the other layout, and is left alone there.
pub(crate) fn is_foreign_in(client: Client, layout: &'static str) {
    let scene = Scene::new(client);
    let mut driver = scene.driver();
    assert!(driver.acquire("x", LONG, NOW));
    let content = scene.content("x");
    scene.tenure_in(layout, "acquire x --no-wait --owner a").exits(75);
    scene.tenure_in(layout, "acquire x --wait 2s --owner a").exits(75);
    scene.foreign_holder(layout, "x");
    scene.tenure_in(layout, "renew x --owner a").exits(76);
    scene.tenure_in(layout, "release x --owner a").exits(1);
    assert_eq!(scene.content("x"), content);
    driver.must("held");
    driver.must("release");
    scene.tenure_in(layout, "acquire x --no-wait --owner a").exits(0);
}
