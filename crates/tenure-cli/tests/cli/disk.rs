//! A disk that is full or read-only: refused clearly, and ridden out by whoever holds a lock already.
//!
//! Each test has a disk of its own: a small tmpfs in a mount namespace of its own.

use std::process::Command;
use std::time::{Duration, Instant};

use super::support::{BIN, Done, Store, done};

/// Runs a script with `$DISK` mounted, `$TENURE` on a store there, and `fill` and `free` as commands.
fn on_a_small_disk(script: &str) -> Done {
    let store = Store::new();
    let disk = store.file("disk");
    std::fs::create_dir(&disk).unwrap();
    let prelude = r#"
        set -e
        mount -t tmpfs -o size=512k none "$DISK"
        fill() { dd if=/dev/zero of="$DISK/fill" bs=4k 2>/dev/null || true; }
        free() { rm "$DISK/fill"; }
        code() { set +e; "$@" >/dev/null; echo "$?"; set -e; }
        export -f fill free
        export TENURE_URL="sqlite:$DISK/locks.db"
    "#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "bash", "-c", &format!("{prelude}\n{script}")]);
    command.env("DISK", &disk).env("TENURE", BIN).env_remove("TENURE_HELD");
    done(&mut command)
}

#[test]
fn a_full_disk_is_69_and_leaves_nothing_half_done() {
    let done = on_a_small_disk(
        r#"code "$TENURE" run a -- true
           fill
           code "$TENURE" acquire b --ttl 1m --owner me
           free
           "$TENURE" ls --json
           code "$TENURE" acquire b --ttl 1m --owner me"#,
    );
    assert_eq!(done.text().lines().collect::<Vec<_>>(), ["0", "69", "[]", "0"], "{done:?}");
    done.says("the disk is full");
}

#[test]
fn a_new_store_on_a_full_disk_is_69() {
    let done = on_a_small_disk(r#"fill; code "$TENURE" run a -- true; free; code "$TENURE" run a -- true"#);
    assert_eq!(done.text().lines().collect::<Vec<_>>(), ["69", "0"], "{done:?}");
    done.says("full");
}

#[test]
fn a_disk_that_is_full_for_a_while_is_ridden_out() {
    // The renewal after 3 s finds it full, a later one does not: the command outlasts the ttl.
    let done = on_a_small_disk(r#"code "$TENURE" run a --ttl 9s -- bash -c 'fill; sleep 3.5; free; sleep 6'"#);
    assert_eq!(done.text(), "0", "{done:?}");
}

#[test]
fn a_disk_that_stays_full_loses_the_lease_and_is_named() {
    let done = on_a_small_disk(r#"code "$TENURE" run a --ttl 1s -- bash -c 'fill; sleep 60'"#);
    assert_eq!(done.text(), "76", "{done:?}");
    done.says("a: the lease was lost").says("last failure: ").says("the disk is full");
}

#[test]
fn a_store_that_cannot_release_delays_the_commands_status_only_a_little() {
    let started = Instant::now();
    let done = on_a_small_disk(r#"code "$TENURE" run a --ttl 1m -- bash -c 'fill; exit 7'"#);
    assert_eq!(done.text(), "7", "{done:?}");
    done.says("not released, it is free when its ttl of 1m 00s is over");
    assert!(started.elapsed() < Duration::from_secs(9), "neither a ttl nor ten seconds: {:?}", started.elapsed());
}

#[test]
fn a_read_only_disk_is_69() {
    let done = on_a_small_disk(
        r#""$TENURE" run a -- true
           mount -o remount,ro "$DISK"
           code "$TENURE" run a -- true
           code "$TENURE" run a --on "sqlite:$DISK/new.db" -- true"#,
    );
    assert_eq!(done.text().lines().collect::<Vec<_>>(), ["69", "69"], "{done:?}");
    done.says("Read-only file system").says("cannot be opened");
}
