//! `kill -9` at any moment: the file stays whole, the lock comes free, nothing piles up.

use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use super::support::{Running, Store, done, eventually};

/// Kills come at moments spread evenly over the life of a run.
const KILLS: u32 = 60;

#[test]
fn the_store_survives_kill_9_at_any_moment() {
    let store = Store::new();
    let started = Instant::now();
    store.tenure("run x --ttl 10s -- true").exits(0);
    let life = started.elapsed().max(Duration::from_millis(5));
    for kill in 0..KILLS {
        let running = Running::of(&mut store.command(["run", "x", "--ttl", "500ms", "--", "true"]));
        // A busy wait: the moment matters, not the time.
        let moment = Instant::now() + life * kill / KILLS;
        while Instant::now() < moment {
            std::hint::spin_loop();
        }
        let _ = kill_process(running.pid, Signal::KILL);
        drop(running);
    }
    let last = store.tenure("run x --ttl 10s --wait 10s -- echo alive").exits(0);
    assert_eq!(last.text(), "alive");
    eventually("every claim of the killed has ended", || store.tenure("ls --json").exits(0).text() == "[]");
    let token = |done: super::support::Done| done.exits(0).text().parse::<u64>().unwrap();
    let one = token(done(&mut store.sh_command("x", "echo $TENURE_TOKEN")));
    let two = token(done(&mut store.sh_command("x", "echo $TENURE_TOKEN")));
    assert!(one < two, "tokens still grow");
    let inboxes = std::fs::read_dir(store.file("locks.db-inbox")).unwrap().flatten();
    let whole = inboxes.filter(|inbox| inbox.path().extension().is_none()).count();
    assert_eq!(whole, 0, "inboxes of the killed are gone");
}
