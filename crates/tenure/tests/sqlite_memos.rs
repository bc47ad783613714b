//! Memos in the embedded store: what is special about a file.
#![cfg(all(feature = "sqlite", target_os = "linux"))]
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::fs;
use std::path::Path;
use std::time::Duration;

use tenure::Tenure;

async fn open(path: &Path) -> Tenure {
    Tenure::connect(format!("sqlite:{}", path.display())).await.unwrap()
}

/// What a power loss leaves: the file, and the log as far as it was on the disk when the memo was answered.
#[tokio::test]
async fn a_memo_is_there_after_a_loss_of_power_and_claims_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let tenure = open(&path).await;
    let guard = tenure.lock("x").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    let version = guard.write_memo("kept").await.unwrap();
    let log = directory.path().join("locks.db-wal");
    let on_disk = usize::try_from(fs::metadata(&log).unwrap().len()).unwrap();
    for number in 0..50 {
        let other = tenure.lock(format!("other/{number}")).ttl(Duration::from_secs(600)).acquire().await.unwrap();
        other.leave();
    }

    let after = tempfile::tempdir().unwrap();
    let copy = after.path().join("locks.db");
    fs::copy(&path, &copy).unwrap();
    let logged = fs::read(&log).unwrap();
    assert!(logged.len() > on_disk, "the log goes on after the memo");
    fs::write(after.path().join("locks.db-wal"), &logged[..on_disk]).unwrap();
    let file = rusqlite::Connection::open(&copy).unwrap();
    file.execute("UPDATE meta SET value = 'another boot' WHERE key = 'boot'", []).unwrap();
    drop(file);

    let next = open(&copy).await;
    assert!(next.list("").await.unwrap().is_empty(), "a restart ends every claim");
    let memo = next.memo("x").await.unwrap().unwrap();
    assert_eq!((memo.version, memo.token, &*memo.bytes), (version, guard.token().unwrap(), &b"kept"[..]));
    let guard = next.lock("x").acquire().await.unwrap();
    assert!(guard.token().unwrap() > memo.token, "tokens go on");
    guard.write_memo("goes on").await.unwrap();
}

/// The tables that a version without memos reads and writes, and the version of the schema.
fn schema(path: &Path) -> (Vec<String>, i64) {
    let file = rusqlite::Connection::open(path).unwrap();
    let mut statement =
        file.prepare("SELECT sql FROM sqlite_schema WHERE tbl_name IN ('names', 'meta') ORDER BY name").unwrap();
    let tables = statement.query_map([], |row| Ok(row.get::<_, Option<String>>(0)?.unwrap_or_default())).unwrap();
    let version = file.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    (tables.map(Result::unwrap).collect(), version)
}

#[tokio::test]
async fn a_store_gains_memos_and_stays_one_for_versions_without_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let tenure = open(&path).await;
    let guard = tenure.lock("x").acquire().await.unwrap();
    let before = schema(&path);
    assert!(tenure.memo("x").await.unwrap().is_none(), "without the table there are none");
    guard.write_memo("first").await.unwrap();
    assert_eq!(schema(&path), before);
    assert_eq!(&*open(&path).await.memo("x").await.unwrap().unwrap().bytes, b"first");
}

#[tokio::test]
async fn memos_that_have_ended_are_swept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("locks.db");
    let tenure = open(&path).await;
    for number in 0..20 {
        let guard = tenure.lock(format!("x/{number}")).acquire().await.unwrap();
        guard.write_memo_for("short", Duration::from_micros(1)).await.unwrap();
        guard.release().await.unwrap();
    }
    // Opened anew it looks around with its first transaction.
    drop(open(&path).await.lock("y").acquire().await.unwrap());
    let file = rusqlite::Connection::open(&path).unwrap();
    let left: i64 = file.query_row("SELECT count(*) FROM memos", [], |row| row.get(0)).unwrap();
    assert_eq!(left, 0);
}
