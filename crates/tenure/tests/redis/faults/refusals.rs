//! A server that answers, and refuses to write.

use std::time::Duration;

use tenure::{Certainty, Error, ErrorKind, Loss};

use crate::support::{LONG, Server, builder, granted, patiently, refusal, renewed, until, waiters, waiting};

fn surely_not_done(error: &Error, kind: ErrorKind, retryable: bool, says: &str) {
    assert_eq!((error.kind(), error.certainty()), (kind, Certainty::NotApplied), "{error}");
    assert_eq!(error.is_retryable(), retryable, "{error}");
    assert!(error.to_string().contains(says), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_became_a_replica_takes_no_locks() {
    let (server, master) = (Server::start(), Server::start());
    let client = server.client().await;
    let held = client.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    assert_eq!(server.cli(&["replicaof", "127.0.0.1", &master.port().to_string()]), "OK");
    surely_not_done(&refusal(&client.lock("y")).await, ErrorKind::Unavailable, true, "replica");
    let waits = waiting(&client.lock("y"));
    // What the master does not have, the replica has no longer; until it has copied that, nothing can be renewed.
    let loss = patiently("the loss", held.lost()).await;
    assert!(matches!(loss, Loss::Gone | Loss::Expired), "{loss:?}");
    let error = tenure::Tenure::connect(server.url()).await.unwrap_err();
    surely_not_done(&error, ErrorKind::Unavailable, true, "replica");
    assert_eq!(server.cli(&["replicaof", "no", "one"]), "OK");
    granted(waits).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_new_claims_are_refused_and_old_ones_live_on_and_end() {
    let server = Server::start();
    let (a, b, c) = (server.client().await, server.client().await, server.client().await);
    let held = a.lock("x").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let alone = a.lock("alone").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let b_waits = waiting(&b.lock("x").ttl(Duration::from_secs(9)));
    waiters(&a, "x", 1).await;
    let c_waits = waiting(&c.lock("x").ttl(Duration::from_secs(9)));
    waiters(&a, "x", 2).await;
    assert_eq!(server.cli(&["config", "set", "maxmemory", "1"]), "OK");

    for name in ["free", "alone", "x"] {
        let outcome = patiently("an answer", b.lock(name).ttl(LONG).acquire_within(LONG)).await;
        surely_not_done(&outcome.unwrap_err(), ErrorKind::Store, false, "memory");
    }
    assert_eq!(a.inspect("x").await.unwrap().waiters.len(), 2, "nothing half done");
    surely_not_done(&refusal(&b.lock("free")).await, ErrorKind::Store, false, "memory");
    renewed(&held).await;
    renewed(&alone).await;
    alone.release().await.unwrap();
    held.release().await.unwrap();
    let next = granted(b_waits).await;
    renewed(&next).await;
    next.release().await.unwrap();
    granted(c_waits).await.release().await.unwrap();
    assert_eq!(server.cli(&["config", "set", "maxmemory", "0"]), "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_save_refuses_writes_and_nothing_is_half_done() {
    let server = Server::of(builder().config("save", "3600 1").config("dbfilename", "dump"));
    let save = |ends: &'static str| {
        let server = &server;
        async move {
            server.cli(&["bgsave"]);
            until("the server has tried to save", async || {
                let info = server.cli(&["info", "persistence"]);
                info.contains("rdb_bgsave_in_progress:0") && info.contains(&format!("rdb_last_bgsave_status:{ends}"))
            })
            .await;
        }
    };
    let (a, b) = (server.client().await, server.client().await);
    let held = a.lock("x").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let stuck = a.lock("stuck").ttl(Duration::from_secs(1)).no_renewal().acquire().await.unwrap();
    let waits = waiting(&b.lock("x").ttl(LONG));
    waiters(&a, "x", 1).await;
    // A file cannot take the place of a directory that is not empty, not even root's.
    let obstacle = server.directory().join("dump");
    std::fs::create_dir_all(obstacle.join("full")).unwrap();
    save("err").await;

    surely_not_done(&refusal(&a.lock("y")).await, ErrorKind::Store, false, "disk");
    let outcome = patiently("an answer", b.lock("y").acquire()).await;
    surely_not_done(&outcome.unwrap_err(), ErrorKind::Store, false, "disk");
    let error = patiently("the release", stuck.release()).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Store | ErrorKind::Lost | ErrorKind::Unavailable), "{error:?}");
    assert_eq!(patiently("the loss", held.lost()).await, Loss::Expired);
    assert!(held.renewal_failure().unwrap().contains("disk"), "{:?}", held.renewal_failure());

    std::fs::remove_dir_all(obstacle).unwrap();
    save("ok").await;
    let next = granted(waits).await;
    assert!(next.token() > held.token());
    next.release().await.unwrap();
    a.lock("y").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_replicas_for_the_server_is_its_own_error_and_waited_out() {
    let server = Server::start();
    let client = server.client().await;
    let held = client.lock("x").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    let few = |count: &str| assert_eq!(server.cli(&["config", "set", "min-replicas-to-write", count]), "OK");
    few("1");
    surely_not_done(&refusal(&client.lock("y")).await, ErrorKind::Replicas, true, "replicas");
    let waits = waiting(&client.lock("z"));
    assert_eq!(patiently("the loss", held.lost()).await, Loss::Expired);
    assert!(held.renewal_failure().unwrap().contains("replicas"), "{:?}", held.renewal_failure());
    few("0");
    granted(waits).await.release().await.unwrap();
}
