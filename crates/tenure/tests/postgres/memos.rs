//! Memos: their table, who may make and use it, and what they survive.

use std::sync::Arc;

use tenure::{Certainty, Error, ErrorKind, Tenure};
use tenure_testkit::servers::Postgres;

use crate::locked::Keeper;
use crate::support::{LONG, connect, findings, soon, until};

/// The tables that a version without memos reads and writes, and their version.
fn tables(server: &Postgres) -> String {
    server.psql(
        "SELECT string_agg(table_name || '.' || column_name || ' ' || data_type, ',' ORDER BY table_name, ordinal_position) \
         FROM information_schema.columns WHERE table_schema = 'tenure' AND table_name <> 'memos'",
    ) + &server.psql("SELECT version FROM tenure.meta")
}

async fn write(tenure: &Tenure, name: &str, text: &str) -> tenure::Result<u64> {
    let guard = tenure.lock(name).ttl(LONG).acquire().await?;
    let written = guard.write_memo(text).await;
    guard.release().await?;
    written
}

async fn read(tenure: &Tenure, name: &str) -> Option<String> {
    let memo = soon("a memo", tenure.memo(name)).await.unwrap();
    memo.map(|memo| String::from_utf8(memo.bytes.to_vec()).unwrap())
}

/// Writes after somebody has dropped the table.
async fn write_again(server: &Postgres, tenure: &Tenure) -> String {
    for _ in 0..2 {
        write(tenure, "dropped", "before").await.unwrap();
    }
    server.psql("DROP TABLE tenure.memos");
    assert_eq!(read(tenure, "dropped").await, None);
    write(tenure, "dropped", "made anew").await.unwrap();
    read(tenure, "dropped").await.unwrap()
}

/// What an error tells its reader to run.
fn told_to_run(error: &Error) -> String {
    error.to_string().split('`').nth(1).unwrap_or_else(|| panic!("nothing to run: {error}")).to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_gain_memos_and_stay_those_of_versions_without_them() {
    let server = Postgres::start();
    let tenure = connect(server.url()).await;
    let before = tables(&server);
    assert_eq!(read(&tenure, "x").await, None, "without the table there are none");
    assert_eq!(server.psql("SELECT to_regclass('tenure.memos') IS NULL"), "t", "to read makes nothing");
    // All are the first.
    let writers = (0..8).map(|number| {
        let url = server.url().to_owned();
        tokio::spawn(async move { write(&connect(url).await, &format!("x{number}"), "first").await })
    });
    for written in futures_util::future::join_all(writers.collect::<Vec<_>>()).await {
        written.unwrap().unwrap();
    }
    assert_eq!(tables(&server), before);
    assert_eq!(read(&tenure, "x7").await.as_deref(), Some("first"));
    assert_eq!(write_again(&server, &tenure).await, "made anew");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_without_rights_is_told_what_to_run_and_that_is_all_it_takes() {
    let server = Postgres::start();
    drop(connect(server.url()).await);
    server.psql("CREATE USER \"the locker\"; GRANT USAGE ON SCHEMA tenure TO \"the locker\"");
    server.psql("GRANT SELECT, INSERT, UPDATE, DELETE ON tenure.names TO \"the locker\"");
    server.psql("GRANT SELECT, UPDATE ON tenure.meta TO \"the locker\"");
    let locker = connect(server.url().replace("testkit@", "the%20locker@")).await;
    let error = write(&locker, "x", "refused").await.unwrap_err();
    assert_eq!((error.kind(), error.certainty()), (ErrorKind::Denied, Certainty::NotApplied), "{error}");
    server.psql(&told_to_run(&error));
    let version = write(&locker, "x", "made by an administrator").await.unwrap();
    assert_eq!(read(&locker, "x").await.as_deref(), Some("made by an administrator"));

    server.psql("REVOKE ALL ON tenure.memos FROM \"the locker\"");
    for error in [write(&locker, "x", "refused").await.unwrap_err(), locker.memo("x").await.unwrap_err()] {
        assert_eq!((error.kind(), error.certainty()), (ErrorKind::Denied, Certainty::NotApplied), "{error}");
        assert!(told_to_run(&error).starts_with("GRANT"), "{error}");
    }
    let found = findings(&locker).await;
    assert!(found.iter().any(|what| what.contains("lacks rights")), "{found:?}");
    server.psql(&told_to_run(&locker.memo("x").await.unwrap_err()));
    assert!(write(&locker, "x", "granted").await.unwrap() > version);
    let found = findings(&locker).await;
    assert!(!found.iter().any(|what| what.contains("lacks rights")), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memos_that_have_ended_are_swept_and_their_versions_do_not_come_again() {
    let server = Postgres::start();
    let tenure = connect(server.url()).await;
    write(&tenure, "kept", "kept").await.unwrap();
    // More than go at a time, and ahead of the clock: as if it had stepped back since.
    server.psql(
        "INSERT INTO tenure.memos SELECT 'ended' || n, 'user', 1, (extract(epoch FROM now()) * 1000000)::bigint + 3600000000 + n, \
         n, 1, 2, 'x' FROM generate_series(1, 1000) n",
    );
    let highest: u64 = server.psql("SELECT max(version) FROM tenure.memos").parse().unwrap();
    let sweeper = connect(server.url()).await;
    write(&sweeper, "busy", "busy").await.unwrap();
    until("they are swept", async || server.psql("SELECT count(*) FROM tenure.memos") == "2").await;
    assert_eq!(read(&tenure, "kept").await.as_deref(), Some("kept"));
    assert!(write(&tenure, "ended7", "again").await.unwrap() > highest);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_is_there_after_a_crash_also_where_commits_do_not_wait_for_the_disk() {
    let server =
        Postgres::builder().durable().config("synchronous_commit", "off").config("wal_writer_delay", "10s").start();
    let tenure = connect(server.url()).await;
    let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    let version = guard.write_memo("kept").await.unwrap();
    server.kill();
    server.restart();
    let memo = soon("a memo", async {
        loop {
            match tenure.memo("x").await {
                Ok(memo) => break memo,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
        }
    });
    let memo = memo.await.expect("it was acknowledged");
    assert_eq!((memo.version, &*memo.bytes), (version, &b"kept"[..]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_memo_is_there_after_a_failover_to_a_synchronous_standby() {
    let primary = Postgres::start();
    drop(connect(primary.url()).await);
    let standby = primary.standby();
    let url = format!("postgres://testkit@127.0.0.1:{},127.0.0.1:{}/postgres", primary.port(), standby.port());
    let tenure = connect(&url).await;
    let guard = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    let version = guard.write_memo("kept").await.unwrap();
    primary.kill();
    standby.promote();
    let again = soon("a write", guard.write_memo("goes on")).await.unwrap();
    assert!(again > version);
    assert_eq!(read(&connect(&url).await, "x").await.as_deref(), Some("goes on"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_stays_locked_holds_up_its_own_memo_and_no_other() {
    let server = Arc::new(Postgres::start());
    let tenure = connect(server.url()).await;
    let held = tenure.lock("x").ttl(LONG).acquire().await.unwrap();
    write(&tenure, "other", "before").await.unwrap();
    let mut keeper = Keeper::of(&server, "SELECT FROM tenure.names WHERE name = 'x' FOR UPDATE").await;
    let write_x = tokio::spawn(async move { (held.write_memo("late").await, held) });
    for number in 0..20 {
        soon("another name", write(&tenure, "other", &number.to_string())).await.unwrap();
    }
    assert!(!write_x.is_finished());
    keeper.lets_go().await;
    let (written, _held) = soon("the write", write_x).await.unwrap();
    written.unwrap();
    assert_eq!(read(&tenure, "x").await.as_deref(), Some("late"));
}
