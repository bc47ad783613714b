//! Two ways in which Redlock fails as it is usually written, and what becomes of them here.
//!
//! - **The long pause.** A holder is paused (a garbage collector, a sleeping laptop) for longer than its lease lasts,
//!   and writes when it wakes. Without a token nobody can tell.
//! - **The clock jump.** One of three servers was down when a lock was taken, and is back, empty. The clock of another
//!   one jumps ahead, so that its key is gone before its time. These two are a majority, and grant the lock again.
//!
//! Both locks live through the same on the same servers: `cargo run -p tenure-examples --example redlock`. That needs
//! `redis-server` and a C compiler. With servers of your own (`-- redlock://H1,H2,H3`) nothing is done to their clocks,
//! and only the pause is shown.

use std::error::Error;
use std::thread;
use std::time::Duration;

use tenure::blocking::Tenure;
use tenure::fence::Gate;
use tenure_testkit::servers::{Builder, Fleet};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// So long that a busy machine keeps it.
const TTL: Duration = Duration::from_secs(1);
const HOUR: i64 = 3_600;

fn main() -> Outcome<()> {
    if let Some(url) = std::env::args().nth(1) {
        let hosts = url.strip_prefix("redlock://").ok_or("expected redlock://H1,H2,H3")?;
        return long_pause(&Classic::on(hosts.split(',')), &url);
    }
    for program in ["redis-server", "redis-cli", "cc"] {
        let folders = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&folders).any(|folder| folder.join(program).is_file()) {
            return Err(
                format!("{program} is not installed: install it, or name servers: -- redlock://H1,H2,H3").into()
            );
        }
    }
    let fleet = Fleet::builder(3).each(Builder::shifted_clock).start();
    let classic = Classic::on(fleet.nodes().iter().map(|node| node.address()));
    let url = fleet.url_with("node_timeout=500ms");
    long_pause(&classic, &url)?;
    clock_jump(&classic, &url, &fleet)
}

/// Redlock as it is usually written: `SET NX PX` on a majority, and no token.
struct Classic {
    servers: Vec<redis::Client>,
}

impl Classic {
    fn on(addresses: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let open = |address: &str| redis::Client::open(format!("redis://{address}"));
        Self { servers: addresses.into_iter().filter_map(|address| open(address.as_ref()).ok()).collect() }
    }

    fn take(&self, key: &str, holder: &str, ttl: Duration) -> bool {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(holder).arg("NX").arg("PX").arg(ttl.as_millis().to_string());
        let votes: Vec<_> =
            self.servers.iter().filter(|server| ask(server, &set).is_ok_and(|set| set.is_some())).collect();
        let is_taken = votes.len() > self.servers.len() / 2;
        if !is_taken {
            for server in votes {
                let _ = ask(server, redis::cmd("DEL").arg(key));
            }
        }
        is_taken
    }
}

fn ask(server: &redis::Client, command: &redis::Cmd) -> redis::RedisResult<Option<redis::Value>> {
    command.query(&mut server.get_connection_with_timeout(TTL)?)
}

fn long_pause(classic: &Classic, url: &str) -> Outcome<()> {
    // One lamp is left. The first holder sees it, and is paused until the second has sold it.
    let (mut lamps, mut sold) = (1, 0);
    assert!(classic.take("classic/pause", "first", TTL));
    let seen = lamps;
    let mut waited = Duration::ZERO;
    while !classic.take("classic/pause", "second", 60 * TTL) {
        thread::sleep(TTL / 20);
        waited += TTL / 20;
        assert!(waited < 60 * TTL, "the first lease does not end");
    }
    let mut sell = |seen: i32| {
        if seen > 0 {
            (lamps, sold) = (seen - 1, sold + 1);
        }
    };
    sell(1); // what the second holder sees
    sell(seen); // what the first has seen: nobody can tell that it is late
    println!("the long pause, Redlock without a token: one lamp, {sold} sold, {lamps} left");

    let tenure = Tenure::connect(url)?;
    let lamps = Gate::new(1);
    let paused = tenure.lock("pause").ttl(TTL).no_renewal().acquire()?;
    let next = tenure.lock("pause").acquire_within(60 * TTL)?;
    lamps.write_as(&next.fence()?, |lamps| *lamps -= 1)?;
    let refused = lamps.write_as(&paused.fence()?, |lamps| *lamps -= 1);
    let Err(refusal) = refused else { return Err("the lamp was sold twice".into()) };
    next.release()?;
    println!("the long pause, tenure: {refusal}; one lamp, one sold");
    Ok(())
}

fn clock_jump(classic: &Classic, url: &str, fleet: &Fleet) -> Outcome<()> {
    let lease = 60 * TTL;
    let (first, second) = (Tenure::connect(url)?, Tenure::connect(url)?);
    let [_, jumps, restarts] = fleet.nodes() else { return Err("three servers were started".into()) };
    restarts.kill();
    assert!(classic.take("classic/jump", "first", lease));
    let held = first.lock("jump").ttl(lease).acquire_within(lease)?;
    restarts.restart();
    jumps.shift_clock(HOUR);

    let twice = classic.take("classic/jump", "second", lease);
    assert!(twice, "its key is gone on one server, and was never on another");
    println!("the clock jump, Redlock without a token: granted to a second holder, long before the first lease ends");

    let refused = second.lock("jump").ttl(lease).acquire_within(TTL);
    let Err(refusal) = refused else { return Err("two hold the lock".into()) };
    assert!(held.is_held());
    println!("the clock jump, tenure: the first still holds it, the second does not get it ({})", refusal.kind());
    drop(held);
    Ok(())
}
