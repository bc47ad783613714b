//! The clients that take a lock on most of several servers, and `redlock://…?layout=plain` on the same five.

use std::time::{Duration, Instant};

use tenure::Tenure;

use crate::cases::{LONG, NOW, SHORT, every_case};
use crate::clients::Client;
use crate::command::eventually;
use crate::scene::{Scene, contents, play};

/// Long enough that nothing ends by itself while a test waits for it to be ended.
const FOR_EVER: Duration = Duration::from_secs(600);

macro_rules! client {
    ($module:ident, $client:expr) => {
        mod $module {
            use super::*;

            every_case!($client, Scene::on_five);

            mod with_two_stopped {
                use super::*;

                every_case!($client, Scene::on_three_of_five);
                client!($client, Scene::on_three_of_five;
                    what_a_run_holds_keeps_the_client_out
                    what_a_guard_holds_keeps_the_client_out
                    what_a_killed_client_held_a_waiting_run_gets_when_it_expires
                );
            }

            client!($client, Scene::on_five;
                what_a_run_holds_keeps_the_client_out
                what_a_guard_holds_keeps_the_client_out
                what_a_killed_client_held_a_waiting_run_gets_when_it_expires
                two_servers_that_stop_do_not_end_the_clients_lock
                two_servers_that_stop_do_not_end_tenures_lock
                a_lock_on_a_minority_is_not_held
                two_locks_on_minorities_keep_both_out
                an_attempt_that_fails_leaves_nothing
            );
        }
    };
    ($client:expr, $scene:expr; $($case:ident)*) => {
        $(
            #[test]
            #[ignore = "interop: scripts/interop installs the client and runs it"]
            fn $case() {
                play($client, $scene, crate::five::$case);
            }
        )*
    };
}

client!(node_redlock, Client::NodeRedlock);
client!(redsync, Client::Redsync);

fn what_a_run_holds_keeps_the_client_out(scene: &Scene) {
    let mut driver = scene.driver();
    let run = scene.holding_run("10m");
    assert!(!driver.acquire("x", LONG, NOW));
    assert!(!driver.acquire("x", LONG, SHORT));
    run.finish();
    assert!(driver.acquire("x", LONG, LONG));
    scene.tenure("run x --no-wait -- true").exits(75);
}

fn what_a_guard_holds_keeps_the_client_out(scene: &Scene) {
    let mut driver = scene.driver();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let tenure = Tenure::connect(&scene.url()).await.unwrap();
        let lock = tenure.lock("x").ttl(FOR_EVER);
        let guard = lock.acquire().await.unwrap();
        assert!(!driver.acquire("x", LONG, NOW));
        assert!(!driver.acquire("x", LONG, SHORT));
        guard.release().await.unwrap();
        assert!(driver.acquire("x", LONG, LONG));
        assert!(lock.try_acquire().await.unwrap().is_none());
        driver.must("release");
        assert!(lock.try_acquire().await.unwrap().is_some());
    });
}

fn what_a_killed_client_held_a_waiting_run_gets_when_it_expires(scene: &Scene) {
    const LEASE: Duration = Duration::from_secs(5);
    /// Servers count from when they last looked at the clock.
    const CLOCK_ERROR: Duration = Duration::from_millis(50);
    let mut driver = scene.driver();
    let begun = Instant::now();
    assert!(driver.acquire("x", LEASE, NOW));
    let run = scene.start(&["run", "x", "--wait", "50s", "--", "echo", "got it"]);
    drop(driver);
    assert_eq!(run.wait().exits(0).stdout, "got it");
    assert!(begun.elapsed() >= LEASE - CLOCK_ERROR, "it was taken after {:?}", begun.elapsed());
}

fn two_servers_that_stop_do_not_end_the_clients_lock(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", FOR_EVER, NOW));
    let run = scene.start(&["run", "x", "--wait", "50s", "--", "echo", "got it"]).going();
    scene.stop_two();
    scene.tenure("acquire x --no-wait --owner a").exits(75);
    scene.tenure("acquire x --wait 1s --owner a").exits(75);
    scene.foreign_holder("plain", "x");
    driver.extend(FOR_EVER).unwrap();
    let run = run.going();
    driver.must("release");
    assert_eq!(run.wait().exits(0).stdout, "got it");
}

fn two_servers_that_stop_do_not_end_tenures_lock(scene: &Scene) {
    let mut driver = scene.driver();
    let run = scene.holding_run("10m");
    assert!(!driver.acquire("x", LONG, NOW));
    scene.start_acquire(&mut driver, "x", LONG, LONG);
    scene.stop_two();
    scene.tenure("acquire x --no-wait --owner a").exits(75);
    let mut other = scene.driver();
    assert!(!other.acquire("x", LONG, NOW));
    assert!(!other.acquire("x", LONG, SHORT));
    run.finish();
    assert!(driver.acquired(LONG));
    driver.must("held");
}

fn a_lock_on_a_minority_is_not_held(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", FOR_EVER, NOW));
    scene.settle("x");
    let (theirs, others) = scene.servers().split_at(2);
    let kept = contents(theirs, "x");
    others.iter().for_each(|server| assert_eq!(server.cli(&["del", "x"]), "1"));
    nobody_holds(scene);
    scene.tenure("acquire x --no-wait --ttl 10m --owner a").exits(0);
    assert!(driver.extend(FOR_EVER).is_err());
    scene.tenure("acquire x --no-wait --owner b").exits(75);
    scene.tenure("renew x --owner a").exits(0);
    scene.tenure("release x --owner a").exits(0);
    // A server that greets late is not asked: it has the lock until somebody asks it.
    eventually("tenure's is gone", || {
        let again = scene.tenure("release x --owner a");
        assert!([Some(0), Some(1)].contains(&again.code), "{again:?}");
        others.iter().all(|server| server.cli(&["exists", "x"]) == "0")
    });
    assert_eq!(contents(theirs, "x"), kept);
}

fn two_locks_on_minorities_keep_both_out(scene: &Scene) {
    let mut driver = scene.driver();
    let last = &scene.servers()[4];
    for (server, whose) in scene.servers().iter().zip(["one's", "one's", "another's", "another's"]) {
        assert_eq!(server.cli(&["set", "x", whose, "px", "600000"]), "OK");
    }
    scene.tenure("acquire x --no-wait --ttl 10m --owner a").exits(75);
    scene.tenure("acquire x --wait 1s --ttl 10m --owner a").exits(75);
    eventually("what was tried is undone", || last.cli(&["exists", "x"]) == "0");
    assert!(!driver.acquire("x", LONG, NOW));
    scene.servers()[2..4].iter().for_each(|server| assert_eq!(server.cli(&["del", "x"]), "1"));
    scene.tenure("acquire x --wait 50s --owner a").exits(0);
}

fn an_attempt_that_fails_leaves_nothing(scene: &Scene) {
    let mut driver = scene.driver();
    assert!(driver.acquire("x", FOR_EVER, NOW));
    scene.settle("x");
    let (without, with) = scene.servers().split_at(2);
    let kept = contents(with, "x");
    without.iter().for_each(|server| assert_eq!(server.cli(&["del", "x"]), "1"));
    for args in [
        "acquire x --no-wait --ttl 10m --owner a",
        "acquire x --wait 1s --ttl 10m --owner a",
        "run x --no-wait --ttl 10m -- true",
        "run x --wait 1s --ttl 10m -- true",
    ] {
        scene.tenure(args).exits(75);
        eventually("what was tried is undone", || without.iter().all(|server| server.cli(&["dbsize"]) == "0"));
    }
    assert_eq!(contents(with, "x"), kept);
    with.iter().for_each(|server| assert_eq!(server.cli(&["dbsize"]), "1"));
    driver.must("held");
    driver.must("release");
}

/// A server that has not answered in time may have it as well, and then it is shown as held.
fn nobody_holds(scene: &Scene) {
    eventually("nobody is shown to hold it", || {
        let view = scene.tenure("show x --json").exits(0).json();
        view["holders"].as_array().unwrap().is_empty()
    });
}
