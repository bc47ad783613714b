//! A disk that stands still: etcd before 3.4.31 and 3.5.13 then revokes leases that are renewed (etcd#15247).

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::{Certainty, ErrorKind};
use tenure_testkit::servers::Etcd;

use crate::support::{connect, soon, until};

/// Lets the next write to disk of each thread of a process take 8 seconds.
fn stall(pid: u32) -> Child {
    Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"])
        .args(["-e", "inject=fdatasync:delay_enter=8000000:when=1", "-p"])
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .spawn()
        .expect("cannot run strace: run scripts/setup")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_that_a_stalled_disk_costs_is_told_and_fenced() {
    let etcd = Etcd::builder().durable().start();
    let (a, b) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let ttl = Duration::from_secs(3);
    let held = a.lock("x").ttl(ttl).acquire().await.unwrap();
    let token = held.token();
    let mut strace = stall(etcd.pid(etcd.leader()));
    // Writes for the disk to stand still at, and somebody who wants the name.
    let rival = tokio::spawn(async move {
        let guard = soon("the rival's turn", b.lock("x").ttl(ttl).acquire()).await.unwrap();
        (guard, b)
    });
    // Either etcd keeps the lease, as it should, or it revokes it: then the holder is told, and the next token is
    // higher.
    let over = tokio::time::timeout(Duration::from_secs(14), held.lost()).await;
    let was_lost = over.is_ok();
    assert_eq!(held.is_held(), !was_lost);
    if !was_lost && let Err(error) = held.release().await {
        // Every thread's first write stands still: this one may have met the next. It ends with its ttl then.
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Unavailable, Certainty::Unknown), "{error}");
    }
    let rival = soon("the rival", rival).await.unwrap();
    let (guard, _b) = rival;
    assert!(guard.token() > token, "lost: {was_lost}");
    until("strace ends", async || {
        let _ = strace.kill();
        strace.try_wait().unwrap().is_some()
    })
    .await;
    // The leader that wakes may revoke the rival's lease just as well.
    if let Err(error) = soon("a release", guard.release()).await {
        assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    }
}
