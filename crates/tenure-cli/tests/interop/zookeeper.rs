//! kazoo's `Lock` and Curator's `InterProcessMutex`, in one queue with tenure.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_testkit::servers::{Zookeeper, shared};

use crate::cases::{LONG, NOW, SHORT};
use crate::clients::Client;
use crate::command::{Done, Running, eventually, tenure};
use crate::counter::{Counter, with_driver, with_tenure_acquire, with_tenure_run};
use crate::driver::Driver;
use crate::scene::HoldingRun;

/// One test's stage: a chroot of its own, and a client that takes part.
struct Stage {
    servers: &'static Zookeeper,
    chroot: String,
    client: Client,
}

impl Stage {
    fn url(&self) -> String {
        self.servers.url_below(&self.chroot)
    }

    fn driver(&self) -> Driver {
        Driver::start(self.client, &[&format!("{}{}", self.servers.servers(), self.chroot)])
    }

    fn start(&self, args: &str) -> Running {
        let args: Vec<&str> = args.split_whitespace().collect();
        Running::of(&mut tenure(&self.url(), &args))
    }

    fn tenure(&self, args: &str) -> Done {
        self.start(args).wait()
    }

    /// How many wait for the lock, as tenure sees it.
    fn waiting(&self) -> usize {
        self.tenure("show x --json").exits(0).json()["waiters"].as_array().unwrap().len()
    }

    fn until_waiting(&self, count: usize) {
        eventually("they wait", || self.waiting() == count);
    }
}

/// Plays a case with this client.
fn play(client: Client, case: fn(&Stage)) {
    static STAGES: AtomicUsize = AtomicUsize::new(0);
    let chroot = format!("/interop{}", STAGES.fetch_add(1, Ordering::Relaxed));
    let stage = Stage { servers: shared::zookeeper(), chroot, client };
    // The chroot has to be there before others are told of it.
    stage.tenure("ls").exits(0);
    case(&stage);
}

fn a_client_that_holds_keeps_tenure_out(stage: &Stage) {
    let mut driver = stage.driver();
    assert!(driver.acquire("x", LONG, NOW));
    stage.tenure("acquire x --no-wait --owner a").exits(75);
    stage.tenure("acquire x --wait 1s --owner a").exits(75);
    stage.tenure("run x --shared --no-wait -- true").exits(75);
    let view = stage.tenure("show x --json").exits(0).json();
    assert_eq!(view["holders"].as_array().unwrap().len(), 1, "{view}");
    assert!(view["holders"][0]["owner"].is_null(), "{view}");
    stage.tenure("release x --owner a").exits(1);
    driver.must("held");
    driver.must("release");
    stage.tenure("acquire x --no-wait --owner a").exits(0);
}

fn what_tenure_holds_keeps_the_client_out(stage: &Stage) {
    let mut driver = stage.driver();
    stage.tenure("acquire x --ttl 60s --no-wait --owner a").exits(0);
    assert!(!driver.acquire("x", LONG, NOW));
    assert!(!driver.acquire("x", LONG, SHORT));
    stage.tenure("renew x --owner a").exits(0);
    assert!(!driver.acquire("x", LONG, SHORT));
    driver.send_acquire("x", LONG, LONG);
    stage.until_waiting(1);
    stage.tenure("release x --owner a").exits(0);
    assert!(driver.acquired(LONG));
    driver.must("held");
}

fn what_tenure_shares_keeps_the_client_out(stage: &Stage) {
    let mut driver = stage.driver();
    for shape in [&["--shared"][..], &["--permits", "3"]] {
        let run = HoldingRun::start(&stage.url(), shape);
        assert!(!driver.acquire("x", LONG, NOW));
        driver.send_acquire("x", LONG, LONG);
        run.finish();
        assert!(driver.acquired(LONG));
        driver.must("release");
    }
}

fn what_tenure_lets_expire_the_client_acquires(stage: &Stage) {
    let mut driver = stage.driver();
    stage.tenure("acquire x --ttl 1s --no-wait --owner a").exits(0);
    assert!(driver.acquire("x", LONG, LONG));
    stage.tenure("release x --owner a").exits(1);
    driver.must("held");
}

fn all_take_turns_in_the_order_they_came(stage: &Stage) {
    let (mut holds, mut last) = (stage.driver(), stage.driver());
    assert!(holds.acquire("x", LONG, NOW));
    let run = stage.start("run x --wait 50s -- echo got-it");
    stage.until_waiting(1);
    last.send_acquire("x", LONG, LONG);
    stage.until_waiting(2);
    let behind = stage.start("run x --wait 50s -- echo got-it-too");
    stage.until_waiting(3);
    holds.must("release");
    assert_eq!(run.wait().exits(0).stdout, "got-it");
    assert!(last.acquired(LONG));
    stage.until_waiting(1);
    last.must("release");
    assert_eq!(behind.wait().exits(0).stdout, "got-it-too");
}

fn a_client_that_is_killed_is_waited_for_as_long_as_its_session(stage: &Stage) {
    let mut driver = stage.driver();
    assert!(driver.acquire("x", LONG, NOW));
    let run = stage.start("run x --wait 50s -- echo got-it");
    stage.until_waiting(1);
    drop(driver);
    assert_eq!(run.wait().exits(0).stdout, "got-it");
}

fn no_update_is_lost(stage: &Stage) {
    const ROUNDS: u32 = 20;
    let counter = Counter::new();
    let (mut one, mut other) = (stage.driver(), stage.driver());
    std::thread::scope(|threads| {
        threads.spawn(|| with_driver(&counter, &mut one, ROUNDS));
        threads.spawn(|| with_driver(&counter, &mut other, ROUNDS));
        threads.spawn(|| with_tenure_run(&counter, &stage.url(), ROUNDS));
        threads.spawn(|| with_tenure_acquire(&counter, &stage.url(), ROUNDS));
    });
    assert_eq!(counter.read(), 4 * ROUNDS);
}

/// One named test for each case and client.
macro_rules! every_case {
    ($module:ident, $client:expr; $($case:ident)*) => {
        mod $module {
            use crate::clients::Client;

            $(
                #[test]
                #[ignore = "interop: scripts/interop installs the client and runs it"]
                fn $case() {
                    super::play($client, super::$case);
                }
            )*
        }
    };
}

every_case!(kazoo, Client::Kazoo;
    a_client_that_holds_keeps_tenure_out
    what_tenure_holds_keeps_the_client_out
    what_tenure_shares_keeps_the_client_out
    what_tenure_lets_expire_the_client_acquires
    all_take_turns_in_the_order_they_came
    a_client_that_is_killed_is_waited_for_as_long_as_its_session
    no_update_is_lost
);

every_case!(curator, Client::Curator;
    a_client_that_holds_keeps_tenure_out
    what_tenure_holds_keeps_the_client_out
    what_tenure_shares_keeps_the_client_out
    what_tenure_lets_expire_the_client_acquires
    all_take_turns_in_the_order_they_came
    a_client_that_is_killed_is_waited_for_as_long_as_its_session
    no_update_is_lost
);

/// To Curator the owner is a thread, which may take its lock again.
#[test]
#[ignore = "interop: scripts/interop installs the client and runs it"]
fn one_curator_release_of_two_keeps_tenure_out() {
    play(Client::Curator, |stage: &Stage| {
        let mut driver = stage.driver();
        assert!(driver.acquire("x", Duration::ZERO, NOW));
        driver.must("lock_again");
        driver.must("unlock_once");
        stage.tenure("acquire x --no-wait --owner a").exits(75);
        driver.must("unlock_once");
        stage.tenure("acquire x --no-wait --owner a").exits(0);
    });
}
